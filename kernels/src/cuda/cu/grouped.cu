// Places times the matrix of the expert whose run they are in; 0 at free places. A block of threads for each tile of places and columns: it
// goes over the experts that have places in the tile.
//
// Macros: those of what products of experts share; TRANSPOSED, whether matrices are [COLUMNS, INNER]. DIVIDED divides the sum of a place (group,
// place) of a block with a column of the matrix `own` of the shard.

extern "C" __global__ void __launch_bounds__(256) grouped(
    const X* x, const Y* matrices, const i64* ends, T* y, i64 first_block, i64 first_place SIZES) {
  __shared__ float a[16][64], b[16][64];
  const u64 across = (COLUMNS + 63) / 64, down = (ROOM + 63) / 64;
  u64 first_column = blockIdx.x % across * 64, first_row = blockIdx.x / across % down * 64, place = blockIdx.x / across / down;
  u64 group = place % GROUPS, block = place / GROUPS;
  x += place * ROOM * INNER;
  y += place * ROOM * COLUMNS;
  u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  u64 last = first_row;
  for (u64 own = 0; own < EACH; ++own) {
    u64 expert = (block + first_block) * EACH + own;
    u64 start = edge_of(ends, group, expert, false, first_place), end = edge_of(ends, group, expert, true, first_place);
    start = start < first_row ? first_row : start;
    end = end > first_row + 64 ? first_row + 64 : end;
    if (start >= end) continue;
    last = end;
    const Y* matrix = matrices + (block * EACH + own) * ((u64)INNER * COLUMNS);
    float sums[4][4] = {};
    for (u64 k = 0; k < INNER; k += 16) {
      for (u32 i = threadIdx.x; i < 16 * 64; i += 256) {
        u64 r = first_row + i / 16, c = k + i % 16;
        a[i % 16][i / 16] = r >= start && r < end && c < INNER ? load(x[r * INNER + c]) : 0.0f;
      }
      for (u32 i = threadIdx.x; i < 16 * 64; i += 256) {
        u64 inner = k + (TRANSPOSED ? i % 16 : i / 64), c = TRANSPOSED ? i / 16 : i % 64, at = first_column + c;
        bool there = inner < INNER && at < COLUMNS;
        float value = there ? load(matrix[TRANSPOSED ? at * INNER + inner : inner * COLUMNS + at]) : 0.0f;
        b[inner - k][c] = value;
      }
      __syncthreads();
      add_products(a, b, sums);
      __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
#pragma unroll
      for (u32 j = 0; j < 4; ++j) {
        u64 r = first_row + row + i, c = first_column + column + j;
        if (r >= start && r < end && c < COLUMNS) y[r * COLUMNS + c] = to<T>(DIVIDED(sums[i][j], block, group, r, block * EACH + own, c));
      }
    }
  }
  // Free places are behind all runs.
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
      u64 r = first_row + row + i, c = first_column + column + j;
      if (r >= last && r < ROOM && c < COLUMNS) y[r * COLUMNS + c] = to<T>(0.0f);
    }
  }
}
