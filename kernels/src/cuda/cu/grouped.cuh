// What products of experts share: tiles of 64 x 64 sums, of which each of 256 threads has 4 x 4.
//
// Macros: T, the element type of the result, X and Y, those of the factors; SIZES, the parameters that are the sizes by which factors of 8 bits were
// rounded, if there are such, and DIVIDED, which divides a sum by their scales; GROUPS; EXPERTS, and EACH, how many of them share a block of places; ROOM, places of the shard; INNER
// and COLUMNS, elements of a place before and behind the product.

// The first place, or the end, of the places of the shard that an expert has for a group; `expert` counts all experts.
__device__ __forceinline__ i64 edge_of(const i64* ends, u64 group, u64 expert, bool end, i64 first_place) {
  bool begins = !end && expert % EACH == 0;
  i64 place = (begins ? 0 : ends[group * EXPERTS + expert - (end ? 0 : 1)]) - first_place;
  return place < 0 ? 0 : place > ROOM ? ROOM : place;
}

// Adds the products of 16 elements of the inner dim to the sums.
__device__ __forceinline__ void add_products(const float (*a)[64], const float (*b)[64], float (*sums)[4]) {
  u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
#pragma unroll
  for (u32 k = 0; k < 16; ++k) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
#pragma unroll
      for (u32 j = 0; j < 4; ++j) sums[i][j] += a[k][row + i] * b[k][column + j];
    }
  }
}
