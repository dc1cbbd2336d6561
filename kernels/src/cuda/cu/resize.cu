// Interpolation along a dim: each element of the result is a sum of a few of the operand, with weights.
//
// Macros: INDEX, the type of positions; T, the element type; ELEMENTS of the result; FROM and TO, the dim's extents; INNER, the elements
// behind it, of which a thread takes WIDTH; TAPS, the most that make one element. Numbers: for each element of the result along the
// dim so many pairs of an element of the operand and its weight; those after the last begin with -1.

extern "C" __global__ void __launch_bounds__(256) resize(const float* numbers, const T* x, T* y) {
  INDEX e = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (e >= ELEMENTS) return;
  INDEX inner = e % INNER, outer = e / INNER / TO;
  const float* taps = numbers + (u32)(e / INNER % TO) * (2 * TAPS);
  float sums[WIDTH] = {};
  for (u32 tap = 0; tap < TAPS; ++tap) {
    float from = taps[2 * tap], weight = taps[2 * tap + 1];
    if (from < 0.0f) break;
    Vec<T, WIDTH> several = *(const Vec<T, WIDTH>*)(x + (outer * FROM + (u32)from) * INNER + inner);
#pragma unroll
    for (int l = 0; l < WIDTH; ++l) sums[l] += weight * load(several.at[l]);
  }
  Vec<T, WIDTH> found;
#pragma unroll
  for (int l = 0; l < WIDTH; ++l) found.at[l] = to<T>(sums[l]);
  *(Vec<T, WIDTH>*)(y + e) = found;
}
