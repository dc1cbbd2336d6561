// One element everywhere, 16 bytes at a time.
//
// Macros: WORD, an unsigned type of an element's size; BITS, the element; ELEMENTS, their number; INDEX, the type of positions.

#define WIDTH (16 / sizeof(WORD))

extern "C" __global__ void __launch_bounds__(256) fill(WORD* out) {
  INDEX i = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  Vec<WORD, WIDTH> all;
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) all.at[k] = (WORD)BITS;
  if (i + WIDTH <= ELEMENTS) {
    *(Vec<WORD, WIDTH>*)(out + i) = all;
  } else {
    for (; i < ELEMENTS; ++i) out[i] = (WORD)BITS;
  }
}
