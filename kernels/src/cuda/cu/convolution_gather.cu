// The matrix that a convolution by larger kernels is a product of: a row for each place, a column for each element of the window and
// each channel of that. What lies beyond the image is zeros.
//
// Macros besides those of windows: ELEMENTS of the matrix; WIDTH, how many channels are read at once, a divisor of them.

typedef Vec<T, WIDTH> Several;

#if KIND == INPUT_GRAD

// A row for each element of the image: the places that it adds to, by the elements of the window, and the features of each.
extern "C" __global__ void __launch_bounds__(256) convolution_gather(const T* dy, T* rows) {
  INDEX e = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (e >= ELEMENTS) return;
  u32 o = (u32)(e % FEATURES), tap = (u32)(e / FEATURES % TAPS), p, q;
  INDEX at = e / FEATURES / TAPS;
  u32 w = (u32)(at % IMAGE_W), h = (u32)(at / IMAGE_W % IMAGE_H), n = (u32)(at / IMAGE_W / IMAGE_H);
  Several several = {};
  if (place_of_row(h, tap / KERNEL_W, p) && place_of_column(w, tap % KERNEL_W, q)) {
    several = *(const Several*)(dy + in_y(n, p, q, o));
  }
  *(Several*)(rows + e) = several;
}

#else

// A row for each place: the channels, and the elements of the window of each, as in kernels. A thread turns WIDTH channels.
extern "C" __global__ void __launch_bounds__(256) convolution_gather(const T* x, T* rows) {
  INDEX e = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (e >= ELEMENTS / TAPS) return;
  Spot s = spot<CHANNELS, SHOWN_H, SHOWN_W>(e);
  T turned[WIDTH * TAPS];
#pragma unroll
  for (u32 tap = 0; tap < TAPS; ++tap) {
    u32 row, column;
    Several several = {};
    if (row_of(s.h, tap / KERNEL_W, row) && column_of(s.w, tap % KERNEL_W, column)) {
      several = *(const Several*)(x + in_x(s.n, row, column, s.c));
    }
#pragma unroll
    for (u32 l = 0; l < WIDTH; ++l) turned[l * TAPS + tap] = several.at[l];
  }
#pragma unroll
  for (u32 part = 0; part < TAPS; ++part) {
    Several several;
#pragma unroll
    for (u32 l = 0; l < WIDTH; ++l) several.at[l] = turned[part * WIDTH + l];
    *(Several*)(rows + e * TAPS + part * WIDTH) = several;
  }
}

#endif
