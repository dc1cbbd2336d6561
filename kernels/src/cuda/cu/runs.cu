// The ends of the runs of places that experts have in their blocks: of a group as many as choose the expert or one before it in its block. A
// block of threads for each expert and group.
//
// Macros: those of indices; GROUPS; TOKENS of a group and CHOICES of each; EXPERTS, and EACH, how many of them share a block of places.

// `ends` is [GROUPS, EXPERTS].
extern "C" __global__ void __launch_bounds__(256) runs(const i64* chosen, i64* ends, Fault* account, u32 call) {
  __shared__ u32 counts[8];
  u64 expert = blockIdx.x % EXPERTS, group = blockIdx.x / EXPERTS;
  // A block of threads alone looks for faults.
  for (u64 number = threadIdx.x; expert == 0 && number < (u64)TOKENS * CHOICES; number += 256) {
    index_at(chosen, group * ((u64)TOKENS * CHOICES) + number, account, call);
  }
  u64 end = choices_of(chosen, group, (i64)(expert / EACH * EACH), (i64)expert + 1, counts);
  if (threadIdx.x == 0) ends[blockIdx.x] = (i64)end;
}
