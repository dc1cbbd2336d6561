// For each row of the result the positions whose place it is, in their order. First they are counted, then each row's list gets its place
// in memory, then positions are put into the lists in any order, and last each finds its place in its list. Counts are whole numbers, so
// it does not matter in which order atomic additions are made.
//
// Macros: those of places; COUNT, places of all batches.

// `rows` gets the row of each position, `counts` how many each row has.
extern "C" __global__ void __launch_bounds__(256) count(
    const i64* places, i64* rows, u32* counts, i64 first, Fault* account, u32 call) {
  u64 position = (u64)blockIdx.x * 256 + threadIdx.x;
  if (position >= COUNT) return;
  i64 row = row_of(places, position, first, account, call);
  rows[position] = row;
  if (row >= 0) atomicAdd(&counts[row], 1u);
}

// `starts` gets where each list begins, `counts` becomes 0 again. A block for each batch, whose lists are behind those before.
extern "C" __global__ void __launch_bounds__(1024) arrange(u32* counts, u32* starts) {
  __shared__ u32 sums[32];
  u32 before = blockIdx.x * PLACES, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  counts += (u64)blockIdx.x * EXTENT;
  starts += (u64)blockIdx.x * EXTENT;
  for (u64 first = 0; first < EXTENT; first += 1024) {
    u64 row = first + threadIdx.x;
    u32 own = row < EXTENT ? counts[row] : 0, sum = own;
#pragma unroll
    for (u32 distance = 1; distance < 32; distance *= 2) {
      u32 other = __shfl_up_sync(ALL_LANES, sum, distance);
      if (lane >= distance) sum += other;
    }
    __syncthreads();
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    u32 all = 0;
#pragma unroll
    for (u32 other = 0; other < 32; ++other) {
      if (other < warp) sum += sums[other];
      all += sums[other];
    }
    if (row < EXTENT) {
      starts[row] = before + sum - own;
      counts[row] = 0;
    }
    before += all;
  }
}

// Puts positions into the lists.
extern "C" __global__ void __launch_bounds__(256) enlist(const i64* rows, const u32* starts, u32* counts, u32* lists) {
  u64 position = (u64)blockIdx.x * 256 + threadIdx.x;
  if (position >= COUNT) return;
  i64 row = rows[position];
  if (row >= 0) lists[starts[row] + atomicAdd(&counts[row], 1u)] = (u32)position;
}

// Puts the positions of each list in order: `sorted` gets what `lists` holds.
extern "C" __global__ void __launch_bounds__(256) order(
    const i64* rows, const u32* starts, const u32* counts, const u32* lists, u32* sorted) {
  u64 position = (u64)blockIdx.x * 256 + threadIdx.x;
  if (position >= COUNT) return;
  i64 row = rows[position];
  if (row < 0) return;
  u32 start = starts[row], length = counts[row], before = 0;
  for (u32 i = 0; i < length; ++i) before += lists[start + i] < (u32)position;
  sorted[start + before] = (u32)position;
}
