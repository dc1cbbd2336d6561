// The gradient of kernels from the sums of all chunks, in their order.
//
// Macros besides those of convolutions: ELEMENTS of the kernels; CHUNKS; PARTIAL(o, c, tap), where the sum of an element stands in a
// chunk; JOINED(o, c, tap), where it goes; MADE, the element type there.

extern "C" __global__ void __launch_bounds__(256) convolution_join(const float* partial, MADE* joined) {
  INDEX e = (INDEX)blockIdx.x * 256 + threadIdx.x;
  if (e >= ELEMENTS) return;
  u32 tap = (u32)(e % TAPS), c = (u32)(e / TAPS % INPUTS), o = (u32)(e / TAPS / INPUTS);
  INDEX at = PARTIAL(o, c, tap);
  double sum = 0.0;
  for (u32 chunk = 0; chunk < CHUNKS; ++chunk) sum += (double)partial[(INDEX)chunk * ELEMENTS + at];
  joined[JOINED(o, c, tap)] = to<MADE>((float)sum);
}
