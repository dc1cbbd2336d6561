// Attention by multiplications and sums of f32, with a running maximum and sum of each query: a block has 64 queries of a head and COLUMNS
// elements of their results, and goes over keys 64 at a time.
//
// Macros besides those of attention: COLUMNS, a multiple of 64; PARTS of a row that have so many columns.

// One block of a multiprocessor at least: left to itself the compiler keeps registers in memory to have more of them.
extern "C" __global__ void __launch_bounds__(256, 1) attention(const T* q, const T* k, const T* v, T* o, float* l BIAS ORIGINS) {
  __shared__ alignas(16) union { struct { Slab left, right; }; Rows values; } room;
  __shared__ alignas(16) float weights[64][PITCH];
  u32 part = blockIdx.x % PARTS, tile = blockIdx.x / PARTS % ((QUERIES + 63) / 64);
  u32 rest = blockIdx.x / PARTS / ((QUERIES + 63) / 64), head = rest % HEADS, batch = rest / HEADS;
  u32 start = tile * 64, count = QUERIES - start < 64 ? QUERIES - start : 64;
  u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  const T* own = q + query_row(batch, start, head) * WIDTH;
  float sums[4][COLUMNS / 16] = {}, greatest[4], total[4] = {};
  [[maybe_unused]] const Dropping dropping = DROPPING;
#pragma unroll
  for (int i = 0; i < 4; ++i) greatest[i] = -INFINITE;
  u32 end = any_seen(start + count - 1, AHEAD);
  for (u32 first = all_passed(start, AHEAD) / 64 * 64; first < end; first += 64) {
    u32 keys = KEYS - first < 64 ? KEYS - first : 64;
    INDEX at = key_row(batch, first, head / SHARING) * WIDTH;
    float scores[4][4];
    products(scores, room.left, room.right, own, HEADS * WIDTH, count, k + at, SHARED * WIDTH, keys);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u32 sees = seen(start + row + i, AHEAD), before = passed(start + row + i, AHEAD);
      float most = -INFINITE;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        u32 key = first + column + j;
        scores[i][j] = SCORE(scores[i][j], batch, head, start + row + i, key);
        if (key < sees && key >= before) most = fmaxf(most, scores[i][j]);
      }
#pragma unroll
      for (int lane = 8; lane > 0; lane >>= 1) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, lane));
      most = fmaxf(most, greatest[i]);
      float base = most == -INFINITE ? 0.0f : most, shrink = expf(greatest[i] - base), sum = 0.0f;
      // Two at a time: of four exponentials side by side the compiler keeps registers in memory on sm_80.
#pragma unroll 2
      for (int j = 0; j < 4; ++j) {
        u32 key = first + column + j;
        float weight = key < sees && key >= before ? expf(scores[i][j] - base) : 0.0f;
        weights[column + j][row + i] = dropping.keep(weight, batch, head, start + row + i, key);
        sum += weight;
      }
#pragma unroll
      for (int lane = 8; lane > 0; lane >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, lane);
      total[i] = total[i] * shrink + sum;
      greatest[i] = most;
#pragma unroll
      for (int j = 0; j < COLUMNS / 16; ++j) sums[i][j] *= shrink;
    }
    add_rows(sums, weights, room.values, v + at, SHARED * WIDTH, keys, part * COLUMNS);
  }
  float factors[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    factors[i] = total[i] == 0.0f ? 0.0f : 1.0f / total[i];
    bool writes = part == 0 && column == 0 && row + i < count;
    if (writes) l[query_row(batch, start + row + i, head)] = greatest[i] + logf(total[i]);
  }
  write_rows(o + query_row(batch, start, head) * WIDTH, HEADS * WIDTH, count, part * COLUMNS, sums, factors);
}
