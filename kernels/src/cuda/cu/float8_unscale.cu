// Divides products of numbers of 8 bits by the scales of their rows and columns, powers of two: a thread for each.
//
// Macros: ELEMENTS, their number; INDEX, the type of positions; A and B, the element types of both sizes; OF_ROW(i) and OF_COLUMN(i), where the sizes
// for an element are; ROW_NUMBER and COLUMN_NUMBER, the types of the numbers of both factors.

extern "C" __global__ void __launch_bounds__(256) float8_unscale(bfloat_t* product, const A* of_rows, const B* of_columns) {
  INDEX i = (INDEX)blockIdx.x * 256 + threadIdx.x;
  if (i >= ELEMENTS) return;
  float row = 1.0f / float8_scale<ROW_NUMBER>(load(of_rows[OF_ROW(i)]));
  float column = 1.0f / float8_scale<COLUMN_NUMBER>(load(of_columns[OF_COLUMN(i)]));
  product[i] = to<bfloat_t>(load(product[i]) * row * column);
}
