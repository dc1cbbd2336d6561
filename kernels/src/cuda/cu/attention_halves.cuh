// Rows of heads as tiles of halves in shared memory, from which warps read matrices for the tensor cores. Rows are DEPTH elements wide,
// a multiple of 16 of which those beyond WIDTH are 0, and 16 bytes longer, so that those of a matrix lie in different banks.
//
// Macros besides those of attention: DEPTH.

#define LENGTH (DEPTH + 8)

typedef T Row[LENGTH];

// Begins to bring rows, `pitch` apart, of which there are `count`; the others become 0.
template <u32 ROWS> __device__ __forceinline__ void bring(Row* to_, const T* rows, INDEX pitch, u32 count) {
  if constexpr (WIDTH % 8 == 0) {
    for (u32 at = threadIdx.x; at < ROWS * (DEPTH / 8); at += 128) {
      u32 row = at / (DEPTH / 8), column = at % (DEPTH / 8) * 8;
      T* place = &to_[row][column];
      if (row < count && column < WIDTH) {
        u32 address = (u32)__cvta_generic_to_shared(place);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(rows + row * pitch + column) : "memory");
      } else {
        *(Vec<T, 8>*)place = Vec<T, 8>{};
      }
    }
  } else {
    for (u32 at = threadIdx.x; at < ROWS * DEPTH; at += 128) {
      u32 row = at / DEPTH, column = at % DEPTH;
      to_[row][column] = row < count && column < WIDTH ? rows[row * pitch + column] : T{};
    }
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until all that was begun is there, for all threads.
__device__ __forceinline__ void wait() {
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
}

// 16 rows and 16 columns as a first factor.
__device__ __forceinline__ void first_factor(u32 (&to_)[4], const Row* rows, u32 column) {
  u32 lane = threadIdx.x % 32;
  matrices(to_, &rows[lane % 16][column + lane / 16 * 8]);
}
// 16 rows and 16 columns as a second factor, whose columns the rows are: for rows 0 and 8 two words each.
__device__ __forceinline__ void second_factor_turned(u32 (&to_)[4], const Row* rows, u32 column) {
  u32 lane = threadIdx.x % 32;
  matrices(to_, &rows[lane % 8 + lane / 16 * 8][column + lane / 8 % 2 * 8]);
}
// 16 rows and 16 columns as a second factor: for columns 0 and 8 two words each.
__device__ __forceinline__ void second_factor(u32 (&to_)[4], const Row* rows, u32 column) {
  u32 lane = threadIdx.x % 32;
  matrices_turned(to_, &rows[lane % 16][column + lane / 16 * 8]);
}

// Sums, each for two columns of rows lane / 4 and that + 8, of N columns.
template <u32 N> struct Sums {
  float at[N / 8][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (u32 j = 0; j < N / 8; ++j) {
#pragma unroll
      for (int l = 0; l < 4; ++l) at[j][l] = 0.0f;
    }
  }
  // Adds the products of a warp's 16 rows in registers with N rows.
  __device__ __forceinline__ void add_turned(const u32 (&own)[DEPTH / 16][4], const Row* rows) {
#pragma unroll
    for (u32 k = 0; k < DEPTH / 16; ++k) add_turned_at(own[k], rows, k * 16);
  }
  // The same with 16 rows in shared memory.
  __device__ __forceinline__ void add_turned(const Row* own, const Row* rows) {
#pragma unroll
    for (u32 k = 0; k < DEPTH / 16; ++k) {
      u32 a[4];
      first_factor(a, own, k * 16);
      add_turned_at(a, rows, k * 16);
    }
  }
  __device__ __forceinline__ void add_turned_at(const u32 (&a)[4], const Row* rows, u32 column) {
#pragma unroll
    for (u32 j = 0; j < N / 16; ++j) {
      u32 b[4];
      second_factor_turned(b, rows + j * 16, column);
      multiply_add(at[2 * j], a, b[0], b[1], T{});
      multiply_add(at[2 * j + 1], a, b[2], b[3], T{});
    }
  }
  // Adds rows, each times a weight: weights of M rows for each of these 16.
  template <u32 M> __device__ __forceinline__ void add_weighted(const Sums<M>& weights, const Row* rows) {
#pragma unroll
    for (u32 k = 0; k < M / 16; ++k) {
      const float(&low)[4] = weights.at[2 * k], (&high)[4] = weights.at[2 * k + 1];
      u32 a[4] = {two(low[0], low[1], T{}), two(low[2], low[3], T{}), two(high[0], high[1], T{}), two(high[2], high[3], T{})};
#pragma unroll
      for (u32 j = 0; j < N / 16; ++j) {
        u32 b[4];
        second_factor(b, rows + k * 16, j * 16);
        multiply_add(at[2 * j], a, b[0], b[1], T{});
        multiply_add(at[2 * j + 1], a, b[2], b[3], T{});
      }
    }
  }
  // Writes those of 16 rows, each times a factor, of which there are `count`.
  __device__ __forceinline__ void write(T* rows, INDEX pitch, u32 count, const float (&factors)[2]) const {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      u32 row = lane / 4 + half * 8;
#pragma unroll
      for (u32 j = 0; j < N / 8; j += 2) {
        float found[2][2];
#pragma unroll
        for (u32 k = 0; k < 4; ++k) found[k / 2][k % 2] = at[j + k / 2][half * 2 + k % 2] * factors[half];
        if constexpr (WIDTH % 4 == 0) {
          u32 pair[2] = {two(found[0][0], found[0][1], T{}), two(found[1][0], found[1][1], T{})};
          side_by_side(pair);
          u32 column = j * 8 + lane % 4 * 4;
          if (row < count && column < WIDTH) *(Vec<u32, 2>*)(rows + row * pitch + column) = Vec<u32, 2>{{pair[0], pair[1]}};
        } else {
#pragma unroll
          for (u32 k = 0; k < 4; ++k) {
            u32 column = (j + k / 2) * 8 + lane % 4 * 2 + k % 2;
            if (row < count && column < WIDTH) rows[row * pitch + column] = to<T>(found[k / 2][k % 2]);
          }
        }
      }
    }
  }
};
