// The gradient of attention by multiplications and sums of f32. `of_keys` has 64 keys of a head and COLUMNS elements of their gradients in
// a block, and goes over the heads that read it and their queries, 64 at a time; `of_queries` has 64 queries, and goes over keys. So
// scores are computed twice, but nobody adds to what others have written.
//
// Macros besides those of attention: COLUMNS, a multiple of 64; PARTS of a row that have so many columns.

// Weights, and gradients of scores before they are scaled, of 64 queries and 64 keys: this thread's.
struct Terms {
  float weight[4][4], of_score[4][4];
};

struct Tile {
  const T *q, *k, *v, *of_o;
  const float *l, *shifts;

  __device__ __forceinline__ void terms(Terms& found, Slab& left, Slab& right, u32 batch, u32 head, u32 start, u32 first, i64 ahead) const {
    u32 count = QUERIES - start < 64 ? QUERIES - start : 64, keys = KEYS - first < 64 ? KEYS - first : 64;
    u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
    INDEX from = query_row(batch, start, head), at = key_row(batch, first, head / SHARING) * WIDTH;
    products(found.weight, left, right, q + from * WIDTH, HEADS * WIDTH, count, k + at, SHARED * WIDTH, keys);
    products(found.of_score, left, right, of_o + from * WIDTH, HEADS * WIDTH, count, v + at, SHARED * WIDTH, keys);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      u32 sees = seen(start + row + i, ahead);
      INDEX place = from + (row + i < count ? row + i : 0) * HEADS;
      float of_row = l[place], shift = shifts[place];
#pragma unroll
      for (u32 j = 0; j < 4; ++j) {
        bool visible = first + column + j < sees;
        float weight = visible ? expf(found.weight[i][j] * SCALE - of_row) : 0.0f;
        found.weight[i][j] = weight;
        found.of_score[i][j] = visible ? weight * (found.of_score[i][j] - shift) : 0.0f;
      }
    }
  }
};

union Room {
  struct { Slab left, right; };
  Rows rows;
};

extern "C" __global__ void __launch_bounds__(256) of_keys(const T* q, const T* k, const T* v, const float* l, const T* of_o,
                                                          const float* shifts, T* dk, T* dv ORIGINS) {
  __shared__ alignas(16) Room room;
  __shared__ alignas(16) float weights[64][PITCH];
  __shared__ alignas(16) float of_scores[64][PITCH];
  u32 part = blockIdx.x % PARTS, tile = blockIdx.x / PARTS % ((KEYS + 63) / 64);
  u32 rest = blockIdx.x / PARTS / ((KEYS + 63) / 64), shared = rest % SHARED, batch = rest / SHARED;
  u32 first = tile * 64, row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  Tile all = {q, k, v, of_o, l, shifts};
  float of_key[4][COLUMNS / 16] = {}, of_value[4][COLUMNS / 16] = {};
  for (u32 head = shared * SHARING; head < (shared + 1) * SHARING; ++head) {
    for (u32 start = first_seeing(first, AHEAD) / 64 * 64; start < QUERIES; start += 64) {
      Terms terms;
      all.terms(terms, room.left, room.right, batch, head, start, first, AHEAD);
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

extern "C" __global__ void __launch_bounds__(256) of_queries(const T* q, const T* k, const T* v, const float* l, const T* of_o,
                                                             const float* shifts, T* dq ORIGINS) {
  __shared__ alignas(16) Room room;
  __shared__ alignas(16) float of_scores[64][PITCH];
  u32 part = blockIdx.x % PARTS, tile = blockIdx.x / PARTS % ((QUERIES + 63) / 64);
  u32 rest = blockIdx.x / PARTS / ((QUERIES + 63) / 64), head = rest % HEADS, batch = rest / HEADS;
  u32 start = tile * 64, count = QUERIES - start < 64 ? QUERIES - start : 64;
  u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  Tile all = {q, k, v, of_o, l, shifts};
  float sums[4][COLUMNS / 16] = {};
  u32 end = seen(start + count - 1, AHEAD);
  for (u32 first = 0; first < end; first += 64) {
    Terms terms;
    all.terms(terms, room.left, room.right, batch, head, start, first, AHEAD);
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
