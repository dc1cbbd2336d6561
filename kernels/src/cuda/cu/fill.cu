// Fills memory with one number.
//
// Macros: INDEX, the type of positions; T, the element type; ELEMENTS, of which a thread writes WIDTH; VALUE, float or i64.

extern "C" __global__ void __launch_bounds__(256) fill(T* out) {
  INDEX first = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  Vec<T, WIDTH> values;
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) values.at[k] = to<T>(VALUE);
  if (first + WIDTH <= ELEMENTS) {
    *(Vec<T, WIDTH>*)(out + first) = values;
    return;
  }
  for (INDEX i = first; i < ELEMENTS; ++i) out[i] = values.at[0];
}
