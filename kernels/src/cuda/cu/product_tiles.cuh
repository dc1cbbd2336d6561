// Products of matrices of which a block has tiles in shared memory, and sums a tile of the result: how threads read the factors and write
// the result. A line is a row of the first factor and a column of the second, so both are read alike.
//
// Macros besides those of `product_end.cuh`: T, the element type of the factors; ROWS, INNER, COLUMNS of a product; TILE, lines of a
// tile, and TILE_K, its part of the inner extent; of each factor (A_, B_) LEADING, the elements from a line to the next (or from one
// element of a line to the next), STRIDE, from a matrix of a batch to the next, ALONG_K, whether the elements of a line follow each other, and
// WIDTH, how many are read at once; of the result OUT_LEADING, OUT_STRIDE and OUT_WIDTH.

#define TILES_M ((ROWS + TILE - 1) / TILE)
#define TILES_N ((COLUMNS + TILE - 1) / TILE)
#define TILES_K ((INNER + TILE_K - 1) / TILE_K)

// Which tile of which product of a batch this block sums.
struct Block {
  u32 row, column;
  u64 batch;

  __device__ __forceinline__ Block() {
    column = blockIdx.x % TILES_N * TILE;
    row = blockIdx.x / TILES_N % TILES_M * TILE;
    batch = blockIdx.x / TILES_N / TILES_M;
  }
};

// What a thread reads of a tile of a factor.
template <bool ALONG_K, u32 WIDTH> struct Parts {
  static constexpr u32 COUNT = TILE * TILE_K / WIDTH / 256;
  Vec<T, WIDTH> at[COUNT];

  // Where a part lies in the tile.
  static __device__ __forceinline__ void place(u32 part, u32& line, u32& k) {
    u32 at = (part * 256 + threadIdx.x) * WIDTH;
    if (ALONG_K) line = at / TILE_K, k = at % TILE_K;
    else k = at / TILE, line = at % TILE;
  }

  // Beyond the ends of a matrix are zeros. Extents along which elements follow each other are multiples of WIDTH.
  __device__ __forceinline__ void read(const T* from, u64 leading, u32 first_line, u32 lines, u32 first_k) {
#pragma unroll
    for (u32 part = 0; part < COUNT; ++part) {
      u32 line, k;
      place(part, line, k);
      line += first_line, k += first_k;
      u64 place = ALONG_K ? line * leading + k : k * leading + line;
      at[part] = line < lines && k < INNER ? *(const Vec<T, WIDTH>*)(from + place) : Vec<T, WIDTH>{};
    }
  }
};

typedef Parts<A_ALONG_K, A_WIDTH> PartsA;
typedef Parts<B_ALONG_K, B_WIDTH> PartsB;

// A number of 64 bits of its halves.
__device__ __forceinline__ u64 joined(u32 low, u32 high) { return (u64)high << 32 | low; }

// Writes N sums that follow each other in a row.
template <u32 N> __device__ __forceinline__ void write(const float* sums, u32 row, u32 column, u64 base, OUT* out, const OUT* added, const OUT* bias, OUT* kept) {
  if (row >= ROWS) return;
  u64 at = base + (u64)row * OUT_LEADING + column;
  if constexpr (OUT_WIDTH % N == 0) {
    if (column >= COLUMNS) return;
    Vec<OUT, N> several;
#pragma unroll
    for (u32 l = 0; l < N; ++l) several.at[l] = to<OUT>(ended(sums[l], at + l, column + l, added, bias, kept));
    *(Vec<OUT, N>*)(out + at) = several;
  } else {
#pragma unroll
    for (u32 l = 0; l < N; ++l) {
      if (column + l < COLUMNS) out[at + l] = to<OUT>(ended(sums[l], at + l, column + l, added, bias, kept));
    }
  }
}
