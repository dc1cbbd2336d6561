// Sums of the lines of a matrix: of its columns, or of its rows. A block makes sums of 256 or 1024 threads, LANES of them for ABREAST sums
// that lie beside each other; a thread adds every LANES-th element to sums of 64, these to a total in double, and the lanes' totals are
// added in pairs: the order follows from the extents alone.
//
// Macros: T and OUT, element types; SUMS, how many, a multiple of ABREAST; COUNT, elements of each; BETWEEN_SUMS and BETWEEN_ELEMENTS, how
// many elements apart they lie, of which the lesser is 1, that between sums where ABREAST is more than 1; THREADS; LANES, a power of two.

#define GROUPS (THREADS / LANES)

extern "C" __global__ void __launch_bounds__(THREADS) product_sums(const T* from, OUT* sums) {
  __shared__ double parts[ABREAST][THREADS];
  u32 lane = BETWEEN_ELEMENTS == 1 ? threadIdx.x % LANES : threadIdx.x / GROUPS;
  u32 local = BETWEEN_ELEMENTS == 1 ? threadIdx.x / LANES : threadIdx.x % GROUPS;
  u64 line = ((u64)blockIdx.x * GROUPS + local) * ABREAST;
  double totals[ABREAST] = {};
  if (line < SUMS) {
    for (u64 first = lane; first < COUNT; first += 64 * LANES) {
      float sum[ABREAST] = {};
#pragma unroll 4
      for (u64 e = first; e < COUNT && e < first + 64 * LANES; e += LANES) {
        Vec<T, ABREAST> found = *(const Vec<T, ABREAST>*)(from + line * BETWEEN_SUMS + e * BETWEEN_ELEMENTS);
#pragma unroll
        for (int k = 0; k < ABREAST; ++k) sum[k] += load(found.at[k]);
      }
#pragma unroll
      for (int k = 0; k < ABREAST; ++k) totals[k] += (double)sum[k];
    }
  }
  u32 own = local * LANES + lane;
#pragma unroll
  for (int k = 0; k < ABREAST; ++k) parts[k][own] = totals[k];
#pragma unroll
  for (u32 half = LANES / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) {
#pragma unroll
      for (int k = 0; k < ABREAST; ++k) parts[k][own] += parts[k][own + half];
    }
  }
  if (lane != 0 || line >= SUMS) return;
#pragma unroll
  for (int k = 0; k < ABREAST; ++k) sums[line + k] = to<OUT>((float)parts[k][own]);
}
