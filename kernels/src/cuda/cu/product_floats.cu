// Tiles of f32: a thread sums blocks of 4 by 4 elements that are 64 apart, while the next tiles are read.
//
// Macros: as of `product_tiles.cuh`.

#define BLOCKS (TILE / 64)

struct Tiles {
  float a[TILE_K][TILE + 4];
  float b[TILE_K][TILE + 4];
};

template <bool ALONG_K, u32 WIDTH>
__device__ __forceinline__ void store(float (&tile)[TILE_K][TILE + 4], const Parts<ALONG_K, WIDTH>& parts) {
#pragma unroll
  for (u32 part = 0; part < Parts<ALONG_K, WIDTH>::COUNT; ++part) {
    u32 line, k;
    parts.place(part, line, k);
#pragma unroll
    for (u32 l = 0; l < WIDTH; ++l) tile[ALONG_K ? k + l : k][ALONG_K ? line : line + l] = parts.at[part].at[l];
  }
}

__device__ __forceinline__ void multiply(const Tiles& tiles, float (&sums)[BLOCKS * 4][BLOCKS * 4]) {
  u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
#pragma unroll
  for (u32 k = 0; k < TILE_K; ++k) {
    Vec<float, 4> a[BLOCKS], b[BLOCKS];
#pragma unroll
    for (u32 i = 0; i < BLOCKS; ++i) {
      a[i] = *(const Vec<float, 4>*)&tiles.a[k][i * 64 + row];
      b[i] = *(const Vec<float, 4>*)&tiles.b[k][i * 64 + column];
    }
#pragma unroll
    for (u32 i = 0; i < BLOCKS * 4; ++i) {
#pragma unroll
      for (u32 j = 0; j < BLOCKS * 4; ++j) sums[i][j] = fmaf(a[i / 4].at[i % 4], b[j / 4].at[j % 4], sums[i][j]);
    }
  }
}

// The first matrices of the factors and the result begin so many elements behind their addresses.
extern "C" __global__ void __launch_bounds__(256) product_tiles(const T* a, const T* b, OUT* out, const OUT* added, const OUT* bias, OUT* kept,
    u32 a_low, u32 a_high, u32 b_low, u32 b_high, u32 out_low, u32 out_high) {
  __shared__ alignas(16) Tiles tiles[2];
  Block block;
  a += joined(a_low, a_high) + block.batch * A_STRIDE;
  b += joined(b_low, b_high) + block.batch * B_STRIDE;
  float sums[BLOCKS * 4][BLOCKS * 4] = {};
  PartsA part_a;
  PartsB part_b;
  part_a.read(a, A_LEADING, block.row, ROWS, 0);
  part_b.read(b, B_LEADING, block.column, COLUMNS, 0);
  store(tiles[0].a, part_a);
  store(tiles[0].b, part_b);
  __syncthreads();
  for (u32 tile = 0; tile < TILES_K; ++tile) {
    bool more = tile + 1 < TILES_K;
    if (more) {
      part_a.read(a, A_LEADING, block.row, ROWS, (tile + 1) * TILE_K);
      part_b.read(b, B_LEADING, block.column, COLUMNS, (tile + 1) * TILE_K);
    }
    multiply(tiles[tile % 2], sums);
    if (more) {
      store(tiles[(tile + 1) % 2].a, part_a);
      store(tiles[(tile + 1) % 2].b, part_b);
    }
    __syncthreads();
  }
  u64 base = joined(out_low, out_high) + block.batch * OUT_STRIDE;
  u32 row = block.row + threadIdx.x / 16 * 4, column = block.column + threadIdx.x % 16 * 4;
#pragma unroll
  for (u32 i = 0; i < BLOCKS * 4; ++i) {
#pragma unroll
    for (u32 j = 0; j < BLOCKS; ++j) {
      write<4>(sums[i] + j * 4, row + i / 4 * 64 + i % 4, column + j * 64, base, out, added, bias, kept);
    }
  }
}
