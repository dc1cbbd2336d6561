// The best of each row, one after the other: the threads of a row look for the best of what comes behind the one before.
//
// Macros: those of rows, with INNER 1; T; GREATEST; BEST, how many of a row.

extern "C" __global__ void __launch_bounds__(THREADS) top_k(const T* operand, T* values, i64* places) {
  __shared__ Ranked all[THREADS];
  Own own;
  const T* row = operand + own.start();
  u32 leader = threadIdx.x - own.lane;
  Ranked last;
  for (u32 found = 0; found < BEST; ++found) {
    Ranked best = LAST;
    for (u32 at = own.lane; at < EXTENT; at += LANES) {
      Ranked next = ranked(row[at], at);
      if ((found == 0 || before(last, next)) && before(next, best)) best = next;
    }
    __syncthreads();
    all[threadIdx.x] = best;
#pragma unroll
    for (u32 half = LANES / 2; half > 0; half /= 2) {
      __syncthreads();
      if (own.lane < half && before(all[threadIdx.x + half], all[threadIdx.x])) all[threadIdx.x] = all[threadIdx.x + half];
    }
    __syncthreads();
    last = all[leader];
    if (own.first) {
      values[own.row * BEST + found] = row[last.place];
      places[own.row * BEST + found] = last.place;
    }
  }
}
