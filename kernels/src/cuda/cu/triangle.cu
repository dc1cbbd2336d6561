// What is on one side of a diagonal of matrices, and 0 on the other: a thread for each element.
//
// Macros: WORD, an unsigned type of an element's size; ELEMENTS, their number; ROWS and COLUMNS of a matrix; INDEX, the type of
// positions; DIAGONAL, the first column right of which is the upper side in row 0; LOWER, whether the lower side is kept.

extern "C" __global__ void __launch_bounds__(256) triangle(const WORD* x, WORD* out, i64 first_row, i64 first_column) {
  INDEX i = (INDEX)blockIdx.x * 256 + threadIdx.x;
  if (i >= ELEMENTS) return;
  i64 row = first_row + (i64)(i / COLUMNS % ROWS), column = first_column + (i64)(i % COLUMNS);
  bool kept = LOWER ? column <= row + DIAGONAL : column >= row + DIAGONAL;
  out[i] = kept ? x[i] : (WORD)0;
}
