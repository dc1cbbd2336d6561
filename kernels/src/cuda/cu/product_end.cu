// The end of a product that was made without it: a thread for each element of the result, in its place.
//
// Macros: those of `product_end.cuh`; COLUMNS, ELEMENTS of the result, which is dense.

extern "C" __global__ void __launch_bounds__(256) product_end(OUT* out, const OUT* bias, OUT* kept) {
  u64 at = (u64)blockIdx.x * 256 + threadIdx.x;
  if (at >= ELEMENTS) return;
  out[at] = to<OUT>(ended(load(out[at]), at, at % COLUMNS, out, bias, kept));
}
