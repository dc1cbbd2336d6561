// Floating-point numbers of 8 bits, E4M3 without infinities: a sign, 4 bits of exponent, 3 of mantissa; `ir/src/float8.rs` says it in Rust.
struct e4m3_t { u8 bits; };

__device__ __forceinline__ float load(e4m3_t x) {
  u32 exponent = x.bits >> 3 & 15, mantissa = x.bits & 7;
  float size = exponent == 0 ? (float)mantissa / 512.0f : __uint_as_float((exponent + 120) << 23 | mantissa << 20);
  if (exponent == 15 && mantissa == 7) size = __uint_as_float(0x7fc00000u);
  return x.bits & 128 ? -size : size;
}

template <> __device__ __forceinline__ e4m3_t to<e4m3_t>(float x) {
  u32 sign = __float_as_uint(x) >> 24 & 128;
  if (x != x) return e4m3_t{(u8)(sign | 127)};
  float size = fminf(fabsf(x), 448.0f);
  u32 bits = __float_as_uint(size);
  u32 code = size < 0.015625f ? __float_as_uint(size + 16384.0f) - __float_as_uint(16384.0f)
                              : ((bits + 0x7ffffu + (bits >> 20 & 1)) >> 20) - (120u << 3);
  return e4m3_t{(u8)(sign | code)};
}
template <> __device__ __forceinline__ e4m3_t to<e4m3_t>(i64 x) { return to<e4m3_t>((float)x); }

// The greatest power of two by which numbers up to this size are multiplied to be within the greatest number.
__device__ __forceinline__ float float8_scale(float greatest) {
  if ((__float_as_uint(greatest) >> 23 & 255) == 255) return 1.0f;
  u32 bits = __float_as_uint(fmaxf(greatest, 1e-12f));
  u32 above = (bits & 0x7fffffu) > 0x600000u ? 1 : 0;
  return __uint_as_float((8 + 254 - (bits >> 23) - above) << 23);
}
