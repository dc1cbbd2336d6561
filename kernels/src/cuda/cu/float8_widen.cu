// Numbers of 8 bits as those of bf16, which has them all: a thread for each.
//
// Macros: NUMBER, the type of a number of 8 bits; ELEMENTS, their number; INDEX, the type of positions.

extern "C" __global__ void __launch_bounds__(256) float8_widen(const NUMBER* from, bfloat_t* into) {
  INDEX i = (INDEX)blockIdx.x * 256 + threadIdx.x;
  if (i < ELEMENTS) into[i] = to<bfloat_t>(load(from[i]));
}
