// One pass over the values of a chain: writes what is elementwise, and combines what is reduced. A block has RESULTS_AT_ONCE times
// KEPT_WIDTH results with LANES threads each, and chunk blockIdx.y of their elements; `join` combines the chunks.
//
// Macros: INDEX, the type of positions; V, float; FOLDS reductions; elements(i, found, ...) computes WIDTH elements from i on, of which those of
// KEPT_WIDTH results or REDUCED_WIDTH elements of one lie side by side; PARAMETERS and ARGUMENTS of that function; finish(f, r, x, ...)
// writes a result, with RESULT_PARAMETERS and RESULT_ARGUMENTS; KEPT(r) and REDUCED(e), which add up to a position; RESULTS, COUNT,
// CHUNKS, CHUNK, LANES, LANES_ARE_INNER; of reduction f COMBINE(f, a, b), IDENTITY(f), and SUMS(f), whether it is a sum.

#define RESULTS_AT_ONCE (256 / LANES)

extern "C" __global__ void __launch_bounds__(256) pass(PARAMETERS, float* partial) {
  __shared__ float parts[FOLDS][KEPT_WIDTH][256];
  u32 lane = LANES_ARE_INNER ? threadIdx.x % LANES : threadIdx.x / RESULTS_AT_ONCE;
  u32 local = LANES_ARE_INNER ? threadIdx.x / LANES : threadIdx.x % RESULTS_AT_ONCE;
  INDEX r = ((INDEX)blockIdx.x * RESULTS_AT_ONCE + local) * KEPT_WIDTH;
  float sums[FOLDS][KEPT_WIDTH];
#pragma unroll
  for (int f = 0; f < FOLDS; ++f) {
#pragma unroll
    for (int k = 0; k < KEPT_WIDTH; ++k) sums[f][k] = IDENTITY(f);
  }
  if (r < RESULTS) {
    INDEX base = KEPT(r);
    INDEX end = (INDEX)(blockIdx.y + 1) * CHUNK;
    if (end > COUNT) end = COUNT;
    for (INDEX e = (INDEX)blockIdx.y * CHUNK + lane * REDUCED_WIDTH; e < end; e += LANES * REDUCED_WIDTH) {
      Folded found[WIDTH];
      elements(base + REDUCED(e), found, ARGUMENTS);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) {
#pragma unroll
        for (int f = 0; f < FOLDS; ++f) sums[f][k % KEPT_WIDTH] = COMBINE(f, sums[f][k % KEPT_WIDTH], found[k].at[f]);
      }
    }
  }
  u32 own = local * LANES + lane;
#pragma unroll
  for (int f = 0; f < FOLDS; ++f) {
#pragma unroll
    for (int k = 0; k < KEPT_WIDTH; ++k) parts[f][k][own] = sums[f][k];
  }
#pragma unroll
  for (u32 half = LANES / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) {
#pragma unroll
      for (int f = 0; f < FOLDS; ++f) {
#pragma unroll
        for (int k = 0; k < KEPT_WIDTH; ++k) parts[f][k][own] = COMBINE(f, parts[f][k][own], parts[f][k][own + half]);
      }
    }
  }
  if (lane != 0 || r >= RESULTS) return;
#pragma unroll
  for (int f = 0; f < FOLDS; ++f) {
#pragma unroll
    for (int k = 0; k < KEPT_WIDTH; ++k) partial[((INDEX)blockIdx.y * FOLDS + f) * RESULTS + r + k] = parts[f][k][own];
  }
}

extern "C" __global__ void __launch_bounds__(256) join(const float* partial, RESULT_PARAMETERS) {
  INDEX at = (INDEX)blockIdx.x * JOINED + OWN_RESULT;
  bool is_there = at < (INDEX)FOLDS * RESULTS;
  u32 f = is_there ? (u32)(at / RESULTS) : 0;
  double sum = 0.0;
  float all = IDENTITY(f);
  if (is_there) {
    for (u32 chunk = OWN_CHUNK; chunk < CHUNKS; chunk += CHUNKS_AT_ONCE) {
      float x = partial[(INDEX)chunk * FOLDS * RESULTS + at];
      sum += (double)x;
      all = COMBINE(f, all, x);
    }
  }
  sum = join_threads(sum, [](double a, double b) { return a + b; });
  all = join_threads(all, [=](float a, float b) { return COMBINE(f, a, b); });
  if (threadIdx.x < JOINED && is_there) finish(f, at % RESULTS, SUMS(f) ? sum : (double)all, RESULT_ARGUMENTS);
}
