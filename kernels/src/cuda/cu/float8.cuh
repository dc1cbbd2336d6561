// Floating-point numbers of 8 bits: so many bits of mantissa, the number added to exponents, and the bits of infinity, or where there is none those of
// what is no number; `ir/src/float8.rs` says it in Rust.
template <int MANTISSA, int BIAS, int INFINITY_BITS> struct Float8 {
  u8 bits;
  // The exponent of the greatest number, which is 1.75 times that power of two.
  static constexpr u32 TOP = ((INFINITY_BITS - 1) >> MANTISSA) - BIAS;
};
using e4m3_t = Float8<3, 7, 0x7f>;
using e5m2_t = Float8<2, 15, 0x7c>;

template <int M, int B, int I> __device__ __forceinline__ float load(Float8<M, B, I> x) {
  u32 code = x.bits & 127;
  float size = code >> M == 0 ? (float)code * __uint_as_float((u32)(128 - B - M) << 23) : __uint_as_float((code << (23 - M)) + ((u32)(127 - B) << 23));
  if (code >= I) size = __uint_as_float(code == I && I != 127 ? 0x7f800000u : 0x7fc00000u);
  return x.bits & 128 ? -size : size;
}

template <int M, int B, int I> __device__ __forceinline__ Float8<M, B, I> to_float8(float x) {
  using Number = Float8<M, B, I>;
  u32 sign = __float_as_uint(x) >> 24 & 128;
  if (x != x) return Number{(u8)(sign | 127)};
  float size = fminf(fabsf(x), __uint_as_float((Number::TOP + 127) << 23 | 0x600000u));
  u32 bits = __float_as_uint(size);
  const u32 dropped = 23 - M, steps = (u32)(128 - B + dropped) << 23;
  u32 code = size < __uint_as_float((u32)(128 - B) << 23) ? __float_as_uint(size + __uint_as_float(steps)) - steps
                                                         : ((bits + ((1u << (dropped - 1)) - 1) + (bits >> dropped & 1)) >> dropped) - ((u32)(127 - B) << M);
  return Number{(u8)(sign | code)};
}
template <> __device__ __forceinline__ e4m3_t to<e4m3_t>(float x) { return to_float8<3, 7, 0x7f>(x); }
template <> __device__ __forceinline__ e4m3_t to<e4m3_t>(i64 x) { return to<e4m3_t>((float)x); }
template <> __device__ __forceinline__ e5m2_t to<e5m2_t>(float x) { return to_float8<2, 15, 0x7c>(x); }
template <> __device__ __forceinline__ e5m2_t to<e5m2_t>(i64 x) { return to<e5m2_t>((float)x); }

// The greatest power of two by which numbers up to this size are multiplied to be within the greatest number.
template <class Number> __device__ __forceinline__ float float8_scale(float greatest) {
  if ((__float_as_uint(greatest) >> 23 & 255) == 255) return 1.0f;
  u32 bits = __float_as_uint(fmaxf(greatest, 1e-12f));
  u32 above = (bits & 0x7fffffu) > 0x600000u ? 1 : 0;
  return __uint_as_float((Number::TOP + 254 - (bits >> 23) - above) << 23);
}
