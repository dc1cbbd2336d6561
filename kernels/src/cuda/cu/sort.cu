// The best of each row, which is sorted as a whole in shared memory (Batcher's bitonic sort). A block for each row.
//
// Macros: T; GREATEST; BEST, how many of a row; EXTENT, elements of a row; SIZE, a power of two that is no less; THREADS, half of it or less.

extern "C" __global__ void __launch_bounds__(THREADS) sort(const T* operand, T* values, i64* places) {
  __shared__ Ranked all[SIZE];
  u64 row = blockIdx.x;
  operand += row * EXTENT;
  for (u32 at = threadIdx.x; at < SIZE; at += THREADS) {
    if (at < EXTENT) all[at] = ranked(operand[at], at);
    else all[at] = LAST;
  }
  for (u32 run = 2; run <= SIZE; run *= 2) {
    for (u32 distance = run / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (u32 pair = threadIdx.x; pair < SIZE / 2; pair += THREADS) {
        u32 low = pair / distance * distance * 2 + pair % distance, high = low + distance;
        bool rising = (low & run) == 0;
        Ranked a = all[low], b = all[high];
        if (before(b, a) == rising) {
          all[low] = b;
          all[high] = a;
        }
      }
    }
  }
  __syncthreads();
  for (u32 at = threadIdx.x; at < BEST; at += THREADS) {
    values[row * BEST + at] = operand[all[at].place];
    places[row * BEST + at] = all[at].place;
  }
}
