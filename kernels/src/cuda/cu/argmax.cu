// The place of the first greatest element of each row; what is no number is greater than all numbers.
//
// Macros: those of rows; T; V, float or i64.

struct Best {
  V value;
  u32 place;
};

// Whether a comes before b: it is greater, or it is as great and its place is lower.
__device__ __forceinline__ bool before(Best a, Best b) {
  if (a.place >= EXTENT || b.place >= EXTENT) return a.place < b.place;
  bool a_is_none = a.value != a.value, b_is_none = b.value != b.value;
  if (a_is_none != b_is_none) return a_is_none;
  if (a_is_none || a.value == b.value) return a.place < b.place;
  return a.value > b.value;
}

extern "C" __global__ void __launch_bounds__(THREADS) argmax(const T* operand, i64* result) {
  __shared__ Best all[THREADS];
  Own own;
  const T* row = operand + own.start();
  Best best = {(V)0, EXTENT};
  for (u32 at = own.lane; at < EXTENT; at += LANES) {
    Best next = {load(row[(u64)at * INNER]), at};
    if (before(next, best)) best = next;
  }
  u32 next_lane = INNER == 1 ? 1 : ROWS;
  all[threadIdx.x] = best;
#pragma unroll
  for (u32 half = LANES / 2; half > 0; half /= 2) {
    __syncthreads();
    if (own.lane < half) {
      Best other = all[threadIdx.x + half * next_lane];
      if (before(other, all[threadIdx.x])) all[threadIdx.x] = other;
    }
  }
  if (own.first) result[own.row] = EXTENT == 0 ? 0 : all[threadIdx.x].place;
}
