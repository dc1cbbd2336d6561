// Elements as whole numbers that come in the order in which the best are wanted, and equal ones by their places.
//
// Macros: T; GREATEST, whether the greatest are wanted.

struct Ranked {
  u64 key, place;
};
// Behind all others.
#define LAST (Ranked{~0ull, ~0ull})

__device__ __forceinline__ bool before(Ranked a, Ranked b) { return a.key < b.key || (a.key == b.key && a.place < b.place); }

// Whole numbers in the order of numbers; what is no number is greater than all.
__device__ __forceinline__ u64 ascending(i64 x) { return (u64)x ^ (1ull << 63); }
__device__ __forceinline__ u64 ascending(float x) {
  if (x != x) return ~0u;
  u32 bits = __float_as_uint(x == 0.0f ? 0.0f : x);
  return bits ^ (bits >> 31 ? ~0u : 1u << 31);
}
__device__ __forceinline__ Ranked ranked(T x, u32 place) {
  u64 key = ascending(load(x));
  return Ranked{GREATEST ? ~key : key, place};
}
