// The places of tokens at experts: of the tokens of a group that choose an expert those that are first have its places, all first choices
// before all second ones. A block for each expert and group goes over the choices in this order.
//
// Macros: those of indices; GROUPS; TOKENS of a group and CHOICES of each; EXPERTS; CAPACITY, places of an expert; HELD, experts
// of the shard of places; ROOM, their places in it.

// `slots` gets for each choice, [GROUPS, TOKENS, CHOICES], expert * CAPACITY + place, or -1 where it is dropped; `owners` for each place of
// the shard, [HELD, GROUPS, ROOM], one more than the number of the choice in its group that has it, or 0.
extern "C" __global__ void __launch_bounds__(256) places(
    const i64* chosen, i64* slots, i64* owners, i64 first_expert, i64 first_place, Fault* account, u32 call) {
  __shared__ u32 counts[8];
  u64 expert = blockIdx.x % EXPERTS, group = blockIdx.x / EXPERTS;
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  i64 held = (i64)expert - first_expert;
  i64* own = held >= 0 && held < HELD ? owners + (held * GROUPS + group) * ROOM : nullptr;
  u64 taken = 0;
  for (u64 start = 0; start < (u64)TOKENS * CHOICES; start += 256) {
    u64 turn = start + threadIdx.x;
    bool there = turn < (u64)TOKENS * CHOICES;
    u64 number = there ? turn % TOKENS * CHOICES + turn / TOKENS : 0, at = group * ((u64)TOKENS * CHOICES) + number;
    // A block alone looks for faults, and an index that is one is dropped.
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
      slots[at] = place < CAPACITY ? (i64)(expert * CAPACITY + place) : -1;
      i64 local = (i64)place - first_place;
      if (own && place < CAPACITY && local >= 0 && local < ROOM) own[local] = (i64)number + 1;
    }
  }
  // Places that nobody has.
  for (u64 local = threadIdx.x; own && local < ROOM; local += 256) {
    if (local + (u64)first_place >= taken) own[local] = 0;
  }
}
