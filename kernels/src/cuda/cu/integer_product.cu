// Products of matrices of integers, which wrap around: a thread for each element of the result.
//
// Macros: T; ROWS, INNER, COLUMNS of a product; ELEMENTS of all results, of which the first begins at START and each a STRIDE behind the
// one before; A(m, r, k) and B(m, k, c), the positions of the factors' elements in product m.

extern "C" __global__ void __launch_bounds__(256) integer_product(const T* a, const T* b, T* out) {
  u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
  if (i >= ELEMENTS) return;
  u64 column = i % COLUMNS, row = i / COLUMNS % ROWS, product = i / COLUMNS / ROWS;
  u64 sum = 0;
  for (u64 k = 0; k < INNER; ++k) sum += (u64)load(a[A(product, row, k)]) * (u64)load(b[B(product, k, column)]);
  out[START + product * STRIDE + i % (ROWS * COLUMNS)] = to<T>((i64)sum);
}
