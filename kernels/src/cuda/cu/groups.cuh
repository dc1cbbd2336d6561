// Products by a group of four warps, which tensor cores of compute capability 9.0 multiply while its threads go on (PTX ISA 8.0,
// "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions"). The first factor has 64 rows, 16 a warp, in registers as
// `matrices` leaves them, or lies in shared memory as the second one does.

// Where a matrix begins whose rows are 64 elements of 16 bits: 128 bytes, of which the pieces of 16 are exchanged within groups of eight
// rows, piece p of row r being at place p ^ r % 8. The first row begins at a multiple of 1024 bytes.
__device__ __forceinline__ u64 matrix_at(const void* rows) {
  u64 address = (u32)__cvta_generic_to_shared(rows);
  // Bytes from one group of eight rows to the next, and the kind of exchange.
  return (address & 0x3ffff) >> 4 | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}

// Before the first of several products: what registers hold is there.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Behind the last of several products.
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until no more than so many groups of products are on their way.
template <int LEFT> __device__ __forceinline__ void await_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }

#define FOUR_SUMS(row) "+f"(row[0]), "+f"(row[1]), "+f"(row[2]), "+f"(row[3])
#define SUMS_OF_32 FOUR_SUMS(sums[0]), FOUR_SUMS(sums[1]), FOUR_SUMS(sums[2]), FOUR_SUMS(sums[3])
#define SUMS_OF_64 SUMS_OF_32, FOUR_SUMS(sums[4]), FOUR_SUMS(sums[5]), FOUR_SUMS(sums[6]), FOUR_SUMS(sums[7])
#define PLACES_OF_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define PLACES_OF_64 PLACES_OF_32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"

// sums [64, N] += a [64, 16] b [16, N], of N / 8 columns of four sums; where it ADDS nothing, sums = a b, whatever they were. ACROSS, whether
// the 16 are the rows of b's matrix, otherwise they are elements of its rows. F to M are the places behind those of the sums.
#define GROUP_PRODUCT(N, COLUMNS, ELEMENT, NAME, F, G, H, I, K, L, M)                                                                  \
  template <int ACROSS, int ADDS>                                                                                                     \
  __device__ __forceinline__ void multiply_add_group(float (&sums)[COLUMNS][4], const u32 (&a)[4], u64 b, ELEMENT) {                  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" PLACES_OF_##N "}, {" F ", " G ", " H ", " I "}, " K \
                 ", " M ", 1, 1, " L ";"                                                                                              \
                 : SUMS_OF_##N                                                                                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ACROSS), "n"(ADDS));                                       \
  }                                                                                                                                   \
  template <int ACROSS, int ADDS>                                                                                                     \
  __device__ __forceinline__ void multiply_add_group(float (&sums)[COLUMNS][4], u64 a, u64 b, ELEMENT) {                              \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" PLACES_OF_##N "}, " F ", " G ", " I ", 1, 1, 0, " H ";" \
                 : SUMS_OF_##N                                                                                                        \
                 : "l"(a), "l"(b), "n"(ACROSS), "n"(ADDS));                                                                           \
  }
GROUP_PRODUCT(32, 4, bfloat_t, "bf16", "%16", "%17", "%18", "%19", "%20", "%21", "%22")
GROUP_PRODUCT(32, 4, half_t, "f16", "%16", "%17", "%18", "%19", "%20", "%21", "%22")
GROUP_PRODUCT(64, 8, bfloat_t, "bf16", "%32", "%33", "%34", "%35", "%36", "%37", "%38")
GROUP_PRODUCT(64, 8, half_t, "f16", "%32", "%33", "%34", "%35", "%36", "%37", "%38")

// A first factor that no other product reads.
struct Copy { u32 at[4]; };
template <int ACROSS, int ADDS, int COLUMNS, class Element>
__device__ __forceinline__ void multiply_add_group(float (&sums)[COLUMNS][4], const Copy& a, u64 b, Element element) {
  multiply_add_group<ACROSS, ADDS>(sums, a.at, b, element);
}

// Sums are used behind this, not before.
template <int COLUMNS> __device__ __forceinline__ void settle(float (&sums)[COLUMNS][4]) {
#pragma unroll
  for (int j = 0; j < COLUMNS; ++j) asm volatile("" : FOUR_SUMS(sums[j])::"memory");
}
