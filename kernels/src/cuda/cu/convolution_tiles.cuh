// Convolutions as products of matrices of which a block has tiles in shared memory: where the elements of both factors lie, and how
// threads read them. Factors of one group are
//
//   FORWARD      a: places x (taps, channels) of x              b: kernels, packed           out: places x features
//   INPUT_GRAD   a: elements of dx x (taps, features) of dy     b: kernels, packed           out: elements of dx x channels
//   KERNEL_GRAD  a: features x places of dy                     b: places x (taps, channels)  out: sums of a chunk of places
//
// Macros besides those of convolutions: ROWS, COLUMNS, DEPTH of the product of a group; PHASE_ROWS, the rows of dx that lie alike to
// the steps of the window; TILE_M, TILE_N, TILE_K; CHUNKS, of CHUNK tiles of the depth each; ALIGNED_A and ALIGNED_B, elements that are
// read at once; A_ALONG_K and B_ALONG_N, along what; SIDE_BY_SIDE, whether columns of `out` are in memory, by fours; TAKES_PART,
// whether kernels take the channels of a group from `first` on alone; OUT, the type of sums in memory.

#define PARTS_A (TILE_M * TILE_K / ALIGNED_A / 256)
#define PARTS_B (TILE_N * TILE_K / ALIGNED_B / 256)
#define TILES ((DEPTH + TILE_K - 1) / TILE_K)

typedef Vec<T, ALIGNED_A> PartA;
typedef Vec<T, ALIGNED_B> PartB;

#if KIND == INPUT_GRAD
#define PHASE_H ((IMAGE_H + STEP_H - 1) / STEP_H)
#define PHASE_W ((IMAGE_W + STEP_W - 1) / STEP_W)

// The element of dx that a row is, of the first channel; whether there is one.
__device__ __forceinline__ bool element_of(INDEX m, u32& n, u32& row, u32& column) {
  u32 phase = (u32)(m / PHASE_ROWS);
  INDEX rest = m % PHASE_ROWS;
  column = (u32)(rest % PHASE_W) * STEP_W + phase % STEP_W;
  row = (u32)(rest / PHASE_W % PHASE_H) * STEP_H + phase / STEP_W;
  n = (u32)(rest / PHASE_W / PHASE_H);
  return n < BATCH && row < IMAGE_H && column < IMAGE_W;
}

// Whether rows of a phase ever meet an element of the window.
__device__ __forceinline__ bool meets(u32 phase, u32 tap) {
  // A multiple of the steps is added, so that no number is below 0.
  u32 ahead_h = phase / STEP_W + PAD_H + (KERNEL_H * STEP_H - tap / KERNEL_W) * REACH_H;
  u32 ahead_w = phase % STEP_W + PAD_W + (KERNEL_W * STEP_W - tap % KERNEL_W) * REACH_W;
  return ahead_h % STEP_H == 0 && ahead_w % STEP_W == 0;
}
#endif

// The first tile of the depth from this one on in which there is anything to multiply.
__device__ __forceinline__ u32 next_tile(u32 tile, u32 end) {
#if KIND == INPUT_GRAD && STEP_H * STEP_W > 1
  u32 phase = (u32)((INDEX)blockIdx.x * TILE_M / PHASE_ROWS);
  for (; tile < end; ++tile) {
    u32 last = (tile + 1) * TILE_K - 1 < DEPTH ? (tile + 1) * TILE_K - 1 : DEPTH - 1;
    for (u32 tap = tile * TILE_K / OUTPUTS; tap <= last / OUTPUTS; ++tap) {
      if (meets(phase, tap)) return tile;
    }
  }
#endif
  return tile;
}

// Where an element of the first factor lies; whether it is not 0.
__device__ __forceinline__ bool a_at(INDEX m, INDEX k, u32 group, u32 first, INDEX& at) {
#if KIND == FORWARD
  u32 q = (u32)(m % SHOWN_W), p = (u32)(m / SHOWN_W % SHOWN_H), n = (u32)(m / SHOWN_W / SHOWN_H);
  u32 c = (u32)(k % INPUTS), tap = (u32)(k / INPUTS), row, column;
  bool inside = m < ROWS && k < DEPTH && row_of(p, tap / KERNEL_W, row) && column_of(q, tap % KERNEL_W, column);
  if (inside) at = in_x(n, row, column, group * GROUP + first + c);
  return inside;
#elif KIND == INPUT_GRAD
  u32 n, row, column, p, q, o = (u32)(k % OUTPUTS), tap = (u32)(k / OUTPUTS);
  bool inside = m < ROWS && k < DEPTH && element_of(m, n, row, column) && place_of_row(row, tap / KERNEL_W, p) &&
                place_of_column(column, tap % KERNEL_W, q);
  if (inside) at = in_y(n, p, q, group * OUTPUTS + o);
  return inside;
#else
  u32 q = (u32)(k % SHOWN_W), p = (u32)(k / SHOWN_W % SHOWN_H), n = (u32)(k / SHOWN_W / SHOWN_H);
  at = in_y(n, p, q, group * OUTPUTS + (u32)m);
  return m < ROWS && k < DEPTH;
#endif
}

__device__ __forceinline__ bool b_at(INDEX k, INDEX column, u32 group, INDEX& at) {
#if KIND == KERNEL_GRAD
  u32 q = (u32)(k % SHOWN_W), p = (u32)(k / SHOWN_W % SHOWN_H), n = (u32)(k / SHOWN_W / SHOWN_H);
  u32 c = (u32)(column % INPUTS), tap = (u32)(column / INPUTS), row, place;
  bool inside = k < DEPTH && column < COLUMNS && row_of(p, tap / KERNEL_W, row) && column_of(q, tap % KERNEL_W, place);
  if (inside) at = in_x(n, row, place, group * GROUP + c);
  return inside;
#else
  at = ((INDEX)group * DEPTH + k) * COLUMNS + column;
  return k < DEPTH && column < COLUMNS;
#endif
}

// Where a thread's part of a tile lies in the tile.
__device__ __forceinline__ void place_a(u32 part, u32& m, u32& k) {
  u32 at = part * 256 + threadIdx.x;
#if A_ALONG_K
  k = at % (TILE_K / ALIGNED_A) * ALIGNED_A, m = at / (TILE_K / ALIGNED_A);
#else
  m = at % (TILE_M / ALIGNED_A) * ALIGNED_A, k = at / (TILE_M / ALIGNED_A);
#endif
}
__device__ __forceinline__ void place_b(u32 part, u32& k, u32& n) {
  u32 at = part * 256 + threadIdx.x;
#if B_ALONG_N
  n = at % (TILE_N / ALIGNED_B) * ALIGNED_B, k = at / (TILE_N / ALIGNED_B);
#else
  k = at % (TILE_K / ALIGNED_B) * ALIGNED_B, n = at / (TILE_K / ALIGNED_B);
#endif
}

// A thread's parts of a tile of both factors.
struct Parts {
  PartA a[PARTS_A];
  PartB b[PARTS_B];

  __device__ __forceinline__ void read(const T* from_a, const T* from_b, u32 tile, u32 group, u32 first) {
    u32 m, k, n;
    INDEX at;
#pragma unroll
    for (u32 part = 0; part < PARTS_A; ++part) {
      place_a(part, m, k);
      bool inside = a_at((INDEX)blockIdx.x * TILE_M + m, (INDEX)tile * TILE_K + k, group, first, at);
      a[part] = inside ? *(const PartA*)(from_a + at) : PartA{};
    }
#pragma unroll
    for (u32 part = 0; part < PARTS_B; ++part) {
      place_b(part, k, n);
      bool inside = b_at((INDEX)tile * TILE_K + k, (INDEX)blockIdx.y * TILE_N + n, group, at);
      b[part] = inside ? *(const PartB*)(from_b + at) : PartB{};
    }
  }
};

// Where an element of the result is written; whether there is one.
__device__ __forceinline__ bool out_at(INDEX m, INDEX column, u32 group, u32 chunk, INDEX& at) {
  if (m >= ROWS || column >= COLUMNS) return false;
#if KIND == FORWARD
  u32 q = (u32)(m % SHOWN_W), p = (u32)(m / SHOWN_W % SHOWN_H), n = (u32)(m / SHOWN_W / SHOWN_H);
  at = in_y(n, p, q, group * OUTPUTS + (u32)column);
#elif KIND == INPUT_GRAD
  u32 n, row, place;
  if (!element_of(m, n, row, place)) return false;
  at = in_x(n, row, place, group * GROUP + (u32)column);
#else
  at = (((INDEX)chunk * GROUPS + group) * OUTPUTS + m) * COLUMNS + column;
#endif
  return true;
}

// Writes sums of columns that follow each other.
template <int N> __device__ __forceinline__ void write(OUT* out, const float* sums, INDEX m, INDEX column, u32 group, u32 chunk) {
  INDEX at;
  if constexpr (SIDE_BY_SIDE && COLUMNS % N == 0) {
    if (!out_at(m, column, group, chunk, at)) return;
    Vec<OUT, N> several;
#pragma unroll
    for (int l = 0; l < N; ++l) several.at[l] = to<OUT>(sums[l]);
    *(Vec<OUT, N>*)(out + at) = several;
  } else {
#pragma unroll
    for (int l = 0; l < N; ++l) {
      if (out_at(m, column + l, group, chunk, at)) out[at] = to<OUT>(sums[l]);
    }
  }
}
