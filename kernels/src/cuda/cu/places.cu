// The places of tokens at experts: of the tokens of a group that choose experts of a block the first ones have its places, the tokens of
// its first expert before those of the next, and of each expert all first choices before all second ones. A block of threads for each
// expert and group goes over the choices in this order.
//
// Macros: those of indices; GROUPS; TOKENS of a group and CHOICES of each; EXPERTS, and EACH, how many of them share a block of places;
// CAPACITY, places of a block; HELD, blocks of the shard of places; ROOM, their places in it.

// `slots` gets for each choice, [GROUPS, TOKENS, CHOICES], block * CAPACITY + place, or -1 where it is dropped; `owners` for each place of
// the shard, [HELD, GROUPS, ROOM], one more than the number of the choice in its group that has it, or 0.
extern "C" __global__ void __launch_bounds__(256) places(
    const i64* chosen, i64* slots, i64* owners, i64 first_block, i64 first_place, Fault* account, u32 call) {
  __shared__ u32 counts[8];
  u64 expert = blockIdx.x % EXPERTS, group = blockIdx.x / EXPERTS, block = expert / EACH;
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  i64 held = (i64)block - first_block;
  i64* own = held >= 0 && held < HELD ? owners + (held * GROUPS + group) * ROOM : nullptr;
  // Behind the tokens of the experts before this one in its block.
  u64 taken = EACH > 1 ? choices_of(chosen, group, (i64)(block * EACH), (i64)expert, counts) : 0;
  for (u64 start = 0; start < (u64)TOKENS * CHOICES; start += 256) {
    u64 turn = start + threadIdx.x;
    bool there = turn < (u64)TOKENS * CHOICES;
    u64 number = there ? turn % TOKENS * CHOICES + turn / TOKENS : 0, at = group * ((u64)TOKENS * CHOICES) + number;
    // A block of threads alone looks for faults, and an index that is one is dropped.
    i64 index = there ? chosen[at] : -1;
    if (expert == 0 && there && index_at(chosen, at, account, call) < 0) slots[at] = -1;
    u32 same = __ballot_sync(ALL_LANES, there && index == (i64)expert);
    __syncthreads();
    if (lane == 0) counts[warp] = __popc(same);
    __syncthreads();
    u64 place = taken + __popc(same & ((1u << lane) - 1));
#pragma unroll
    for (u32 other = 0; other < 8; ++other) {
      if (other < warp) place += counts[other];
      taken += counts[other];
    }
    if (there && index == (i64)expert) {
      slots[at] = place < CAPACITY ? (i64)(block * CAPACITY + place) : -1;
      i64 local = (i64)place - first_place;
      if (own && place < CAPACITY && local >= 0 && local < ROOM) own[local] = (i64)number + 1;
    }
  }
  // Places that nobody has.
  if (expert % EACH != EACH - 1) return;
  for (u64 local = threadIdx.x; own && local < ROOM; local += 256) {
    if (local + (u64)first_place >= taken) own[local] = 0;
  }
}
