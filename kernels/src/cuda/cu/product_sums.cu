// Sums of the lines of a matrix: of its columns, or of its rows. A block makes SUMS_AT_ONCE sums with LANES threads each; a thread adds
// every LANES-th element to sums of 64, these to a total in double, and the lanes' totals are added in pairs: the order follows from
// the extents alone.
//
// Macros: T and OUT, element types; SUMS, how many; COUNT, elements of each; BETWEEN_SUMS and BETWEEN_ELEMENTS, how many elements apart
// they lie, of which the lesser is 1; LANES, a power of two.

#define SUMS_AT_ONCE (256 / LANES)

extern "C" __global__ void __launch_bounds__(256) product_sums(const T* from, OUT* sums) {
  __shared__ double parts[256];
  u32 lane = BETWEEN_ELEMENTS == 1 ? threadIdx.x % LANES : threadIdx.x / SUMS_AT_ONCE;
  u32 local = BETWEEN_ELEMENTS == 1 ? threadIdx.x / LANES : threadIdx.x % SUMS_AT_ONCE;
  u64 line = (u64)blockIdx.x * SUMS_AT_ONCE + local;
  double total = 0.0;
  if (line < SUMS) {
    for (u64 first = lane; first < COUNT; first += 64 * LANES) {
      float sum = 0.0f;
      for (u64 e = first; e < COUNT && e < first + 64 * LANES; e += LANES) {
        sum += load(from[line * BETWEEN_SUMS + e * BETWEEN_ELEMENTS]);
      }
      total += (double)sum;
    }
  }
  double* own = parts + local * LANES;
  own[lane] = total;
#pragma unroll
  for (u32 half = LANES / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) own[lane] += own[lane + half];
  }
  if (lane == 0 && line < SUMS) sums[line] = to<OUT>((float)own[0]);
}
