// The gradient of attention of halves by the tensor cores. `of_keys` has 64 keys of a head in a block of four warps, 16 a warp, and goes
// over the heads that read it and their queries; `of_queries` has 64 queries, and goes over keys. What is next is on its way meanwhile, as
// far as there is room. Blocks with most to do come first.
//
// Macros besides those of attention and of tiles of halves: TILE_QUERIES and TILE_KEYS, multiples of 16, the other rows at a time;
// twice TILE_KEYS is at least 64.

// Rows that are no whole words come element by element. For these the assembler would rather keep a register in memory than have fewer
// blocks on a multiprocessor, unless it is told that one is enough; before compute capability 9.0 for keys that are gone over as well.
#if WIDTH % 8
#define BOUNDS __launch_bounds__(128, 1)
#else
#define BOUNDS OF_THREADS(128)
#endif
#if __CUDA_ARCH__ < 900
#define BOUNDS_OVER_KEYS __launch_bounds__(128, 1)
#elif GROUPED && DEPTH == 64
// Three blocks have room on a multiprocessor: while one waits for its products, another computes exponentials.
#define BOUNDS_OVER_KEYS __launch_bounds__(128, 3)
#else
#define BOUNDS_OVER_KEYS BOUNDS
#endif

#if GROUPED
#undef TILE_QUERIES
#undef TILE_KEYS
#define TILE_QUERIES (DEPTH == 64 ? 64 : 32)
#define TILE_KEYS 64
#endif
// How many tiles have room: one that is used, and one that comes.
#if DEPTH <= 64
#define BUFFERS 2
#else
#define BUFFERS 1
#endif

// ds of a product before it is scaled, from p and what the product was.
__device__ __forceinline__ float of_product(float weight, float of_weight, float shift, [[maybe_unused]] float product) {
  float found = weight * (of_weight - shift);
  return CAPPED ? found * slope(product) : found;
}

// A log-sum-exp as an exponent of 2; of a query that sees nothing it is any number.
__device__ __forceinline__ float exponent(float l) { return l == -INFINITE ? 0.0f : l * LOG2_E; }

// Brings a number.
__device__ __forceinline__ void bring_one(float* to_, const float* from, bool there) {
  if (there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((u32)__cvta_generic_to_shared(to_)), "l"(from) : "memory");
  } else {
    *to_ = 0.0f;
  }
}

extern "C" __global__ void BOUNDS of_keys(const T* q, const T* k, const T* v, const float* l, const T* of_o,
                                          const float* shifts, T* dk, T* dv BIAS ORIGINS) {
  __shared__ alignas(ROW_ALIGNMENT) Row room[BUFFERS][2 * TILE_QUERIES * PANELS];
  __shared__ float rows[BUFFERS][TILE_QUERIES], own_shifts[BUFFERS][TILE_QUERIES];
#if GROUPED && BUFFERS == 2
  // Keys are in registers before anything else comes; values lie where products read them.
  __shared__ alignas(ROW_ALIGNMENT) Row values[64];
  Row* keys = room[0];
  Held own_keys;
  Lying own_values;
#elif BUFFERS == 2
  // They are in registers before anything else comes.
  Row *keys = room[0], *values = room[0] + 64;
  Held own_keys, own_values;
#elif GROUPED
  __shared__ alignas(ROW_ALIGNMENT) Row values[64 * PANELS];
  Row* keys = room[0];
  Held own_keys;
  Lying own_values;
#else
  __shared__ alignas(ROW_ALIGNMENT) Row keys[64], values[64];
  Lying own_keys, own_values;
#endif
  u32 shared = blockIdx.x % SHARED, batch = blockIdx.x / SHARED % BATCH, tile = blockIdx.x / (SHARED * BATCH);
  u32 first = tile * 64, count = KEYS - first < 64 ? KEYS - first : 64, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  INDEX at = key_row(batch, first, shared) * WIDTH;
  bring<64>(keys, k + at, SHARED * WIDTH, count);
  bring<64>(values, v + at, SHARED * WIDTH, count);
  wait();
  own_keys.take(keys);
  own_values.take(values);
  __syncthreads();
  Sums<DEPTH> of_key, of_value;
  of_key.clear();
  of_value.clear();
  u32 key = first + warp * 16 + lane / 4;
  [[maybe_unused]] const Dropping dropping = DROPPING;
  u32 begin = first_seeing(first, AHEAD) / TILE_QUERIES * TILE_QUERIES, end = behind_seeing(first + 63, AHEAD);
  u32 steps = end > begin ? (end - begin + TILE_QUERIES - 1) / TILE_QUERIES : 0;
  auto bring_step = [&](u32 step) {
    u32 start = begin + step % steps * TILE_QUERIES, head = shared * SHARING + step / steps;
    INDEX from = query_row(batch, start, head);
    Row* to_ = room[step % BUFFERS];
    if (threadIdx.x < TILE_QUERIES) {
      bool there = start + threadIdx.x < QUERIES;
      bring_one(&rows[step % BUFFERS][threadIdx.x], l + from + threadIdx.x * HEADS, there);
      bring_one(&own_shifts[step % BUFFERS][threadIdx.x], shifts + from + threadIdx.x * HEADS, there);
    }
    bring<TILE_QUERIES>(to_, q + from * WIDTH, HEADS * WIDTH, QUERIES - start);
    bring<TILE_QUERIES>(to_ + TILE_QUERIES * PANELS, of_o + from * WIDTH, HEADS * WIDTH, QUERIES - start);
  };
  if (BUFFERS == 2 && steps > 0) bring_step(0);
  for (u32 step = 0; step < steps * SHARING; ++step) {
    if (BUFFERS == 1) {
      __syncthreads();
      bring_step(step);
    }
    wait();
    if (BUFFERS == 2 && step + 1 < steps * SHARING) bring_step(step + 1);
    u32 start = begin + step % steps * TILE_QUERIES;
    [[maybe_unused]] u32 head = shared * SHARING + step / steps;
    Row *queries = room[step % BUFFERS], *outputs = queries + TILE_QUERIES * PANELS;
    Sums<TILE_QUERIES> weights, of_scores;
    weights.begin_turned(own_keys, queries);
    of_scores.begin_turned(own_values, outputs);
    finish<1>();
    weights.settled();
    [[maybe_unused]] Sums<CAPPED ? TILE_QUERIES : 16> products;
#if DROPS
    // A bit for each weight: whether it is dropped.
    u32 dropped = 0;
#endif
    auto weigh_all = [&](auto whole) {
#pragma unroll
      for (u32 j = 0; j < TILE_QUERIES / 8; ++j) {
        u32 column = j * 8 + lane % 4 * 2;
#pragma unroll
        for (u32 e = 0; e < 4; ++e) {
          u32 query = start + column + e % 2, own = key + e / 2 * 8;
          if (CAPPED) products.at[CAPPED ? j : 0][e] = weights.at[j][e];
          float score = SCORE_OR_PRODUCT(weights.at[j][e], batch, head, query, own);
          if (!whole.value && (own >= seen(query, AHEAD) || own < passed(query, AHEAD))) score = -INFINITE;
          weights.at[j][e] = power_of_two(fmaf(score, FACTOR, -exponent(rows[step % BUFFERS][column + e % 2])));
#if DROPS
          if (dropping.drops(batch, head, query, own)) dropped |= 1u << (j * 4 + e);
#endif
        }
      }
    };
    if (sees_all(start, TILE_QUERIES, first, 64, AHEAD)) weigh_all(Whole{});
    else weigh_all(Part{});
    u32 factor[TILE_QUERIES / 16][4], of_factor[TILE_QUERIES / 16][4];
#if DROPS
    static_assert(TILE_QUERIES / 8 * 4 <= 32, "a bit for each weight");
    auto keep = [&](float x, u32 j, u32 e) { return dropped >> (j * 4 + e) & 1 ? 0.0f : x / KEPT; };
    Sums<TILE_QUERIES> kept;
#pragma unroll
    for (u32 j = 0; j < TILE_QUERIES / 8; ++j) {
#pragma unroll
      for (u32 e = 0; e < 4; ++e) kept.at[j][e] = keep(weights.at[j][e], j, e);
    }
    kept.as_factor(factor);
#else
    weights.as_factor(factor);
#endif
    of_value.add_weighted(factor, outputs);
    finish<1>();
    of_scores.settled();
#pragma unroll
    for (u32 j = 0; j < TILE_QUERIES / 8; ++j) {
#pragma unroll
      for (u32 e = 0; e < 4; ++e) {
        float shift = own_shifts[step % BUFFERS][j * 8 + lane % 4 * 2 + e % 2];
#if DROPS
        of_scores.at[j][e] = keep(of_scores.at[j][e], j, e);
#endif
        of_scores.at[j][e] = of_product(weights.at[j][e], of_scores.at[j][e], shift, products.at[CAPPED ? j : 0][e]);
      }
    }
    of_scores.as_factor(of_factor);
    of_key.add_weighted(of_factor, queries);
    finish<0>();
    of_value.settled();
    of_key.settled();
  }
  if (warp * 16 >= count) return;
  at = key_row(batch, first + warp * 16, shared) * WIDTH;
  of_key.write(dk + at, SHARED * WIDTH, count - warp * 16, {SCALE, SCALE});
  of_value.write(dv + at, SHARED * WIDTH, count - warp * 16, {1.0f, 1.0f});
}

extern "C" __global__ void BOUNDS_OVER_KEYS of_queries(const T* q, const T* k, const T* v, const float* l, const T* of_o,
                                             const float* shifts, T* dq BIAS ORIGINS) {
  __shared__ alignas(ROW_ALIGNMENT) Row room[BUFFERS][2 * TILE_KEYS * PANELS];
  const u32 tiles = (QUERIES + 63) / 64;
  u32 tile = tiles - 1 - blockIdx.x / (HEADS * BATCH), head = blockIdx.x % HEADS, batch = blockIdx.x / HEADS % BATCH;
  u32 start = tile * 64, count = QUERIES - start < 64 ? QUERIES - start : 64;
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#if GROUPED && BUFFERS == 2
  // They lie where products read them: with registers for them two blocks would have room on a multiprocessor.
  __shared__ alignas(ROW_ALIGNMENT) Row of_outputs[64];
  Held own;
  Lying outputs;
#else
  Row* of_outputs = room[0];
  Held own, outputs;
#endif
  INDEX from = query_row(batch, start, head) * WIDTH;
  bring<64>(room[0], q + from, HEADS * WIDTH, count);
  wait();
  own.take(room[0]);
  __syncthreads();
  bring<64>(of_outputs, of_o + from, HEADS * WIDTH, count);
  wait();
  outputs.take(of_outputs);
  __syncthreads();
  u32 row = start + warp * 16 + lane / 4, sees[2] = {seen(row, AHEAD), seen(row + 8, AHEAD)};
  u32 before[2] = {passed(row, AHEAD), passed(row + 8, AHEAD)};
  float of_rows[2], own_shifts[2];
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    bool there = row + half * 8 < QUERIES;
    INDEX place = query_row(batch, row + half * 8, head);
    of_rows[half] = there ? exponent(l[place]) : 0.0f;
    own_shifts[half] = there ? shifts[place] : 0.0f;
  }
  [[maybe_unused]] const Dropping dropping = DROPPING;
  Sums<DEPTH> sums;
  sums.clear();
  u32 begin = all_passed(start, AHEAD) / TILE_KEYS * TILE_KEYS, end = any_seen(start + count - 1, AHEAD);
  auto bring_keys = [&](u32 first) {
    Row* to_ = room[first / TILE_KEYS % BUFFERS];
    INDEX at = key_row(batch, first, head / SHARING) * WIDTH;
    bring<TILE_KEYS>(to_, k + at, SHARED * WIDTH, KEYS - first);
    bring<TILE_KEYS>(to_ + TILE_KEYS * PANELS, v + at, SHARED * WIDTH, KEYS - first);
  };
  if (BUFFERS == 2 && begin < end) bring_keys(begin);
  for (u32 first = begin; first < end; first += TILE_KEYS) {
    if (BUFFERS == 1) {
      __syncthreads();
      bring_keys(first);
    }
    wait();
    if (BUFFERS == 2 && first + TILE_KEYS < end) bring_keys(first + TILE_KEYS);
    Row *keys = room[first / TILE_KEYS % BUFFERS], *values = keys + TILE_KEYS * PANELS;
    Sums<TILE_KEYS> weights, of_scores;
    weights.begin_turned(own, keys);
    of_scores.begin_turned(outputs, values);
    finish<1>();
    weights.settled();
    [[maybe_unused]] Sums<CAPPED ? TILE_KEYS : 16> products;
    auto weigh_all = [&](auto whole) {
#pragma unroll
      for (u32 j = 0; j < TILE_KEYS / 8; ++j) {
#pragma unroll
        for (u32 e = 0; e < 4; ++e) {
          u32 key = first + j * 8 + lane % 4 * 2 + e % 2;
          if (CAPPED) products.at[CAPPED ? j : 0][e] = weights.at[j][e];
          float score = SCORE_OR_PRODUCT(weights.at[j][e], batch, head, row + e / 2 * 8, key);
          if (!whole.value && (key >= sees[e / 2] || key < before[e / 2])) score = -INFINITE;
          weights.at[j][e] = power_of_two(fmaf(score, FACTOR, -of_rows[e / 2]));
        }
      }
    };
    if (sees_all(start, 64, first, TILE_KEYS, AHEAD)) weigh_all(Whole{});
    else weigh_all(Part{});
    finish<0>();
    of_scores.settled();
#pragma unroll
    for (u32 j = 0; j < TILE_KEYS / 8; ++j) {
#pragma unroll
      for (u32 e = 0; e < 4; ++e) {
#if DROPS
        u32 key = first + j * 8 + lane % 4 * 2 + e % 2;
        of_scores.at[j][e] = dropping.keep(of_scores.at[j][e], batch, head, row + e / 2 * 8, key);
#endif
        of_scores.at[j][e] = of_product(weights.at[j][e], of_scores.at[j][e], own_shifts[e / 2], products.at[CAPPED ? j : 0][e]);
      }
    }
    u32 factor[TILE_KEYS / 16][4];
    of_scores.as_factor(factor);
    sums.add_weighted(factor, keys);
    finish<0>();
    sums.settled();
  }
  if (warp * 16 >= count) return;
  sums.write(dq + query_row(batch, start + warp * 16, head) * WIDTH, HEADS * WIDTH, count - warp * 16, {SCALE, SCALE});
}
