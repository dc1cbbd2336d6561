// y or dx by one thread for WIDTH elements of it; WIDTH is more than 1 only where each channel is a group of its own.
//
// Macros besides those of convolutions: ELEMENTS of the result; WIDTH; TAKES_PART, whether kernels take the channels of a group from
// `first` on alone.

typedef Vec<T, WIDTH> Several;

struct Sums {
  float at[WIDTH];
  // Adds the products of elements that follow each other with those of kernels that are TAPS apart.
  __device__ __forceinline__ void add(const T* x, const T* k) {
    Several several = *(const Several*)x;
#pragma unroll
    for (int l = 0; l < WIDTH; ++l) at[l] = fmaf(load(several.at[l]), load(k[l * TAPS]), at[l]);
  }
};

#if KIND == FORWARD
extern "C" __global__ void __launch_bounds__(256) convolution_direct(const T* x, const T* k, T* y
#if TAKES_PART
    , i64 first
#endif
) {
#if !TAKES_PART
  const u32 first = 0;
#endif
  INDEX e = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (e >= ELEMENTS) return;
  Spot s = spot<FEATURES, SHOWN_H, SHOWN_W>(e);
  u32 channel = s.c / OUTPUTS * GROUP + (u32)first;
  Sums sums = {};
  for (u32 i = 0; i < KERNEL_H; ++i) {
    u32 row, column;
    if (!row_of(s.h, i, row)) continue;
    for (u32 j = 0; j < KERNEL_W; ++j) {
      if (!column_of(s.w, j, column)) continue;
      for (u32 c = 0; c < INPUTS; ++c) sums.add(x + in_x(s.n, row, column, channel + c), k + in_k(s.c, c, i * KERNEL_W + j));
    }
  }
  Several found;
#pragma unroll
  for (int l = 0; l < WIDTH; ++l) found.at[l] = to<T>(sums.at[l]);
  *(Several*)(y + e) = found;
}
#else
extern "C" __global__ void __launch_bounds__(256) convolution_direct(const T* k, const T* dy, T* dx) {
  INDEX e = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (e >= ELEMENTS) return;
  Spot s = spot<CHANNELS, IMAGE_H, IMAGE_W>(e);
  u32 feature = s.c / GROUP * OUTPUTS, c = s.c % GROUP;
  Sums sums = {};
  for (u32 i = 0; i < KERNEL_H; ++i) {
    u32 p, q;
    if (!place_of_row(s.h, i, p)) continue;
    for (u32 j = 0; j < KERNEL_W; ++j) {
      if (!place_of_column(s.w, j, q)) continue;
      for (u32 o = 0; o < OUTPUTS; ++o) sums.add(dy + in_y(s.n, p, q, feature + o), k + in_k(feature + o, c, i * KERNEL_W + j));
    }
  }
  Several found;
#pragma unroll
  for (int l = 0; l < WIDTH; ++l) found.at[l] = to<T>(sums.at[l]);
  *(Several*)(dx + e) = found;
}
#endif
