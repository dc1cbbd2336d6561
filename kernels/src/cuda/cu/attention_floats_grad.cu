// The gradient of attention by multiplications and sums of f32. `of_keys` has 64 keys of a head and COLUMNS elements of their gradients in
// a block, and goes over the heads that read it and their queries, 64 at a time; `of_queries` has 64 queries, and goes over keys. So
// scores are computed twice, but nobody adds to what others have written.
//
// Macros besides those of attention: COLUMNS, a multiple of 64; PARTS of a row that have so many columns.

// Weights behind the dropout, and gradients of scores, or of scaled products, of 64 queries and 64 keys: this thread's.
struct Terms {
  float weight[4][4], of_score[4][4];
};

struct Tile {
  const T *q, *k, *v, *of_o;
  const float *l, *shifts;
  BIAS_MEMBER
  Dropping dropping;

  template <bool OF_PRODUCTS> __device__ __forceinline__ void terms(Terms& found, Slab& left, Slab& right, u32 batch, u32 head, u32 start, u32 first, i64 ahead) const {
    u32 count = QUERIES - start < 64 ? QUERIES - start : 64, keys = KEYS - first < 64 ? KEYS - first : 64;
    u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
    INDEX from = query_row(batch, start, head), at = key_row(batch, first, head / SHARING) * WIDTH;
    u32 dropped = 0;
#if DROPS
    // A bit for each weight, one after the other: side by side the random numbers would need more registers than there are.
#pragma unroll 1
    for (u32 i = 0; i < 16; ++i) {
      if (dropping.drops(batch, head, start + row + i / 4, first + column + i % 4)) dropped |= 1u << i;
    }
#endif
    products(found.weight, left, right, q + from * WIDTH, HEADS * WIDTH, count, k + at, SHARED * WIDTH, keys);
    products(found.of_score, left, right, of_o + from * WIDTH, HEADS * WIDTH, count, v + at, SHARED * WIDTH, keys);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      u32 sees = seen(start + row + i, ahead), before = passed(start + row + i, ahead);
      INDEX place = from + (row + i < count ? row + i : 0) * HEADS;
      float of_row = FINITE(l[place]), shift = shifts[place];
#pragma unroll
      for (u32 j = 0; j < 4; ++j) {
        u32 key = first + column + j;
        bool visible = key < sees && key >= before;
        float product = found.weight[i][j];
        float weight = visible ? expf(SCORE(product, batch, head, start + row + i, key) - of_row) : 0.0f;
        float kept = dropped >> (i * 4 + j) & 1 ? 0.0f : 1.0f / KEPT;
        found.weight[i][j] = weight * kept;
        found.of_score[i][j] = visible ? weight * (found.of_score[i][j] * kept - shift) : 0.0f;
        if (OF_PRODUCTS && CAPPED) found.of_score[i][j] *= slope(product);
      }
    }
  }
};

union Room {
  struct { Slab left, right; };
  Rows rows;
};

extern "C" __global__ void OF_THREADS(256) of_keys(const T* q, const T* k, const T* v, const float* l, const T* of_o,
                                                          const float* shifts, T* dk, T* dv BIAS ORIGINS) {
  __shared__ alignas(16) Room room;
  __shared__ alignas(16) float weights[64][PITCH];
  __shared__ alignas(16) float of_scores[64][PITCH];
  u32 part = blockIdx.x % PARTS, tile = blockIdx.x / PARTS % ((KEYS + 63) / 64);
  u32 rest = blockIdx.x / PARTS / ((KEYS + 63) / 64), shared = rest % SHARED, batch = rest / SHARED;
  u32 first = tile * 64, row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  Tile all = {q, k, v, of_o, l, shifts BIAS_GIVEN, DROPPING};
  float of_key[4][COLUMNS / 16] = {}, of_value[4][COLUMNS / 16] = {};
  for (u32 head = shared * SHARING; head < (shared + 1) * SHARING; ++head) {
    u32 end = behind_seeing(first + 63, AHEAD);
    for (u32 start = first_seeing(first, AHEAD) / 64 * 64; start < end; start += 64) {
      Terms terms;
      all.terms<true>(terms, room.left, room.right, batch, head, start, first, AHEAD);
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
          weights[row + i][column + j] = terms.weight[i][j];
          of_scores[row + i][column + j] = terms.of_score[i][j];
        }
      }
      u32 count = QUERIES - start < 64 ? QUERIES - start : 64;
      INDEX from = query_row(batch, start, head) * WIDTH;
      add_rows(of_value, weights, room.rows, of_o + from, HEADS * WIDTH, count, part * COLUMNS);
      add_rows(of_key, of_scores, room.rows, q + from, HEADS * WIDTH, count, part * COLUMNS);
    }
  }
  u32 keys = KEYS - first < 64 ? KEYS - first : 64;
  INDEX at = key_row(batch, first, shared) * WIDTH;
  write_rows(dk + at, SHARED * WIDTH, keys, part * COLUMNS, of_key, {SCALE, SCALE, SCALE, SCALE});
  write_rows(dv + at, SHARED * WIDTH, keys, part * COLUMNS, of_value, {1.0f, 1.0f, 1.0f, 1.0f});
}

extern "C" __global__ void OF_THREADS(256) of_queries(const T* q, const T* k, const T* v, const float* l, const T* of_o,
                                                             const float* shifts, T* dq BIAS ORIGINS) {
  __shared__ alignas(16) Room room;
  __shared__ alignas(16) float of_scores[64][PITCH];
  u32 part = blockIdx.x % PARTS, tile = blockIdx.x / PARTS % ((QUERIES + 63) / 64);
  u32 rest = blockIdx.x / PARTS / ((QUERIES + 63) / 64), head = rest % HEADS, batch = rest / HEADS;
  u32 start = tile * 64, count = QUERIES - start < 64 ? QUERIES - start : 64;
  u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  Tile all = {q, k, v, of_o, l, shifts BIAS_GIVEN, DROPPING};
  float sums[4][COLUMNS / 16] = {};
  u32 end = any_seen(start + count - 1, AHEAD);
  for (u32 first = all_passed(start, AHEAD) / 64 * 64; first < end; first += 64) {
    Terms terms;
    all.terms<true>(terms, room.left, room.right, batch, head, start, first, AHEAD);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
#pragma unroll
      for (u32 j = 0; j < 4; ++j) of_scores[column + j][row + i] = terms.of_score[i][j];
    }
    u32 keys = KEYS - first < 64 ? KEYS - first : 64;
    INDEX at = key_row(batch, first, head / SHARING) * WIDTH;
    add_rows(sums, of_scores, room.rows, k + at, SHARED * WIDTH, keys, part * COLUMNS);
  }
  INDEX from = query_row(batch, start, head) * WIDTH;
  write_rows(dq + from, HEADS * WIDTH, count, part * COLUMNS, sums, {SCALE, SCALE, SCALE, SCALE});
}

#if HAS_BIAS
// The gradient of a bias: that of the scores of 64 queries and 64 keys, summed over SAMPLES_OF_BIAS samples and SHARING_BIAS heads,
// 1 or all, that have it in common, one after the other.
extern "C" __global__ void OF_THREADS(256) of_bias(const T* q, const T* k, const T* v, const float* l, const T* of_o,
                                                          const float* shifts, B* result BIAS ORIGINS) {
  __shared__ alignas(16) Room room;
  const u32 tiles = (KEYS + 63) / 64, rows = (QUERIES + 63) / 64;
  u32 first = blockIdx.x % tiles * 64, start = blockIdx.x / tiles % rows * 64, rest = blockIdx.x / tiles / rows;
  u32 own_head = rest % (HEADS / SHARING_BIAS), own_batch = rest / (HEADS / SHARING_BIAS);
  u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  Tile all = {q, k, v, of_o, l, shifts BIAS_GIVEN, DROPPING};
  float sums[4][4] = {};
  bool sees = any_seen(start + 63 < QUERIES ? start + 63 : QUERIES - 1, AHEAD) > first && all_passed(start, AHEAD) < first + 64;
  for (u32 batch = own_batch; sees && batch < own_batch + SAMPLES_OF_BIAS; ++batch) {
    for (u32 head = own_head; head < own_head + SHARING_BIAS; ++head) {
      Terms terms;
      all.terms<false>(terms, room.left, room.right, batch, head, start, first, AHEAD);
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
#pragma unroll
        for (u32 j = 0; j < 4; ++j) sums[i][j] += terms.of_score[i][j];
      }
    }
  }
  INDEX at = ((INDEX)own_batch * (HEADS / SHARING_BIAS) + own_head) * QUERIES;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
      u32 query = start + row + i, key = first + column + j;
      if (query < QUERIES && key < KEYS) result[(at + query) * KEYS + key] = to<B>(sums[i][j]);
    }
  }
}
#endif
