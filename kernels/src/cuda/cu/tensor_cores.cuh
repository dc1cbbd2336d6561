// Products of 16 x 16 and 16 x 8 elements of 16 bits by a warp, with sums of f32. Lane l of a warp has of a matrix of 8 x 8 the elements
// 2 (l % 4) and the next of row l / 4.

// Four such matrices from shared memory, of which lane l says where row l % 8 of matrix l / 8 begins, a multiple of 16 bytes.
__device__ __forceinline__ void matrices(u32 (&to)[4], const void* row) {
  u32 at = (u32)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}
// The same, each matrix transposed.
__device__ __forceinline__ void matrices_turned(u32 (&to)[4], const void* row) {
  u32 at = (u32)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}

// sums [16, 8] += a [16, 16] b [16, 8]. Of a the matrices are: rows 0 and 8 of columns 0, then of columns 8; of b: rows 0 and 8, each
// transposed; of sums rows 0 and 8, two elements each.
__device__ __forceinline__ void multiply_add(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1, bfloat_t) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_add(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1, half_t) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two numbers, each rounded, as the lower and the higher half of a word.
__device__ __forceinline__ u32 two(float low, float high, bfloat_t) {
  u32 word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ __forceinline__ u32 two(float low, float high, half_t) {
  u32 word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// Of two results of 8 columns beside each other a lane has two columns each. Afterwards it has four that follow each other, from four times
// its place among four lanes on, so that four lanes write a whole sector of a row. All lanes of the warp take part.
__device__ __forceinline__ void side_by_side(u32 (&pair)[2]) {
  u32 lane = threadIdx.x % 32, from = (lane & 28) | (lane * 2 & 2);
  u32 a0 = __shfl_sync(ALL_LANES, pair[0], from), a1 = __shfl_sync(ALL_LANES, pair[1], from);
  u32 b0 = __shfl_sync(ALL_LANES, pair[0], from + 1), b1 = __shfl_sync(ALL_LANES, pair[1], from + 1);
  pair[0] = lane & 2 ? a1 : a0;
  pair[1] = lane & 2 ? b1 : b0;
}
