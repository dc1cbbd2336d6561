// The sum of a function of all elements. Each block adds up a part; `join` adds these, as double.
//
// Macros: T; ELEMENTS; WIDTH, how many a thread takes at once, which divides them; STEPS, how often it does; PARTS, blocks; VALUE(x);
// INDEX, the type of positions.

extern "C" __global__ void __launch_bounds__(256) fold(const T* x, float* parts) {
  float sum = 0.0f;
  for (u32 step = 0; step < STEPS; ++step) {
    INDEX i = (((INDEX)blockIdx.x * STEPS + step) * 256 + threadIdx.x) * WIDTH;
    if (i < ELEMENTS) {
      Vec<T, WIDTH> part = *(const Vec<T, WIDTH>*)(x + i);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) {
        float value = load(part.at[k]);
        sum += VALUE(value);
      }
    }
  }
  sum = block_sum<256>(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(256) join(const float* parts, float* result) {
  __shared__ double sums[256];
  double sum = 0.0;
  for (u32 part = threadIdx.x; part < PARTS; part += 256) sum += (double)parts[part];
  sums[threadIdx.x] = sum;
#pragma unroll
  for (u32 half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *result = (float)sums[0];
}
