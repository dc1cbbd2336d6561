// For each expert the sum over the places of its runs, of all groups, of the outer products of x and y. A block of threads for each tile of an
// expert's matrix.
//
// Macros: those of what products of experts share. DIVIDED divides the sum of a row and a column of a block's expert.

extern "C" __global__ void __launch_bounds__(256) grouped_grad(
    const X* x, const Y* y, const i64* ends, T* matrices, i64 first_block, i64 first_place SIZES) {
  __shared__ float a[16][64], b[16][64];
  const u64 across = (COLUMNS + 63) / 64, down = (INNER + 63) / 64;
  u64 first_column = blockIdx.x % across * 64, first_row = blockIdx.x / across % down * 64, own = blockIdx.x / across / down;
  u64 block = own / EACH, expert = first_block * EACH + own;
  u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  float sums[4][4] = {};
  for (u64 group = 0; group < GROUPS; ++group) {
    u64 start = edge_of(ends, group, expert, false, first_place), end = edge_of(ends, group, expert, true, first_place);
    u64 first = (block * GROUPS + group) * ROOM;
    for (u64 k = start; k < end; k += 16) {
      for (u32 i = threadIdx.x; i < 16 * 64; i += 256) {
        u64 place = k + i / 64, r = first_row + i % 64, c = first_column + i % 64;
        a[i / 64][i % 64] = place < end && r < INNER ? load(x[(first + place) * INNER + r]) : 0.0f;
        b[i / 64][i % 64] = place < end && c < COLUMNS ? load(y[(first + place) * COLUMNS + c]) : 0.0f;
      }
      __syncthreads();
      add_products(a, b, sums);
      __syncthreads();
    }
  }
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
      u64 r = first_row + row + i, c = first_column + column + j;
      if (r < INNER && c < COLUMNS) matrices[(own * INNER + r) * COLUMNS + c] = to<T>(DIVIDED(sums[i][j], block, r, c));
    }
  }
}
