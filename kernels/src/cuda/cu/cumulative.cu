// Running sums of rows, kept in V, and each rounded once.
//
// Macros: T; V, double or i64; COUNT, rows; EXTENT, elements of a row; INNER, how far they are apart; EXCLUSIVE, whether an element is left out
// of its own sum; REVERSE, whether sums begin at the end; SCANNED, whether a block sums a row in parts of 256 elements, or a thread
// each row.

__device__ __forceinline__ double wide(float x) { return x; }
__device__ __forceinline__ i64 wide(i64 x) { return x; }
__device__ __forceinline__ float narrow(double x) { return (float)x; }
__device__ __forceinline__ i64 narrow(i64 x) { return x; }

// Where the element is that is summed as number i.
__device__ __forceinline__ u64 place(u64 row, u64 i) {
  u64 at = REVERSE ? EXTENT - 1 - i : i;
  return row / INNER * ((u64)EXTENT * INNER) + at * INNER + row % INNER;
}

#if SCANNED
// Two blocks of a multiprocessor at least: where it is not told the compiler keeps registers in memory to have eight.
extern "C" __global__ void __launch_bounds__(256, 2) cumulative(const T* x, T* out) {
  __shared__ V sums[8];
  u64 row = blockIdx.x;
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  V before = (V)0;
  for (u64 first = 0; first < EXTENT; first += 256) {
    u64 i = first + threadIdx.x;
    V own = i < EXTENT ? wide(load(x[place(row, i)])) : (V)0, up_to = own;
#pragma unroll
    for (u32 distance = 1; distance < 32; distance *= 2) {
      V other = __shfl_up_sync(ALL_LANES, up_to, distance);
      if (lane >= distance) up_to += other;
    }
    __syncthreads();
    if (lane == 31) sums[warp] = up_to;
    // What comes before the thread's own element.
    V others = __shfl_up_sync(ALL_LANES, up_to, 1);
    if (lane == 0) others = (V)0;
    __syncthreads();
    V skipped = before;
#pragma unroll
    for (u32 other = 0; other < 8; ++other) {
      if (other < warp) skipped += sums[other];
      before += sums[other];
    }
    V sum = skipped + (EXCLUSIVE ? others : up_to);
    if (i < EXTENT) out[place(row, i)] = to<T>(narrow(sum));
  }
}
#else
extern "C" __global__ void __launch_bounds__(256, 2) cumulative(const T* x, T* out) {
  u64 row = (u64)blockIdx.x * 256 + threadIdx.x;
  if (row >= COUNT) return;
  V sum = (V)0;
  for (u64 i = 0; i < EXTENT; ++i) {
    u64 at = place(row, i);
    V before = sum;
    sum += wide(load(x[at]));
    out[at] = to<T>(narrow(EXCLUSIVE ? before : sum));
  }
}
#endif
