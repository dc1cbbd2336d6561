typedef unsigned u32;
typedef unsigned long long u64;
typedef long long s64;

// Bits of two numbers for each thread; results side by side.
extern "C" __global__ void bits(const u32 *x, const u32 *y, u32 *z, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  u32 a = x[i], b = y[i], *out = z + 24 * i;
  out[0] = __popc(a); out[1] = __clz(a); out[2] = __brev(a); out[3] = __ffs(a);
  out[4] = __byte_perm(a, b, 0x5140); out[5] = __funnelshift_l(a, b, b & 31); out[6] = __funnelshift_r(a, b, b & 31);
  out[7] = (a >> (b & 15)) & 0xFFF; out[8] = (int)a >> (b & 31); out[9] = a << (b & 31);
  out[10] = (a & b) ^ ~(a | b); out[11] = __umulhi(a, b); out[12] = __mulhi((int)a, (int)b);
  out[13] = b ? a / b : 7; out[14] = b ? a % b : 7; out[15] = b ? (int)a / ((int)b | 1) : 7; out[16] = (int)a % ((int)b | 1);
  out[17] = max((int)a, (int)b); out[18] = min(a, b); out[19] = abs((int)a); out[20] = (signed char)a; out[21] = (short)b;
  out[22] = (u32)((u64)a * b >> 20); out[23] = __sad((int)a, (int)b, 5);
}

extern "C" __global__ void wide(const u64 *x, const u64 *y, u64 *z, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  u64 a = x[i], b = y[i] | 1, *out = z + 10 * i;
  out[0] = a / b; out[1] = a % b; out[2] = (s64)a / (s64)b; out[3] = (s64)a % (s64)b; out[4] = __umul64hi(a, b);
  out[5] = __mul64hi((s64)a, (s64)b); out[6] = __popcll(a); out[7] = __clzll(a); out[8] = __brevll(a); out[9] = a * b + (a >> 7);
}

extern "C" __global__ void floats(const float *x, const float *y, float *z, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  float a = x[i], b = y[i], *out = z + 32 * i;
  out[0] = a / b; out[1] = sqrtf(fabsf(a)); out[2] = rsqrtf(fabsf(a)); out[3] = expf(a); out[4] = logf(fabsf(a)); out[5] = sinf(a);
  out[6] = cosf(a * 1e5f); out[7] = tanhf(a); out[8] = erff(a); out[9] = powf(fabsf(a), b); out[10] = fminf(a, b); out[11] = fmaxf(a, b);
  out[12] = floorf(a * 10); out[13] = ceilf(a * 10); out[14] = rintf(a * 10); out[15] = truncf(a * 10); out[16] = (float)(int)(a * 100);
  out[17] = (float)(u32)fabsf(a * 100); out[18] = copysignf(a, b); out[19] = fmaf(a, b, 1.f); out[20] = __fmaf_rd(a, b, 1.f); out[21] = __fadd_ru(a, b);
  out[22] = __fmul_rz(a, b); out[23] = isnan(a) ? 1.f : 0.f; out[24] = log1pf(fabsf(a)); out[25] = expm1f(a); out[26] = exp2f(a); out[27] = cbrtf(a);
  out[28] = fmodf(a * 10, b); out[29] = (float)((double)a * (double)b); out[30] = (float)exp((double)a); out[31] = __expf(a);
}

extern "C" __global__ void lanes(u32 *z) {
  u32 l = threadIdx.x, *out = z + 16 * l;
  out[0] = __shfl_sync(~0u, l * 3, l ^ 5); out[1] = __shfl_up_sync(~0u, l, 3); out[2] = __shfl_down_sync(~0u, l, 5, 8);
  out[3] = __shfl_xor_sync(~0u, l, 9, 16); out[4] = __ballot_sync(~0u, l % 3 == 0); out[5] = __any_sync(~0u, l == 40); out[6] = __all_sync(~0u, l < 32);
  out[7] = __match_any_sync(~0u, l / 5); out[8] = __reduce_add_sync(~0u, l); out[9] = __reduce_max_sync(~0u, l ^ 21);
  if (l % 2) out[10] = __ballot_sync(0xAAAAAAAA, l > 10);
  else out[10] = __shfl_sync(0x55555555, l, (l + 2) % 32);
  u32 sum = 0;
  for (u32 i = 0; i <= l % 7; i++) { if (i == 3) continue; sum += i * l; if (sum > 100) break; }
  out[11] = sum;
  out[12] = __activemask();
  out[13] = __popc(__ballot_sync(~0u, sum & 1));
  switch (l % 6) { case 0: out[14] = 5; break; case 1: out[14] = l * l; break; case 2: out[14] = l + 9; break; case 3: out[14] = ~l; break; case 4: out[14] = l << 4; break; default: out[14] = 1; }
  __syncwarp();
  out[15] = l;
}

__constant__ int table[4] = {3, -1, 4, 1};
__device__ int counter = 10;
__noinline__ __device__ float helper(float a, int n, float *more) {
  if (n & 1) { *more = a; return a * 2; }
  *more = -a;
  return a + 0.5f;
}
struct Pair { int a; float b[3]; };
extern "C" __global__ void memory(Pair pair, float *out, int *counts) {
  int t = threadIdx.x;
  float own[8], more;
  for (int i = 0; i < 8; i++) own[i] = i * t;
  own[t % 8] = 100;
  float sum = 0;
  for (int i = 0; i < 8; i++) sum += own[(i * 3 + t) % 8];
  out[t] = sum + table[t & 3] + pair.b[t % 3] + pair.a + helper(t, t, &more) + more;
  atomicAdd(&counter, 1);
  atomicMax(&counts[0], t); atomicMin(&counts[1], -t); atomicCAS(&counts[2], 0, t + 1); atomicExch(&counts[3], 5); atomicOr((u32 *)&counts[4], 1u << (t & 31));
  int held = __syncthreads_count(t % 4 == 1);
  if (t == 0) counts[5] = held;
  if (__syncthreads_or(t == 63) && t == 1) counts[6] = 1;
  if (t == 0) counts[7] = counter;
}

extern "C" __global__ void dynamic(const float *x, float *y) {
  extern __shared__ float tile[];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

#define PAIR(NAME, ASM) __device__ u32 NAME(u32 a, u32 b) { u32 c; asm(ASM " %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b)); return c; }
PAIR(add_h2, "add.rn.f16x2") PAIR(mul_h2, "mul.rn.f16x2") PAIR(max_h2, "max.f16x2") PAIR(min_b2, "min.bf16x2")
extern "C" __global__ void pairs(const u32 *x, const u32 *y, const float *f, u32 *z, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  u32 a = x[i], b = y[i], *out = z + 8 * i;
  out[0] = add_h2(a, b); out[1] = mul_h2(a, b); out[2] = max_h2(a, b); out[3] = min_b2(a, b);
  asm("fma.rn.f16x2 %0, %1, %2, %1;" : "=r"(out[4]) : "r"(a), "r"(b));
  asm("fma.rn.bf16x2 %0, %1, %2, %1;" : "=r"(out[5]) : "r"(a), "r"(b));
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out[6]) : "f"(f[i]), "f"(f[i] * 3));
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out[7]) : "f"(f[i]), "f"(f[i] * 3));
}
