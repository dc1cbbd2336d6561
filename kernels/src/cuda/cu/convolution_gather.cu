// The matrix that a convolution by larger kernels is a product of: a row for each place, a column for each element of the window and
// each channel of that. Zeros are what lies beyond the image, and the columns behind the last element of the window.
//
// Macros besides those of windows: ELEMENTS of the matrix; DEPTH, its columns; WIDTH, how many a thread writes, a divisor of DEPTH.

typedef Vec<T, WIDTH> Several;

#if KIND == INPUT_GRAD
// A row for each element of the image: the places that it adds to, by the elements of the window, and the features of each.
#define EACH FEATURES
#define ROW_H IMAGE_H
#define ROW_W IMAGE_W

__device__ __forceinline__ bool meets(u32 h, u32 w, u32 tap, u32& p, u32& q) {
  return place_of_row(h, tap / KERNEL_W, p) && place_of_column(w, tap % KERNEL_W, q);
}
__device__ __forceinline__ INDEX source(u32 n, u32 p, u32 q, u32 o) { return in_y(n, p, q, o); }

#else
// A row for each place: the elements of the image that its window meets, and the channels of each.
#define EACH INPUTS
#define ROW_H SHOWN_H
#define ROW_W SHOWN_W

__device__ __forceinline__ bool meets(u32 p, u32 q, u32 tap, u32& row, u32& column) {
  return row_of(p, tap / KERNEL_W, row) && column_of(q, tap % KERNEL_W, column);
}
__device__ __forceinline__ INDEX source(u32 n, u32 row, u32 column, u32 c) { return in_x(n, row, column, c); }

#endif

extern "C" __global__ void __launch_bounds__(256) convolution_gather(const T* from, T* rows) {
  INDEX e = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (e >= ELEMENTS) return;
  u32 first = (u32)(e % DEPTH), h, w;
  INDEX at = e / DEPTH;
  u32 column = (u32)(at % ROW_W), row = (u32)(at / ROW_W % ROW_H), n = (u32)(at / ROW_W / ROW_H);
  Several several = {};
#if EACH % WIDTH == 0
  if (meets(row, column, first / EACH, h, w)) several = *(const Several*)(from + source(n, h, w, first % EACH));
#else
  u32 tap = first / EACH, channel = first % EACH;
  bool there = tap < TAPS && meets(row, column, tap, h, w);
  INDEX place = there ? source(n, h, w, channel) : 0;
#pragma unroll
  for (u32 l = 0; l < WIDTH; ++l) {
    if (there) several.at[l] = from[place++];
    if (++channel == EACH) {
      channel = 0;
      there = ++tap < TAPS && meets(row, column, tap, h, w);
      place = there ? source(n, h, w, 0) : 0;
    }
  }
#endif
  *(Several*)(rows + e) = several;
}
