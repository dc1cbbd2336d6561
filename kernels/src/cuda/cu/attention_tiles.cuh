// Tiles of attention that a block of 256 threads multiplies as f32: of 64 by 64 scores a thread has 4 by 4.

#define STEP 16
#define PITCH 68
// How many elements of rows are multiplied side by side. With a window more of them would need more registers than there are.
#define ABREAST (WINDOW ? 4 : STEP)

// So many elements of each of 64 rows, the elements of one behind each other.
typedef float Slab[STEP][PITCH];

// Elements `from` to `from + 4` of a row; 0 beyond its end.
__device__ __forceinline__ Vec<float, 4> four(const T* row, u32 from) {
  Vec<float, 4> found;
  if constexpr (WIDTH % 4 == 0) {
    Vec<T, 4> several = from < WIDTH ? *(const Vec<T, 4>*)(row + from) : Vec<T, 4>{};
#pragma unroll
    for (int l = 0; l < 4; ++l) found.at[l] = load(several.at[l]);
  } else {
#pragma unroll
    for (int l = 0; l < 4; ++l) found.at[l] = from + l < WIDTH ? load(row[from + l]) : 0.0f;
  }
  return found;
}

// Brings elements of 64 rows, `pitch` apart, of which there are `count`.
__device__ __forceinline__ void bring(Slab& to_, const T* rows, INDEX pitch, u32 count, u32 from) {
  u32 row = threadIdx.x / 4, at = threadIdx.x % 4 * 4;
  Vec<float, 4> found = row < count ? four(rows + row * pitch, from + at) : Vec<float, 4>{};
#pragma unroll
  for (int l = 0; l < 4; ++l) to_[at + l][row] = found.at[l];
}

// The products of 64 rows with 64 others; this thread's are those of rows threadIdx.x / 16 * 4 and columns threadIdx.x % 16 * 4.
__device__ __forceinline__ void products(float (&sums)[4][4], Slab& left, Slab& right, const T* a, INDEX pitch_a, u32 count_a, const T* b,
                                         INDEX pitch_b, u32 count_b) {
  u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[i][j] = 0.0f;
  }
  if (WIDTH == 0) __syncthreads();
  for (u32 from = 0; from < WIDTH; from += STEP) {
    __syncthreads();
    bring(left, a, pitch_a, count_a, from);
    bring(right, b, pitch_b, count_b, from);
    __syncthreads();
#pragma unroll ABREAST
    for (u32 k = 0; k < STEP; ++k) {
      Vec<float, 4> x = *(const Vec<float, 4>*)&left[k][row], y = *(const Vec<float, 4>*)&right[k][column];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] = fmaf(x.at[i], y.at[j], sums[i][j]);
      }
    }
  }
}

// Elements of rows of a tile, of a part of their width: COLUMNS, a multiple of 64, from `first` on.
typedef float Rows[STEP][COLUMNS + 4];

__device__ __forceinline__ void bring_rows(Rows& to_, const T* rows, INDEX pitch, u32 count, u32 first) {
  for (u32 at = threadIdx.x; at < STEP * COLUMNS / 4; at += 256) {
    u32 row = at / (COLUMNS / 4), column = at % (COLUMNS / 4) * 4;
    *(Vec<float, 4>*)&to_[row][column] = row < count ? four(rows + row * pitch, first + column) : Vec<float, 4>{};
  }
}

// Adds the products of 64 weighted rows with as many weights for each of 64 sums, of which this thread has four: weights[k][sum].
__device__ __forceinline__ void add_rows(float (&sums)[4][COLUMNS / 16], float (&weights)[64][PITCH], Rows& room, const T* rows,
                                         INDEX pitch, u32 count, u32 first) {
  u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  for (u32 start = 0; start < 64 && start < count; start += STEP) {
    __syncthreads();
    bring_rows(room, rows + start * pitch, pitch, count - start, first);
    __syncthreads();
#pragma unroll ABREAST
    for (u32 k = 0; k < STEP; ++k) {
      Vec<float, 4> x = *(const Vec<float, 4>*)&weights[start + k][row];
#pragma unroll
      for (u32 j = 0; j < COLUMNS / 64; ++j) {
        Vec<float, 4> y = *(const Vec<float, 4>*)&room[k][j * 64 + column];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int l = 0; l < 4; ++l) sums[i][j * 4 + l] = fmaf(x.at[i], y.at[l], sums[i][j * 4 + l]);
        }
      }
    }
  }
}

// Writes four rows of sums, each times a factor, of 64.
__device__ __forceinline__ void write_rows(T* rows, INDEX pitch, u32 count, u32 first, const float (&sums)[4][COLUMNS / 16],
                                           const float (&factors)[4]) {
  u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    if (row + i >= count) continue;
#pragma unroll
    for (u32 j = 0; j < COLUMNS / 64; ++j) {
      u32 at = first + j * 64 + column;
      T* place = rows + (row + i) * pitch + at;
      Vec<T, 4> found;
#pragma unroll
      for (u32 l = 0; l < 4; ++l) found.at[l] = to<T>(sums[i][j * 4 + l] * factors[i]);
      if constexpr (WIDTH % 4 == 0) {
        if (at < WIDTH) *(Vec<T, 4>*)place = found;
      } else {
#pragma unroll
        for (u32 l = 0; l < 4; ++l) {
          if (at + l < WIDTH) place[l] = found.at[l];
        }
      }
    }
  }
}
