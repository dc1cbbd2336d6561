// Matrices of which rows become columns, through shared memory in tiles of 32 x 32, so that both sides are accessed along their rows.
//
// Macros: WORD, an unsigned type of an element's size; ROWS and COLUMNS of a matrix of the result; FROM_COLUMN, the stride of the
// result's columns in the operand, in which its rows lie side by side; TO_ROW, the stride of rows in the result; FROM(m) and TO(m), where
// matrix m begins; INDEX, the type of positions.

#define TILES(extent) (((extent) + 31) / 32)

extern "C" __global__ void __launch_bounds__(256) transpose(const WORD* from, WORD* to) {
  __shared__ WORD tile[32][33];
  INDEX m = (INDEX)blockIdx.x / (TILES(ROWS) * TILES(COLUMNS));
  u32 column = blockIdx.x % TILES(COLUMNS) * 32, row = blockIdx.x / TILES(COLUMNS) % TILES(ROWS) * 32;
  u32 x = threadIdx.x % 32, y = threadIdx.x / 32;
  from += FROM(m);
  to += TO(m);
#pragma unroll
  for (u32 k = y; k < 32; k += 8) {
    if (column + k < COLUMNS && row + x < ROWS) tile[k][x] = from[(INDEX)(column + k) * FROM_COLUMN + row + x];
  }
  __syncthreads();
#pragma unroll
  for (u32 k = y; k < 32; k += 8) {
    if (row + k < ROWS && column + x < COLUMNS) to[(INDEX)(row + k) * TO_ROW + column + x] = tile[x][k];
  }
}
