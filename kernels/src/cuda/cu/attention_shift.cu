// What is subtracted from do v of each query: sum(do o) - dl. A warp makes one.
//
// Macros besides those of attention: HAS_GRADIENT, whether there is dl.

extern "C" __global__ void __launch_bounds__(256) shift(const T* o, const T* of_o,
#if HAS_GRADIENT
    const float* of_l,
#endif
    float* shifts) {
  INDEX row = (INDEX)blockIdx.x * 8 + threadIdx.x / 32;
  if (row >= (INDEX)BATCH * QUERIES * HEADS) return;
  float sum = 0.0f;
  for (u32 at = threadIdx.x % 32; at < WIDTH; at += 32) sum = fmaf(load(o[row * WIDTH + at]), load(of_o[row * WIDTH + at]), sum);
  sum = warp_sum(sum);
#if HAS_GRADIENT
  sum -= of_l[row];
#endif
  if (threadIdx.x % 32 == 0) shifts[row] = sum;
}
