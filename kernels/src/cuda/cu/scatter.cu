// Rows that are made of the values at their places, in the order of these: from 0, or from what x has. A thread for a few
// elements side by side.
//
// Macros: those of places; T; V, float or i64; ELEMENTS of the result; WIDTH, elements of a row; AT_ONCE, how many a
// thread makes, which divides these; INDEX, the type of positions; JOIN(a, b), a
// value and the next; ROUNDED, whether each is an element; FROM_X, whether rows begin with x's; LISTED, whether there are lists of
// positions, or else all of a batch are looked at.

extern "C" __global__ void __launch_bounds__(256) scatter(
#if FROM_X
    const T* x,
#endif
#if LISTED
    const u32* starts, const u32* counts, const u32* sorted,
#else
    const i64* places,
#endif
    const T* values, T* out, i64 first, Fault* account, u32 call) {
  INDEX i = ((INDEX)blockIdx.x * 256 + threadIdx.x) * AT_ONCE;
  if (i >= ELEMENTS) return;
  INDEX row = i / WIDTH, column = i % WIDTH;
  V sums[AT_ONCE] = {};
#if FROM_X
  Vec<T, AT_ONCE> before = *(const Vec<T, AT_ONCE>*)(x + i);
#pragma unroll
  for (int k = 0; k < AT_ONCE; ++k) sums[k] = load(before.at[k]);
#endif
#if LISTED
  u32 start = starts[row], length = counts[row];
#pragma unroll 4
  for (u32 number = 0; number < length; ++number) {
    u64 position = sorted[start + number];
#else
  u64 begin = (u64)(row / EXTENT) * PLACES;
  for (u64 position = begin; position < begin + PLACES; ++position) {
    if (row_of(places, position, first, account, call) != (i64)row) continue;
#endif
    Vec<T, AT_ONCE> next = *(const Vec<T, AT_ONCE>*)(values + position * WIDTH + column);
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) {
      V value = load(next.at[k]);
      sums[k] = JOIN(sums[k], value);
      if (ROUNDED) sums[k] = rounded<T>(sums[k]);
    }
  }
  Vec<T, AT_ONCE> result;
#pragma unroll
  for (int k = 0; k < AT_ONCE; ++k) result.at[k] = to<T>(sums[k]);
  *(Vec<T, AT_ONCE>*)(out + i) = result;
}
