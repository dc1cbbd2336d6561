// Pools and their gradients by one thread for WIDTH channels of an element of what is written. For the gradient of a maximum it is
// written first which element of each window is the greatest; then each element asks the windows that have it, so that no thread
// writes what another one does.
//
// Macros besides those of windows: ELEMENTS that are written; WIDTH; MEAN, whether it is a mean, else it is the greatest; COUNT_BORDER,
// whether a mean counts the border; END_H and END_W, where that ends; ORDINAL, an unsigned type for the elements of a window and for
// none of them.

typedef Vec<T, WIDTH> Several;

// What the mean of the window at a place divides by.
__device__ __forceinline__ float divisor(u32 p, u32 q) {
  u32 rows = 0, columns = 0, at;
  for (u32 i = 0; i < KERNEL_H; ++i) rows += COUNT_BORDER ? p * STEP_H + i * REACH_H < END_H : row_of(p, i, at);
  for (u32 j = 0; j < KERNEL_W; ++j) columns += COUNT_BORDER ? q * STEP_W + j * REACH_W < END_W : column_of(q, j, at);
  return (float)(rows * columns);
}

// The first greatest of each channel of a window, row by row, and which element that is; what is no number is greater than all.
struct Greatest {
  float value[WIDTH];
  int element[WIDTH];

  __device__ __forceinline__ void find(const T* x, u32 n, u32 p, u32 q, u32 c) {
    u32 row, column;
#pragma unroll
    for (int l = 0; l < WIDTH; ++l) value[l] = -INFINITE, element[l] = -1;
    for (u32 i = 0; i < KERNEL_H; ++i) {
      if (!row_of(p, i, row)) continue;
      for (u32 j = 0; j < KERNEL_W; ++j) {
        if (!column_of(q, j, column)) continue;
        Several several = *(const Several*)(x + in_x(n, row, column, c));
#pragma unroll
        for (int l = 0; l < WIDTH; ++l) {
          float own = load(several.at[l]);
          bool greater = element[l] < 0 || own > value[l] || (own != own && value[l] == value[l]);
          value[l] = greater ? own : value[l];
          element[l] = greater ? (int)(i * KERNEL_W + j) : element[l];
        }
      }
    }
  }
};

extern "C" __global__ void __launch_bounds__(256) pool(const T* x, T* y) {
  INDEX e = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (e >= ELEMENTS) return;
  Spot s = spot<FEATURES, SHOWN_H, SHOWN_W>(e);
  Several found;
#if MEAN
  float sums[WIDTH] = {};
  u32 row, column;
  for (u32 i = 0; i < KERNEL_H; ++i) {
    if (!row_of(s.h, i, row)) continue;
    for (u32 j = 0; j < KERNEL_W; ++j) {
      if (!column_of(s.w, j, column)) continue;
      Several several = *(const Several*)(x + in_x(s.n, row, column, s.c));
#pragma unroll
      for (int l = 0; l < WIDTH; ++l) sums[l] += load(several.at[l]);
    }
  }
  float by = divisor(s.h, s.w);
#pragma unroll
  for (int l = 0; l < WIDTH; ++l) found.at[l] = to<T>(sums[l] / by);
#else
  Greatest greatest;
  greatest.find(x, s.n, s.h, s.w, s.c);
#pragma unroll
  for (int l = 0; l < WIDTH; ++l) found.at[l] = to<T>(greatest.value[l]);
#endif
  *(Several*)(y + e) = found;
}

typedef Vec<ORDINAL, WIDTH> Ordinals;

#if !MEAN
extern "C" __global__ void __launch_bounds__(256) pool_find(const T* x, ORDINAL* greatest) {
  INDEX e = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (e >= ELEMENTS) return;
  Spot s = spot<FEATURES, SHOWN_H, SHOWN_W>(e);
  Greatest found;
  found.find(x, s.n, s.h, s.w, s.c);
  Ordinals ordinals;
#pragma unroll
  for (int l = 0; l < WIDTH; ++l) ordinals.at[l] = (ORDINAL)found.element[l];
  *(Ordinals*)(greatest + e) = ordinals;
}
#endif

// Places are gone over in their order, so from the last element of the window on.
extern "C" __global__ void __launch_bounds__(256) pool_grad(
#if !MEAN
    const ORDINAL* greatest,
#endif
    const T* dy, T* dx) {
  INDEX e = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (e >= ELEMENTS) return;
  Spot s = spot<CHANNELS, IMAGE_H, IMAGE_W>(e);
  float sums[WIDTH] = {};
  u32 p, q;
  for (u32 i = KERNEL_H; i-- > 0;) {
    if (!place_of_row(s.h, i, p)) continue;
    for (u32 j = KERNEL_W; j-- > 0;) {
      if (!place_of_column(s.w, j, q)) continue;
      INDEX place = in_y(s.n, p, q, s.c);
      Several several = *(const Several*)(dy + place);
#if MEAN
      float by = divisor(p, q);
#pragma unroll
      for (int l = 0; l < WIDTH; ++l) sums[l] += load(several.at[l]) / by;
#else
      Ordinals ordinals = *(const Ordinals*)(greatest + place);
#pragma unroll
      for (int l = 0; l < WIDTH; ++l) {
        if (ordinals.at[l] == (ORDINAL)(i * KERNEL_W + j)) sums[l] += load(several.at[l]);
      }
#endif
    }
  }
  Several found;
#pragma unroll
  for (int l = 0; l < WIDTH; ++l) found.at[l] = to<T>(sums[l]);
  *(Several*)(dx + e) = found;
}
