// Tiles of halves, multiplied by the tensor cores: eight warps, each with a part of the tile, while the next tiles are read.
//
// Macros: as of `product_tiles.cuh`.

// Warps along both dims of a tile, and what is one's.
#define WARPS_M 2
#define WARPS_N 4
#define OWN_M (TILE / WARPS_M)
#define OWN_N (TILE / WARPS_N)

// Rows are 16 bytes longer than needed, so that those of a matrix lie in different banks.
template <bool ALONG_K> struct Tile {
  T at[ALONG_K ? TILE : TILE_K][(ALONG_K ? TILE_K : TILE) + 8];

  template <u32 WIDTH> __device__ __forceinline__ void store(const Parts<ALONG_K, WIDTH>& parts) {
#pragma unroll
    for (u32 part = 0; part < Parts<ALONG_K, WIDTH>::COUNT; ++part) {
      u32 line, k;
      parts.place(part, line, k);
      *(Vec<T, WIDTH>*)&at[ALONG_K ? line : k][ALONG_K ? k : line] = parts.at[part];
    }
  }

  // 16 rows of the first factor.
  __device__ __forceinline__ void read_rows(u32 (&to)[4], u32 m, u32 k) const {
    u32 lane = threadIdx.x % 32;
    if constexpr (ALONG_K) matrices(to, &at[m + lane % 16][k + lane / 16 * 8]);
    else matrices_turned(to, &at[k + lane % 8 + lane / 16 * 8][m + lane / 8 % 2 * 8]);
  }

  // 16 columns of the second.
  __device__ __forceinline__ void read_columns(u32 (&to)[4], u32 k, u32 n) const {
    u32 lane = threadIdx.x % 32;
    if constexpr (ALONG_K) matrices(to, &at[n + lane % 8 + lane / 16 * 8][k + lane / 8 % 2 * 8]);
    else matrices_turned(to, &at[k + lane % 16][n + lane / 16 * 8]);
  }
};

struct Tiles {
  Tile<A_ALONG_K> a;
  Tile<B_ALONG_K> b;
};

__device__ __forceinline__ void multiply(const Tiles& tiles, float (&sums)[OWN_M / 16][OWN_N / 8][4]) {
  u32 warp = threadIdx.x / 32, row = warp / WARPS_N * OWN_M, column = warp % WARPS_N * OWN_N;
#pragma unroll
  for (u32 k = 0; k < TILE_K; k += 16) {
    u32 a[OWN_M / 16][4], b[OWN_N / 16][4];
#pragma unroll
    for (u32 i = 0; i < OWN_M / 16; ++i) tiles.a.read_rows(a[i], row + i * 16, k);
#pragma unroll
    for (u32 j = 0; j < OWN_N / 16; ++j) tiles.b.read_columns(b[j], k, column + j * 16);
#pragma unroll
    for (u32 i = 0; i < OWN_M / 16; ++i) {
#pragma unroll
      for (u32 j = 0; j < OWN_N / 8; ++j) multiply_add(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], T{});
    }
  }
}

// The first matrices of the factors and the result begin so many elements behind their addresses. Two blocks of a multiprocessor: for
// more of them the compiler would keep registers in memory.
extern "C" __global__ void __launch_bounds__(256, 2) product_tiles(const T* a, const T* b, OUT* out, const OUT* added, const OUT* bias, OUT* kept,
    u32 a_low, u32 a_high, u32 b_low, u32 b_high, u32 out_low, u32 out_high) {
  __shared__ alignas(16) Tiles tiles[2];
  Block block;
  a += joined(a_low, a_high) + block.batch * A_STRIDE;
  b += joined(b_low, b_high) + block.batch * B_STRIDE;
  float sums[OWN_M / 16][OWN_N / 8][4] = {};
  PartsA part_a;
  PartsB part_b;
  part_a.read(a, A_LEADING, block.row, ROWS, 0);
  part_b.read(b, B_LEADING, block.column, COLUMNS, 0);
  tiles[0].a.store(part_a);
  tiles[0].b.store(part_b);
  __syncthreads();
  for (u32 tile = 0; tile < TILES_K; ++tile) {
    bool more = tile + 1 < TILES_K;
    if (more) {
      part_a.read(a, A_LEADING, block.row, ROWS, (tile + 1) * TILE_K);
      part_b.read(b, B_LEADING, block.column, COLUMNS, (tile + 1) * TILE_K);
    }
    multiply(tiles[tile % 2], sums);
    if (more) {
      tiles[(tile + 1) % 2].a.store(part_a);
      tiles[(tile + 1) % 2].b.store(part_b);
    }
    __syncthreads();
  }
  u64 base = joined(out_low, out_high) + block.batch * OUT_STRIDE;
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  u32 row = block.row + warp / WARPS_N * OWN_M + lane / 4, column = block.column + warp % WARPS_N * OWN_N + lane % 4 * 2;
#pragma unroll
  for (u32 i = 0; i < OWN_M / 16; ++i) {
#pragma unroll
    for (u32 j = 0; j < OWN_N / 8; ++j) {
      write<2>(sums[i][j], row + i * 16, column + j * 8, base, out, added, bias, kept);
      write<2>(sums[i][j] + 2, row + i * 16 + 8, column + j * 8, base, out, added, bias, kept);
    }
  }
}
