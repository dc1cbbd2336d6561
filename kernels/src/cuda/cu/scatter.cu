// Rows that are made of the values at their places, in the order of these: from 0, or from what x has. A thread for each element.
//
// Macros: those of places; T; V, float or i64; ELEMENTS of the result; WIDTH, elements of a row; INDEX, the type of positions; JOIN(a, b), a
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
  INDEX i = (INDEX)blockIdx.x * 256 + threadIdx.x;
  if (i >= ELEMENTS) return;
  INDEX row = i / WIDTH, column = i % WIDTH;
#if FROM_X
  V value = load(x[i]);
#else
  V value = (V)0;
#endif
#if LISTED
  u32 start = starts[row], length = counts[row];
#pragma unroll 4
  for (u32 k = 0; k < length; ++k) {
    u64 position = sorted[start + k];
#else
  u64 begin = (u64)(row / EXTENT) * PLACES;
  for (u64 position = begin; position < begin + PLACES; ++position) {
    if (row_of(places, position, first, account, call) != (i64)row) continue;
#endif
    V next = load(values[position * WIDTH + column]);
    value = JOIN(value, next);
    if (ROUNDED) value = rounded<T>(value);
  }
  out[i] = to<T>(value);
}
