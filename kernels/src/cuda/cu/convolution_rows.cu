// Rows of channels between the order of images and that of places, for windows of one element; see window.cuh.
//
// Macros besides those of windows: ELEMENTS that are written; WIDTH, how many a thread moves, a divisor of channels.

typedef Vec<T, WIDTH> Several;

// The channels that each place reads, one place after the other; zeros where it meets the border.
extern "C" __global__ void __launch_bounds__(256) convolution_pick(const T* x, T* rows) {
  INDEX e = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (e >= ELEMENTS) return;
  Spot s = spot<CHANNELS, SHOWN_H, SHOWN_W>(e);
  u32 row, column;
  Several several = {};
  if (row_of(s.h, 0, row) && column_of(s.w, 0, column)) several = *(const Several*)(x + in_x(s.n, row, column, s.c));
  *(Several*)(rows + e) = several;
}

// The image whose elements have the channels of the place that meets them, and zeros where none does.
extern "C" __global__ void __launch_bounds__(256) convolution_spread(const T* rows, T* x) {
  INDEX e = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (e >= ELEMENTS) return;
  Spot s = spot<CHANNELS, IMAGE_H, IMAGE_W>(e);
  u32 p, q;
  Several several = {};
  if (place_of_row(s.h, 0, p) && place_of_column(s.w, 0, q)) {
    several = *(const Several*)(rows + position<CHANNELS, SHOWN_H, SHOWN_W>(s.n, p, q, s.c));
  }
  *(Several*)(x + e) = several;
}
