// Tiles of f32: a thread sums blocks of 4 by 4 elements that are 64 apart, while the next tiles are read.
//
// Macros: as of `convolution_tiles.cuh`.

#define BLOCKS_M (TILE_M / 64)
#define BLOCKS_N (TILE_N / 64)

struct Tiles {
  float a[TILE_K][TILE_M + 4];
  float b[TILE_K][TILE_N + 4];

  __device__ __forceinline__ void store(const Parts& parts) {
    u32 m, k, n;
#pragma unroll
    for (u32 part = 0; part < PARTS_A; ++part) {
      place_a(part, m, k);
#pragma unroll
      for (u32 l = 0; l < ALIGNED_A; ++l) {
        if (A_ALONG_K) a[k + l][m] = parts.a[part].at[l];
        else a[k][m + l] = parts.a[part].at[l];
      }
    }
#pragma unroll
    for (u32 part = 0; part < PARTS_B; ++part) {
      place_b(part, k, n);
#pragma unroll
      for (u32 l = 0; l < ALIGNED_B; ++l) {
        if (B_ALONG_N) b[k][n + l] = parts.b[part].at[l];
        else b[k + l][n] = parts.b[part].at[l];
      }
    }
  }
};

__device__ __forceinline__ void multiply(const Tiles& tiles, float (&sums)[BLOCKS_M * 4][BLOCKS_N * 4]) {
  u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
#pragma unroll
  for (u32 k = 0; k < TILE_K; ++k) {
    Vec<float, 4> a[BLOCKS_M], b[BLOCKS_N];
#pragma unroll
    for (u32 i = 0; i < BLOCKS_M; ++i) a[i] = *(const Vec<float, 4>*)&tiles.a[k][i * 64 + row];
#pragma unroll
    for (u32 j = 0; j < BLOCKS_N; ++j) b[j] = *(const Vec<float, 4>*)&tiles.b[k][j * 64 + column];
#pragma unroll
    for (u32 i = 0; i < BLOCKS_M * 4; ++i) {
#pragma unroll
      for (u32 j = 0; j < BLOCKS_N * 4; ++j) sums[i][j] = fmaf(a[i / 4].at[i % 4], b[j / 4].at[j % 4], sums[i][j]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(256) convolution_tiles(const T* a, const T* b, OUT* out
#if TAKES_PART
    , i64 first
#endif
) {
#if !TAKES_PART
  const u32 first = 0;
#endif
  __shared__ alignas(16) Tiles tiles[2];
  u32 group = blockIdx.z % GROUPS, chunk = blockIdx.z / GROUPS;
  u32 end = (chunk + 1) * CHUNK < TILES ? (chunk + 1) * CHUNK : TILES;
  float sums[BLOCKS_M * 4][BLOCKS_N * 4] = {};
  Parts parts;
  u32 tile = next_tile(chunk * CHUNK, end), turn = 0;
  if (tile < end) {
    parts.read(a, b, tile, group, (u32)first);
    tiles[0].store(parts);
  }
  __syncthreads();
  while (tile < end) {
    u32 next = next_tile(tile + 1, end);
    if (next < end) parts.read(a, b, next, group, (u32)first);
    multiply(tiles[turn], sums);
    turn ^= 1;
    if (next < end) tiles[turn].store(parts);
    __syncthreads();
    tile = next;
  }
  u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
#pragma unroll
  for (u32 i = 0; i < BLOCKS_M * 4; ++i) {
    INDEX m = (INDEX)blockIdx.x * TILE_M + i / 4 * 64 + row + i % 4;
#pragma unroll
    for (u32 j = 0; j < BLOCKS_N; ++j) {
      write<4>(out, sums[i] + j * 4, m, (INDEX)blockIdx.y * TILE_N + j * 64 + column, group, chunk);
    }
  }
}
