// Sums, greatest and least over some dims. A block computes RESULTS_AT_ONCE results with LANES threads each; chunk blockIdx.y of the
// elements of a result goes to one of CHUNKS partial results, which `join` combines in their order.
//
// Macros: INDEX, the type of positions; V, float or i64; value(i, ...), an element; ARGUMENTS and PARAMETERS of that function;
// KEPT(r) and REDUCED(e), which add up to a position; RESULTS, COUNT, CHUNKS, CHUNK, LANES, LANES_ARE_INNER; COMBINE(a, b),
// IDENTITY; SUMS, whether it is a sum, which is joined as double; DIVISOR, the number of elements of a mean, else 1; T, the
// element type of results.

#define RESULTS_AT_ONCE (256 / LANES)

__device__ __forceinline__ T finished(V x) { return to<T>((V)(DIVISOR == 1 ? x : x / (V)DIVISOR)); }

extern "C" __global__ void __launch_bounds__(256) reduce(PARAMETERS, V* partial, T* result) {
  __shared__ V parts[256];
  u32 lane = LANES_ARE_INNER ? threadIdx.x % LANES : threadIdx.x / RESULTS_AT_ONCE;
  u32 local = LANES_ARE_INNER ? threadIdx.x / LANES : threadIdx.x % RESULTS_AT_ONCE;
  INDEX r = (INDEX)blockIdx.x * RESULTS_AT_ONCE + local;
  V sum = IDENTITY;
  if (r < RESULTS) {
    INDEX base = KEPT(r);
    INDEX end = (INDEX)(blockIdx.y + 1) * CHUNK;
    if (end > COUNT) end = COUNT;
    for (INDEX e = (INDEX)blockIdx.y * CHUNK + lane; e < end; e += LANES) {
      V x = value(base + REDUCED(e), ARGUMENTS);
      sum = COMBINE(sum, x);
    }
  }
  V* own = parts + local * LANES;
  own[lane] = sum;
#pragma unroll
  for (u32 half = LANES / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) own[lane] = COMBINE(own[lane], own[lane + half]);
  }
  if (lane == 0 && r < RESULTS) {
    if (CHUNKS == 1) {
      result[r] = finished(own[0]);
    } else {
      partial[(INDEX)blockIdx.y * RESULTS + r] = own[0];
    }
  }
}

extern "C" __global__ void __launch_bounds__(256) join(const V* partial, T* result) {
  INDEX r = (INDEX)blockIdx.x * 256 + threadIdx.x;
  if (r >= RESULTS) return;
#if SUMS
  double sum = 0.0;
  for (u32 chunk = 0; chunk < CHUNKS; ++chunk) sum += (double)partial[(INDEX)chunk * RESULTS + r];
  result[r] = to<T>((V)(sum / (double)DIVISOR));
#else
  V all = IDENTITY;
  for (u32 chunk = 0; chunk < CHUNKS; ++chunk) {
    V x = partial[(INDEX)chunk * RESULTS + r];
    all = COMBINE(all, x);
  }
  result[r] = finished(all);
#endif
}
