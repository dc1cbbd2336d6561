// Sums, greatest and least over some dims. A block computes RESULTS_AT_ONCE results with LANES threads each; chunk blockIdx.y of the
// elements of a result goes to one of CHUNKS partial results, which `join` combines.
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
  INDEX r = (INDEX)blockIdx.x * JOINED + OWN_RESULT;
  bool is_there = r < RESULTS;
#if SUMS
  double sum = 0.0;
  for (u32 chunk = OWN_CHUNK; is_there && chunk < CHUNKS; chunk += CHUNKS_AT_ONCE) sum += (double)partial[(INDEX)chunk * RESULTS + r];
  sum = join_threads(sum, [](double a, double b) { return a + b; });
  if (threadIdx.x < JOINED && is_there) result[r] = to<T>((V)(sum / (double)DIVISOR));
#else
  V all = IDENTITY;
  for (u32 chunk = OWN_CHUNK; is_there && chunk < CHUNKS; chunk += CHUNKS_AT_ONCE) {
    V x = partial[(INDEX)chunk * RESULTS + r];
    all = COMBINE(all, x);
  }
  all = join_threads(all, [](V a, V b) { return COMBINE(a, b); });
  if (threadIdx.x < JOINED && is_there) result[r] = finished(all);
#endif
}
