// What every kernel begins with: element types, conversions, the account of faults. No header is included, so that a compiler
// library without its headers is enough.

typedef long long i64;
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

// Elements of 16 bits, which are computed with as float.
struct half_t { u16 bits; };
struct bfloat_t { u16 bits; };
// A truth value, 0 or 1.
struct bool_t { u8 bits; };

// So many elements that are read or written at once.
template <class T, int N> struct alignas(sizeof(T) * N) Vec { T at[N]; };

__device__ __forceinline__ float load(float x) { return x; }
__device__ __forceinline__ float load(half_t x) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
}
__device__ __forceinline__ float load(bfloat_t x) { return __uint_as_float((u32)x.bits << 16); }
__device__ __forceinline__ i64 load(i64 x) { return x; }
__device__ __forceinline__ i64 load(int x) { return x; }
__device__ __forceinline__ i64 load(u8 x) { return x; }
__device__ __forceinline__ i64 load(bool_t x) { return x.bits; }

// The nearest element, ties to even; of integers the low bits.
template <class T> __device__ __forceinline__ T to(float x);
template <class T> __device__ __forceinline__ T to(i64 x);
template <> __device__ __forceinline__ float to<float>(float x) { return x; }
template <> __device__ __forceinline__ half_t to<half_t>(float x) {
  half_t narrow;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
  return narrow;
}
template <> __device__ __forceinline__ bfloat_t to<bfloat_t>(float x) {
  bfloat_t narrow;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
  return narrow;
}
template <> __device__ __forceinline__ i64 to<i64>(i64 x) { return x; }
template <> __device__ __forceinline__ int to<int>(i64 x) { return (int)x; }
template <> __device__ __forceinline__ u8 to<u8>(i64 x) { return (u8)x; }
template <> __device__ __forceinline__ bool_t to<bool_t>(i64 x) { return bool_t{(u8)(x != 0)}; }

// The values that elements of a type have, of a number.
template <class T, class V> __device__ __forceinline__ V rounded(V x) { return load(to<T>(x)); }

// An integer from a float: truncated, held within 64 bits, 0 for what is no number.
__device__ __forceinline__ i64 truncated(float x) { return x == x ? (i64)x : 0; }

// The step, counted from 0, and the job's seed.
struct Now { u64 step, seed; };

// The first thing that a kernel found wrong since the host last looked.
struct Fault {
  u32 taken; // 0 as long as there is none
  u32 call;
  u32 kind;
  u32 ready; // 1 when the rest is written
  i64 index;
  u64 position;
};
enum FaultKind { FAULT_INDEX = 1, FAULT_DIVISION = 2 };

__device__ __noinline__ void fault(Fault* account, u32 call, u32 kind, i64 index, u64 position) {
  if (atomicCAS(&account->taken, 0u, 1u) == 0u) {
    account->call = call;
    account->kind = kind;
    account->index = index;
    account->position = position;
    __threadfence();
    atomicExch(&account->ready, 1u);
  }
}

// 2^x and the factor that makes exponents of e such of 2: for what is rounded to halves, or where x is not above 0, as of sums of
// powers. An accurate exp takes several times as long.
#define LOG2_E 1.44269504088896341f
__device__ __forceinline__ float power_of_two(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

#define INFINITE __uint_as_float(0x7f800000u)
#define NOT_A_NUMBER __uint_as_float(0x7fc00000u)
#define ALL_LANES 0xffffffffu

// The same result on all lanes of a warp, which all take part; combined in pairs, so in an order that is always the same.
__device__ __forceinline__ float warp_sum(float x) {
  for (int lane = 16; lane > 0; lane >>= 1) x += __shfl_xor_sync(ALL_LANES, x, lane);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
  for (int lane = 16; lane > 0; lane >>= 1) {
    float other = __shfl_xor_sync(ALL_LANES, x, lane);
    x = (x > other || x != x) ? x : other;
  }
  return x;
}

// Of a block of THREADS threads (a multiple of 32, at most 1024), all of which take part and get the result.
template <int THREADS> __device__ __forceinline__ float block_sum(float x) {
  __shared__ float sums[THREADS / 32];
  x = warp_sum(x);
  if (THREADS == 32) return x;
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  float total = 0.0f;
  for (int warp = 0; warp < THREADS / 32; ++warp) total += sums[warp];
  return total;
}
template <int THREADS> __device__ __forceinline__ float block_max(float x) {
  __shared__ float greatest[THREADS / 32];
  x = warp_max(x);
  if (THREADS == 32) return x;
  __syncthreads();
  if (threadIdx.x % 32 == 0) greatest[threadIdx.x / 32] = x;
  __syncthreads();
  float all = greatest[0];
  for (int warp = 1; warp < THREADS / 32; ++warp) {
    float other = greatest[warp];
    all = (all > other || all != all) ? all : other;
  }
  return all;
}

// Philox4x32-10 (Salmon et al., SC 2011, section 3.3): four words of one element of the whole tensor.
struct Words { u32 at[4]; };
__device__ __forceinline__ Words random_words(u64 seed, u64 key, u64 step, u64 element) {
  u64 spread = key * 0x9E3779B97F4A7C15ull;
  u64 mixed = seed ^ ((spread << 17) | (spread >> 47));
  u32 key0 = (u32)mixed, key1 = (u32)(mixed >> 32);
  Words w = {{(u32)element, (u32)(element >> 32), (u32)step, (u32)(step >> 32)}};
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    u64 first = (u64)0xD2511F53u * w.at[0], second = (u64)0xCD9E8D57u * w.at[2];
    Words next = {{(u32)(second >> 32) ^ w.at[1] ^ key0, (u32)second,
                   (u32)(first >> 32) ^ w.at[3] ^ key1, (u32)first}};
    w = next;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return w;
}
__device__ __forceinline__ float uniform_of(Words w) { return (float)(w.at[0] >> 8) * (1.0f / 16777216.0f); }

// A quotient of integers, truncated. Division by 0 is a fault.
__device__ __forceinline__ i64 quotient(i64 a, i64 b, Fault* account, u32 call) {
  if (b == 0) {
    fault(account, call, FAULT_DIVISION, 0, 0);
    return 0;
  }
  return b == -1 ? (i64)(0ull - (u64)a) : a / b;
}
