// Elements that are functions of their place in the whole tensor: a thread for each.
//
// Macros: T; ELEMENTS, their number; INDEX, the type of positions; WHOLE(i), the position of element i in the whole; ORIGINS,
// parameters that it takes; ELEMENT(p), the element at a position of the whole, which may use `now`.

// Of the standard normal distribution, by Box and Muller, rounded once. The cosine is that of the double next to 2 pi v: the exact
// angle's, put right by how far they are apart, so that no reduction of large angles is needed.
__device__ __forceinline__ double normal_of(Words w) {
  const double turn = 6.283185307179586, rest = 2.4492935982947064e-16;
  double u = ((double)w.at[0] + 1.0) / 4294967296.0, v = (double)w.at[1] / 4294967296.0;
  double sine, cosine, angle = turn * v;
  sincospi(2.0 * v, &sine, &cosine);
  double apart = rest * v + fma(turn, v, -angle);
  return (double)(float)(sqrt(-2.0 * log(u)) * fma(apart, sine, cosine));
}

// An integer as a float from which a narrower one is the nearest to the integer: truncated, with the last bit set where that lost
// something.
__device__ __forceinline__ float sticky(i64 x) {
  float near = __ll2float_rz(x);
  return (i64)near == x ? near : __uint_as_float(__float_as_uint(near) | 1u);
}
template <class E> __device__ __forceinline__ E counted(i64 x) { return to<E>(x); }
template <> __device__ __forceinline__ float counted<float>(i64 x) { return (float)x; }
template <> __device__ __forceinline__ half_t counted<half_t>(i64 x) { return to<half_t>(sticky(x)); }
template <> __device__ __forceinline__ bfloat_t counted<bfloat_t>(i64 x) { return to<bfloat_t>(sticky(x)); }

extern "C" __global__ void __launch_bounds__(256) elements(T* out, const Now* now ORIGINS) {
  INDEX i = (INDEX)blockIdx.x * 256 + threadIdx.x;
  if (i >= ELEMENTS) return;
  u64 p = WHOLE(i);
  out[i] = ELEMENT(p);
}
