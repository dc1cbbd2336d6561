// Attention of halves by the tensor cores: a block of four warps has 64 queries of a head, 16 a warp, and goes over keys TILE_KEYS at a
// time, with a running maximum and sum of each query. Values are on their way while scores are computed, and the next keys while
// values are added up. Blocks with most to do come first.
//
// Macros besides those of attention and of tiles of halves: TILE_KEYS, 64 or 32; rows of both tiles together are at least 64.

extern "C" __global__ void OF_THREADS(128) attention(const T* q, const T* k, const T* v, T* o, float* l BIAS ORIGINS) {
  __shared__ alignas(ROW_ALIGNMENT) Row room[2 * TILE_KEYS * PANELS];
  Row *keys = room, *values = room + TILE_KEYS * PANELS;
  const u32 tiles = (QUERIES + 63) / 64;
  u32 tile = tiles - 1 - blockIdx.x / (HEADS * BATCH), head = blockIdx.x % HEADS, batch = blockIdx.x / HEADS % BATCH;
  u32 start = tile * 64, count = QUERIES - start < 64 ? QUERIES - start : 64;
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  bring<64>(room, q + query_row(batch, start, head) * WIDTH, HEADS * WIDTH, count);
  wait();
  Held own;
  own.take(room);
  __syncthreads();
  u32 row = start + warp * 16 + lane / 4, sees[2] = {seen(row, AHEAD), seen(row + 8, AHEAD)};
  u32 before[2] = {passed(row, AHEAD), passed(row + 8, AHEAD)};
  u32 begin = all_passed(start, AHEAD) / TILE_KEYS * TILE_KEYS, end = any_seen(start + count - 1, AHEAD);
  Sums<DEPTH> sums;
  sums.clear();
  float greatest[2] = {-INFINITE, -INFINITE}, total[2] = {};
  [[maybe_unused]] const Dropping dropping = DROPPING;
  const T *all_keys = k + key_row(batch, 0, head / SHARING) * WIDTH, *all_values = v + key_row(batch, 0, head / SHARING) * WIDTH;
  const INDEX pitch = SHARED * WIDTH;
  if (end > begin) bring<TILE_KEYS>(keys, all_keys + begin * pitch, pitch, KEYS - begin);
  for (u32 first = begin; first < end; first += TILE_KEYS) {
    wait();
    bring<TILE_KEYS>(values, all_values + first * pitch, pitch, KEYS - first);
    Sums<TILE_KEYS> scores;
    scores.begin_turned(own, keys);
    finish<0>();
    scores.settled();
    auto weigh = [&](auto whole) {
#pragma unroll
      for (u32 half = 0; half < 2; ++half) {
        float most = greatest[half];
#pragma unroll
        for (u32 j = 0; j < TILE_KEYS / 4; ++j) {
          float& score = scores.at[j / 2][half * 2 + j % 2];
          u32 key = first + j / 2 * 8 + lane % 4 * 2 + j % 2;
          score = SCORE_OR_PRODUCT(score, batch, head, row + half * 8, key);
          if (!whole.value && (key >= sees[half] || key < before[half])) score = -INFINITE;
          most = fmaxf(most, score);
        }
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
        float base = most == -INFINITE ? 0.0f : most * FACTOR, sum = 0.0f;
        float shrink = power_of_two(fmaf(greatest[half], FACTOR, -base));
#pragma unroll
        for (u32 j = 0; j < TILE_KEYS / 4; ++j) {
          float& weight = scores.at[j / 2][half * 2 + j % 2];
          weight = power_of_two(fmaf(weight, FACTOR, -base));
          sum += weight;
#if DROPS
          weight = dropping.keep(weight, batch, head, row + half * 8, first + j / 2 * 8 + lane % 4 * 2 + j % 2);
#endif
        }
        // Of the four lanes that have a row each keeps its own part.
        total[half] = fmaf(total[half], shrink, sum);
        greatest[half] = most;
#pragma unroll
        for (u32 j = 0; j < DEPTH / 8; ++j) {
          sums.at[j][half * 2] *= shrink;
          sums.at[j][half * 2 + 1] *= shrink;
        }
      }
    };
    if (sees_all(start, 64, first, TILE_KEYS, AHEAD)) weigh(Whole{});
    else weigh(Part{});
    u32 weights[TILE_KEYS / 16][4];
    scores.as_factor(weights);
    wait();
    if (first + TILE_KEYS < end) bring<TILE_KEYS>(keys, all_keys + (first + TILE_KEYS) * pitch, pitch, KEYS - first - TILE_KEYS);
    sums.add_weighted(weights, values);
    finish<0>();
    sums.settled();
  }
  float factors[2];
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    total[half] += __shfl_xor_sync(ALL_LANES, total[half], 1);
    total[half] += __shfl_xor_sync(ALL_LANES, total[half], 2);
    factors[half] = total[half] == 0.0f ? 0.0f : 1.0f / total[half];
    u32 query = row + half * 8;
    if (lane % 4 == 0 && query < QUERIES) l[query_row(batch, query, head)] = greatest[half] * (FACTOR * LOG_2) + logf(total[half]);
  }
  if (warp * 16 >= count) return;
  sums.write(o + query_row(batch, start + warp * 16, head) * WIDTH, HEADS * WIDTH, count - warp * 16, factors);
}
