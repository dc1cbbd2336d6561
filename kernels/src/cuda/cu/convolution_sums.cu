// The gradient of kernels by one thread for each element, whose places go in chunks: chunk blockIdx.y makes a sum of its own.
//
// Macros besides those of convolutions: ELEMENTS of the kernels; COUNT of places of all images; CHUNK of them for a sum.

extern "C" __global__ void __launch_bounds__(256) convolution_sums(const T* x, const T* dy, float* partial) {
  INDEX e = (INDEX)blockIdx.x * 256 + threadIdx.x;
  if (e >= ELEMENTS) return;
  u32 o = (u32)(e % FEATURES), c = (u32)(e / FEATURES % INPUTS), tap = (u32)(e / FEATURES / INPUTS);
  u32 i = tap / KERNEL_W, j = tap % KERNEL_W, channel = o / OUTPUTS * GROUP + c;
  INDEX end = (INDEX)(blockIdx.y + 1) * CHUNK;
  if (end > COUNT) end = COUNT;
  float sum = 0.0f;
  for (INDEX place = (INDEX)blockIdx.y * CHUNK; place < end; ++place) {
    u32 q = (u32)(place % SHOWN_W), p = (u32)(place / SHOWN_W % SHOWN_H), n = (u32)(place / SHOWN_W / SHOWN_H);
    u32 row, column;
    if (!row_of(p, i, row) || !column_of(q, j, column)) continue;
    sum = fmaf(load(x[in_x(n, row, column, channel)]), load(dy[in_y(n, p, q, o)]), sum);
  }
  partial[(INDEX)blockIdx.y * ELEMENTS + e] = sum;
}
