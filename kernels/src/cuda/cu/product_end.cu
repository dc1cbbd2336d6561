// The end of a product that was made without it: a thread for WIDTH elements of a row of the result, in their place.
//
// Macros: those of `product_end.cuh`, of which nothing is added; COLUMNS, ELEMENTS of the result, which is dense; INDEX, the type of
// positions; WIDTH, a divisor of columns.

typedef Vec<OUT, WIDTH> Several;

extern "C" __global__ void __launch_bounds__(256) product_end(OUT* out, const OUT* bias, OUT* kept) {
  INDEX at = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (at >= ELEMENTS) return;
  Several all = *(const Several*)(out + at), summands = {}, of = {};
  if (BIAS) summands = *(const Several*)(bias + at % COLUMNS);
  if (KEPT && ACTIVATION == GELU_GRAD) of = *(const Several*)(kept + at);
#pragma unroll
  for (int l = 0; l < WIDTH; ++l) all.at[l] = to<OUT>(ended(load(all.at[l]), l, l, all.at, summands.at, of.at));
  *(Several*)(out + at) = all;
  if (KEPT && ACTIVATION == GELU) *(Several*)(kept + at) = of;
}
