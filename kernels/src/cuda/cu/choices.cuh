// Counts the choices of a group that are experts from `first` up to, but without, `end`. All 256 threads of a block call it, and `counts` has
// room for 8 numbers.
//
// Macros: TOKENS of a group and CHOICES of each.
__device__ __forceinline__ u64 choices_of(const i64* chosen, u64 group, i64 first, i64 end, u32* counts) {
  u64 all = 0;
  for (u64 start = 0; start < (u64)TOKENS * CHOICES; start += 256) {
    u64 number = start + threadIdx.x;
    i64 index = number < (u64)TOKENS * CHOICES ? chosen[group * ((u64)TOKENS * CHOICES) + number] : -1;
    u32 inside = __ballot_sync(ALL_LANES, index >= first && index < end);
    __syncthreads();
    if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = __popc(inside);
    __syncthreads();
#pragma unroll
    for (u32 warp = 0; warp < 8; ++warp) all += counts[warp];
  }
  // Who reads the last counts may be behind who writes the next ones.
  __syncthreads();
  return all;
}
