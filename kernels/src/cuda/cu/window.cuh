// What all kernels of convolutions and pools begin with: extents and positions. The result of a convolution is one of
//
//   y(n, p, q, o) = sum x(n, p STEP + i REACH - PAD, .., c) k(o, c, i, j)    FORWARD
//   dx, of which each element adds to these places                          INPUT_GRAD
//   dk, the sums over n, p and q                                            KERNEL_GRAD
//
// Macros: KIND; INDEX, the type of positions; T, the element type; BATCH; GROUPS; OUTPUTS and INPUTS, the channels of one group that
// kernels give and take; GROUP, the channels of one group of x; of height and width (_H, _W) KERNEL, IMAGE (x), SHOWN (y), STEP,
// REACH, PAD; CHANNELS_LAST, whether images are [n, h, w, c] rather than [n, c, h, w]. Of a pool each channel is a group of its own.

#define TAPS (KERNEL_H * KERNEL_W)
#define CHANNELS (GROUPS * GROUP)
#define FEATURES (GROUPS * OUTPUTS)

// An element of images of C channels, H rows and W columns.
struct Spot { u32 n, h, w, c; };

template <u32 C, u32 H, u32 W> __device__ __forceinline__ Spot spot(INDEX e) {
  Spot s;
#if CHANNELS_LAST
  s.c = (u32)(e % C); e /= C;
  s.w = (u32)(e % W); e /= W;
  s.h = (u32)(e % H); s.n = (u32)(e / H);
#else
  s.w = (u32)(e % W); e /= W;
  s.h = (u32)(e % H); e /= H;
  s.c = (u32)(e % C); s.n = (u32)(e / C);
#endif
  return s;
}

template <u32 C, u32 H, u32 W> __device__ __forceinline__ INDEX position(u32 n, u32 h, u32 w, u32 c) {
#if CHANNELS_LAST
  return (((INDEX)n * H + h) * W + w) * C + c;
#else
  return (((INDEX)n * C + c) * H + h) * W + w;
#endif
}

__device__ __forceinline__ INDEX in_x(u32 n, u32 h, u32 w, u32 c) {
  return position<CHANNELS, IMAGE_H, IMAGE_W>(n, h, w, c);
}
__device__ __forceinline__ INDEX in_y(u32 n, u32 p, u32 q, u32 o) {
  return position<FEATURES, SHOWN_H, SHOWN_W>(n, p, q, o);
}
// `o` counts the features of all groups, `c` the channels of one.
__device__ __forceinline__ INDEX in_k(u32 o, u32 c, u32 tap) {
  return ((INDEX)o * INPUTS + c) * TAPS + tap;
}

// The row of x that element i of the window at place p reads; whether there is one.
__device__ __forceinline__ bool row_of(u32 p, u32 i, u32& row) {
  row = p * STEP_H + i * REACH_H - PAD_H;
  return row < IMAGE_H;
}
__device__ __forceinline__ bool column_of(u32 q, u32 j, u32& column) {
  column = q * STEP_W + j * REACH_W - PAD_W;
  return column < IMAGE_W;
}

// The place at which element i of the window reads this row of x; whether there is one.
__device__ __forceinline__ bool place_of_row(u32 row, u32 i, u32& p) {
  u32 ahead = row + PAD_H - i * REACH_H;
  p = ahead / STEP_H;
  return (int)ahead >= 0 && ahead % STEP_H == 0 && p < SHOWN_H;
}
__device__ __forceinline__ bool place_of_column(u32 column, u32 j, u32& q) {
  u32 ahead = column + PAD_W - j * REACH_W;
  q = ahead / STEP_W;
  return (int)ahead >= 0 && ahead % STEP_W == 0 && q < SHOWN_W;
}
