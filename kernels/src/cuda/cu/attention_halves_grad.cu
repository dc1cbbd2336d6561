// The gradient of attention of halves by the tensor cores. `of_keys` has 64 keys of a head in a block of four warps, 16 a warp, and goes
// over the heads that read it and their queries; `of_queries` has 64 queries, and goes over keys.
//
// Macros besides those of attention and of tiles of halves: TILE_QUERIES and TILE_KEYS, multiples of 16, the other rows at a time;
// twice TILE_KEYS is at least 64.

// Rows that are no whole words come element by element. For these the assembler would rather keep a register in memory than have fewer
// blocks on a multiprocessor, unless it is told that one is enough.
#if WIDTH % 8
#define BOUNDS __launch_bounds__(128, 1)
#else
#define BOUNDS OF_THREADS(128)
#endif

// p of a score, and ds of its product before it is scaled.
__device__ __forceinline__ void weigh(float& weight, float& of_score, float score, bool visible, float of_row, float shift) {
  float product = weight;
  weight = visible ? expf(score - of_row) : 0.0f;
  of_score = visible ? weight * (of_score - shift) : 0.0f;
  if (CAPPED) of_score *= slope(product);
}

extern "C" __global__ void BOUNDS of_keys(const T* q, const T* k, const T* v, const float* l, const T* of_o,
                                          const float* shifts, T* dk, T* dv BIAS ORIGINS) {
  __shared__ alignas(16) Row keys[64], values[64], queries[TILE_QUERIES], outputs[TILE_QUERIES];
  __shared__ float rows[TILE_QUERIES], own_shifts[TILE_QUERIES];
  const u32 tiles = (KEYS + 63) / 64;
  u32 tile = blockIdx.x % tiles, shared = blockIdx.x / tiles % SHARED, batch = blockIdx.x / tiles / SHARED;
  u32 first = tile * 64, count = KEYS - first < 64 ? KEYS - first : 64, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  INDEX at = key_row(batch, first, shared) * WIDTH;
  bring<64>(keys, k + at, SHARED * WIDTH, count);
  bring<64>(values, v + at, SHARED * WIDTH, count);
  Sums<DEPTH> of_key, of_value;
  of_key.clear();
  of_value.clear();
  u32 key = first + warp * 16 + lane / 4;
  for (u32 head = shared * SHARING; head < (shared + 1) * SHARING; ++head) {
    u32 end = behind_seeing(first + 63, AHEAD);
    for (u32 start = first_seeing(first, AHEAD) / TILE_QUERIES * TILE_QUERIES; start < end; start += TILE_QUERIES) {
      __syncthreads();
      INDEX from = query_row(batch, start, head);
      bring<TILE_QUERIES>(queries, q + from * WIDTH, HEADS * WIDTH, QUERIES - start);
      bring<TILE_QUERIES>(outputs, of_o + from * WIDTH, HEADS * WIDTH, QUERIES - start);
      if (threadIdx.x < TILE_QUERIES) {
        bool there = start + threadIdx.x < QUERIES;
        rows[threadIdx.x] = there ? FINITE(l[from + threadIdx.x * HEADS]) : 0.0f;
        own_shifts[threadIdx.x] = there ? shifts[from + threadIdx.x * HEADS] : 0.0f;
      }
      wait();
      Sums<TILE_QUERIES> weights, of_scores;
      weights.clear();
      of_scores.clear();
      weights.add_turned(keys + warp * 16, queries);
      of_scores.add_turned(values + warp * 16, outputs);
#pragma unroll
      for (u32 j = 0; j < TILE_QUERIES / 8; ++j) {
#pragma unroll
        for (u32 e = 0; e < 4; ++e) {
          u32 query = j * 8 + lane % 4 * 2 + e % 2;
          u32 own = key + e / 2 * 8;
          bool visible = own < seen(start + query, AHEAD) && own >= passed(start + query, AHEAD);
          float score = SCORE(weights.at[j][e], batch, head, start + query, own);
          weigh(weights.at[j][e], of_scores.at[j][e], score, visible, rows[query], own_shifts[query]);
        }
      }
      of_value.add_weighted(weights, outputs);
      of_key.add_weighted(of_scores, queries);
    }
  }
  wait();
  if (warp * 16 >= count) return;
  at = key_row(batch, first + warp * 16, shared) * WIDTH;
  of_key.write(dk + at, SHARED * WIDTH, count - warp * 16, {SCALE, SCALE});
  of_value.write(dv + at, SHARED * WIDTH, count - warp * 16, {1.0f, 1.0f});
}

extern "C" __global__ void BOUNDS of_queries(const T* q, const T* k, const T* v, const float* l, const T* of_o,
                                             const float* shifts, T* dq BIAS ORIGINS) {
  __shared__ alignas(16) Row room[2 * TILE_KEYS];
  Row *keys = room, *values = room + TILE_KEYS;
  const u32 tiles = (QUERIES + 63) / 64;
  u32 tile = blockIdx.x % tiles, head = blockIdx.x / tiles % HEADS, batch = blockIdx.x / tiles / HEADS;
  u32 start = tile * 64, count = QUERIES - start < 64 ? QUERIES - start : 64;
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  u32 own[DEPTH / 16][4], outputs[DEPTH / 16][4];
  INDEX from = query_row(batch, start, head) * WIDTH;
  bring<64>(room, q + from, HEADS * WIDTH, count);
  wait();
#pragma unroll
  for (u32 at = 0; at < DEPTH / 16; ++at) first_factor(own[at], room + warp * 16, at * 16);
  __syncthreads();
  bring<64>(room, of_o + from, HEADS * WIDTH, count);
  wait();
#pragma unroll
  for (u32 at = 0; at < DEPTH / 16; ++at) first_factor(outputs[at], room + warp * 16, at * 16);
  u32 row = start + warp * 16 + lane / 4, sees[2] = {seen(row, AHEAD), seen(row + 8, AHEAD)};
  u32 before[2] = {passed(row, AHEAD), passed(row + 8, AHEAD)};
  float of_rows[2], own_shifts[2];
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    bool there = row + half * 8 < QUERIES;
    INDEX place = query_row(batch, row + half * 8, head);
    of_rows[half] = there ? FINITE(l[place]) : 0.0f;
    own_shifts[half] = there ? shifts[place] : 0.0f;
  }
  Sums<DEPTH> sums;
  sums.clear();
  u32 end = seen(start + count - 1, AHEAD);
  for (u32 first = passed(start, AHEAD) / TILE_KEYS * TILE_KEYS; first < end; first += TILE_KEYS) {
    __syncthreads();
    INDEX at = key_row(batch, first, head / SHARING) * WIDTH;
    bring<TILE_KEYS>(keys, k + at, SHARED * WIDTH, KEYS - first);
    bring<TILE_KEYS>(values, v + at, SHARED * WIDTH, KEYS - first);
    wait();
    Sums<TILE_KEYS> weights, of_scores;
    weights.clear();
    of_scores.clear();
    weights.add_turned(own, keys);
    of_scores.add_turned(outputs, values);
#pragma unroll
    for (u32 j = 0; j < TILE_KEYS / 8; ++j) {
#pragma unroll
      for (u32 e = 0; e < 4; ++e) {
        u32 own = first + j * 8 + lane % 4 * 2 + e % 2;
        bool visible = own < sees[e / 2] && own >= before[e / 2];
        float score = SCORE(weights.at[j][e], batch, head, row + e / 2 * 8, own);
        weigh(weights.at[j][e], of_scores.at[j][e], score, visible, of_rows[e / 2], own_shifts[e / 2]);
      }
    }
    sums.add_weighted(of_scores, keys);
  }
  if (warp * 16 >= count) return;
  sums.write(dq + query_row(batch, start + warp * 16, head) * WIDTH, HEADS * WIDTH, count - warp * 16, {SCALE, SCALE});
}
