// Tiles of halves, multiplied by the tensor cores: eight warps, each with a part of the tile, while the next tiles are read.
//
// Macros: as of `convolution_tiles.cuh`.

// Warps along both dims of a tile, and what is one's.
#define WARPS_M (TILE_M == 128 && TILE_N == 64 ? 4 : 2)
#define WARPS_N (8 / WARPS_M)
#define OWN_M (TILE_M / WARPS_M)
#define OWN_N (TILE_N / WARPS_N)

// Rows are 16 bytes longer than needed, so that those of a matrix lie in different banks.
struct Tiles {
#if A_ALONG_K
  T a[TILE_M][TILE_K + 8];
#else
  T a[TILE_K][TILE_M + 8];
#endif
#if B_ALONG_N
  T b[TILE_K][TILE_N + 8];
#else
  T b[TILE_N][TILE_K + 8];
#endif

  __device__ __forceinline__ void store(const Parts& parts) {
    u32 m, k, n;
#pragma unroll
    for (u32 part = 0; part < PARTS_A; ++part) {
      place_a(part, m, k);
      *(PartA*)(A_ALONG_K ? &a[m][k] : &a[k][m]) = parts.a[part];
    }
#pragma unroll
    for (u32 part = 0; part < PARTS_B; ++part) {
      place_b(part, k, n);
      *(PartB*)(B_ALONG_N ? &b[k][n] : &b[n][k]) = parts.b[part];
    }
  }

  __device__ __forceinline__ void read_a(u32 (&to)[4], u32 m, u32 k) const {
    u32 lane = threadIdx.x % 32;
#if A_ALONG_K
    matrices(to, &a[m + lane % 16][k + lane / 16 * 8]);
#else
    matrices_turned(to, &a[k + lane % 8 + lane / 16 * 8][m + lane / 8 % 2 * 8]);
#endif
  }
  // Of 16 columns.
  __device__ __forceinline__ void read_b(u32 (&to)[4], u32 k, u32 n) const {
    u32 lane = threadIdx.x % 32;
#if B_ALONG_N
    matrices_turned(to, &b[k + lane % 16][n + lane / 16 * 8]);
#else
    matrices(to, &b[n + lane % 8 + lane / 16 * 8][k + lane / 8 % 2 * 8]);
#endif
  }
};

__device__ __forceinline__ void multiply(const Tiles& tiles, float (&sums)[OWN_M / 16][OWN_N / 8][4]) {
  u32 warp = threadIdx.x / 32, row = warp / WARPS_N * OWN_M, column = warp % WARPS_N * OWN_N;
#pragma unroll
  for (u32 k = 0; k < TILE_K; k += 16) {
    u32 a[OWN_M / 16][4], b[OWN_N / 16][4];
#pragma unroll
    for (u32 i = 0; i < OWN_M / 16; ++i) tiles.read_a(a[i], row + i * 16, k);
#pragma unroll
    for (u32 j = 0; j < OWN_N / 16; ++j) tiles.read_b(b[j], k, column + j * 16);
#pragma unroll
    for (u32 i = 0; i < OWN_M / 16; ++i) {
#pragma unroll
      for (u32 j = 0; j < OWN_N / 8; ++j) multiply_add(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], T{});
    }
  }
}

// Writes what a warp has of eight rows and 16 columns: a lane two columns of each half.
__device__ __forceinline__ void write_rows(OUT* out, const float* left, const float* right, INDEX m, INDEX column, u32 group, u32 chunk) {
  u32 lane = threadIdx.x % 32;
  if constexpr (SIDE_BY_SIDE && COLUMNS % 4 == 0 && sizeof(OUT) == 2) {
    u32 pair[2] = {two(left[0], left[1], T{}), two(right[0], right[1], T{})};
    side_by_side(pair);
    INDEX at;
    if (out_at(m, column + lane % 4 * 4, group, chunk, at)) *(Vec<u32, 2>*)(out + at) = Vec<u32, 2>{{pair[0], pair[1]}};
  } else {
    write<2>(out, left, m, column + lane % 4 * 2, group, chunk);
    write<2>(out, right, m, column + 8 + lane % 4 * 2, group, chunk);
  }
}

// Two blocks of a multiprocessor: for more of them the compiler would keep registers in memory.
extern "C" __global__ void __launch_bounds__(256, 2) convolution_tiles(const T* a, const T* b, OUT* out
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
  float sums[OWN_M / 16][OWN_N / 8][4] = {};
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
  u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  INDEX row = (INDEX)blockIdx.x * TILE_M + warp / WARPS_N * OWN_M + lane / 4;
  INDEX column = (INDEX)blockIdx.y * TILE_N + warp % WARPS_N * OWN_N;
#pragma unroll
  for (u32 i = 0; i < OWN_M / 16; ++i) {
#pragma unroll
    for (u32 j = 0; j < OWN_N / 8; j += 2) {
      write_rows(out, sums[i][j], sums[i][j + 1], row + i * 16, column + j * 8, group, chunk);
      write_rows(out, sums[i][j] + 2, sums[i][j + 1] + 2, row + i * 16 + 8, column + j * 8, group, chunk);
    }
  }
}
