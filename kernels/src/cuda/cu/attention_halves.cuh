// Rows of heads as tiles of halves in shared memory, from which warps read matrices for the tensor cores. Rows are DEPTH elements wide,
// a multiple of 16 of which those beyond WIDTH are 0. They are 16 bytes longer, so that those of a matrix lie in different banks. Where a
// group of four warps multiplies (GROUPED), they lie as its products want them: the first 64 elements of all rows, then the next 64.
//
// Macros besides those of attention: DEPTH.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && (WIDTH == 64 || WIDTH == 128)
#define GROUPED 1
#define PANELS (DEPTH / 64)
#define LENGTH 64
#define ROW_ALIGNMENT 1024
#else
#define GROUPED 0
#define PANELS 1
#define LENGTH (DEPTH + 8)
#define ROW_ALIGNMENT 16
#endif

typedef T Row[LENGTH];

// Where an element of a tile of ROWS rows is: those at multiples of 8 begin 16 bytes that lie together.
template <u32 ROWS> __device__ __forceinline__ T* place_in(Row* rows, u32 row, u32 column) {
#if GROUPED
  return &rows[column / 64 * ROWS + row][column % 64 ^ row % 8 * 8];
#else
  return &rows[row][column];
#endif
}

// Begins to bring rows, `pitch` apart, of which there are `count`; the others become 0.
template <u32 ROWS> __device__ __forceinline__ void bring(Row* to_, const T* rows, INDEX pitch, u32 count) {
  if constexpr (WIDTH % 8 == 0) {
    for (u32 at = threadIdx.x; at < ROWS * (DEPTH / 8); at += 128) {
      u32 row = at / (DEPTH / 8), column = at % (DEPTH / 8) * 8;
      T* place = place_in<ROWS>(to_, row, column);
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

// Waits until all that was begun is there, for all threads and for the tensor cores.
__device__ __forceinline__ void wait() {
  asm volatile("cp.async.wait_group 0;" ::: "memory");
#if GROUPED
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  __syncthreads();
}

// 16 rows from `first` on and 16 columns of a tile as a first factor.
template <u32 ROWS> __device__ __forceinline__ void first_factor(u32 (&to_)[4], Row* rows, u32 first, u32 column) {
  u32 lane = threadIdx.x % 32;
  matrices(to_, place_in<ROWS>(rows, first + lane % 16, column + lane / 16 * 8));
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

#if GROUPED
// 0, which the compiler does not know.
__shared__ u32 zero;
__device__ __forceinline__ u32 read_zero() {
  u32 found;
  asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(found) : "r"((u32)__cvta_generic_to_shared(&zero)) : "memory");
  return found;
}
#endif

// Of a tile of 64 rows a warp's 16 as a first factor: in registers.
struct Held {
  u32 at[DEPTH / 16][4];
  // All threads meet behind it before a product.
  __device__ __forceinline__ void take(Row* rows) {
#if GROUPED
    if (threadIdx.x == 0) zero = 0;
#endif
#pragma unroll
    for (u32 k = 0; k < DEPTH / 16; ++k) first_factor<64>(at[k], rows, threadIdx.x / 32 * 16, k * 16);
  }
  __device__ __forceinline__ void factor(u32 (&to_)[4], u32 k) const {
#pragma unroll
    for (int l = 0; l < 4; ++l) to_[l] = at[k][l];
  }
#if GROUPED
  // NVRTC 13.0 takes registers for free that products of a loop have read, though the next turn reads them again: each turn has copies.
  __device__ __forceinline__ Copy of_group(u32 k, u32 nothing) const {
    Copy copy;
#pragma unroll
    for (int l = 0; l < 4; ++l) asm volatile("xor.b32 %0, %1, %2;" : "=r"(copy.at[l]) : "r"(at[k][l]), "r"(nothing));
    return copy;
  }
#endif
};
// The same where it lies in shared memory.
struct Lying {
  Row* rows;
  __device__ __forceinline__ void take(Row* from) { rows = from; }
  __device__ __forceinline__ void factor(u32 (&to_)[4], u32 k) const { first_factor<64>(to_, rows, threadIdx.x / 32 * 16, k * 16); }
#if GROUPED
  __device__ __forceinline__ u64 of_group(u32 k, u32) const { return matrix_at(rows + k / 4 * 64) + k % 4 * 2; }
#endif
};

// Waits for products that were begun, all but the last LEFT groups of them.
template <int LEFT> __device__ __forceinline__ void finish() {
#if GROUPED
  await_products<LEFT>();
#endif
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
  // Sums that were begun are used behind this.
  __device__ __forceinline__ void settled() {
#if GROUPED
    settle(at);
#endif
  }
  // Begins the products of a warp's 16 rows with a tile of N rows, whatever the sums were.
  template <class Own> __device__ __forceinline__ void begin_turned(const Own& own, Row* rows) {
#if GROUPED
    u32 nothing = read_zero();
    begin_products();
#pragma unroll
    for (u32 k = 0; k < DEPTH / 16; ++k) {
      if (k == 4) {
        // So that copies of all factors need not be there at one time.
        end_products();
        finish<0>();
        settle(at);
        begin_products();
      }
      u64 columns = matrix_at(rows + k / 4 * N) + k % 4 * 2;
      if (k == 0) multiply_add_group<0, 0>(at, own.of_group(k, nothing), columns, T{});
      else multiply_add_group<0, 1>(at, own.of_group(k, nothing), columns, T{});
    }
    end_products();
#else
    clear();
#pragma unroll
    for (u32 k = 0; k < DEPTH / 16; ++k) {
      u32 a[4];
      own.factor(a, k);
#pragma unroll
      for (u32 j = 0; j < N / 16; ++j) {
        u32 b[4];
        second_factor_turned(b, rows + j * 16, k * 16);
        multiply_add(at[2 * j], a, b[0], b[1], T{});
        multiply_add(at[2 * j + 1], a, b[2], b[3], T{});
      }
    }
#endif
  }
  // These sums as a first factor, rounded.
  __device__ __forceinline__ void as_factor(u32 (&to_)[N / 16][4]) const {
#pragma unroll
    for (u32 k = 0; k < N / 16; ++k) {
      const float(&low)[4] = at[2 * k], (&high)[4] = at[2 * k + 1];
      to_[k][0] = two(low[0], low[1], T{});
      to_[k][1] = two(low[2], low[3], T{});
      to_[k][2] = two(high[0], high[1], T{});
      to_[k][3] = two(high[2], high[3], T{});
    }
  }
  // Begins to add the rows of a tile of 16 M rows, each times a weight for each of these 16.
  template <u32 M> __device__ __forceinline__ void add_weighted(const u32 (&weights)[M][4], Row* rows) {
#if GROUPED
    settle(at);
    begin_products();
#pragma unroll
    for (u32 k = 0; k < M; ++k) {
#pragma unroll
      for (u32 panel = 0; panel < PANELS; ++panel) {
        multiply_add_group<1, 1>((float(&)[8][4])at[panel * 8], weights[k], matrix_at(rows + panel * M * 16 + k * 16), T{});
      }
    }
    end_products();
#else
#pragma unroll
    for (u32 k = 0; k < M; ++k) {
#pragma unroll
      for (u32 j = 0; j < N / 16; ++j) {
        u32 b[4];
        second_factor(b, rows + k * 16, j * 16);
        multiply_add(at[2 * j], weights[k], b[0], b[1], T{});
        multiply_add(at[2 * j + 1], weights[k], b[2], b[3], T{});
      }
    }
#endif
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

// By what a logarithm to base 2 is multiplied for one to base e.
#define LOG_2 0.693147180559945309f

// Of what a score is made here: of the product alone where that grows with the score, so that FACTOR times it is LOG2_E times the score;
// otherwise of all that belongs to it.
#if HAS_BIAS || CAPPED
#define PLAIN false
#else
#define PLAIN (SCALE > 0.0f)
#endif
#define FACTOR (PLAIN ? SCALE * LOG2_E : LOG2_E)
#define SCORE_OR_PRODUCT(product, batch, head, query, key) (PLAIN ? (product) : SCORE(product, batch, head, query, key))

// Whether every query from `start` on, `queries` of them, sees every key from `first` on, `keys` of them.
__device__ __forceinline__ bool sees_all(u32 start, u32 queries, u32 first, u32 keys, i64 ahead) {
  return ASCENDING && start + queries <= QUERIES && first + keys <= seen(start, ahead) && first >= passed(start + queries - 1, ahead);
}
struct Whole { static constexpr bool value = true; };
struct Part { static constexpr bool value = false; };
