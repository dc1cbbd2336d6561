// What kernels share that move tokens to experts and back.
//
// Macros: GROUPS; OWN_TOKENS, tokens of the shard; TOKENS and CHOICES of a whole group; CAPACITY; HELD and ROOM, blocks and places of the
// shard of places; OWN_CHOICES, choices of the shard of weights.

// The place of a choice in the shard of places, [HELD, GROUPS, ROOM], or -1.
__device__ __forceinline__ i64 place_of(
    const i64* slots, u64 group, u64 token, u64 choice, i64 first_block, i64 first_place) {
  i64 slot = slots[(group * TOKENS + token) * CHOICES + choice];
  if (slot < 0) return -1;
  i64 block = slot / CAPACITY - first_block, place = slot % CAPACITY - first_place;
  if (block < 0 || block >= HELD || place < 0 || place >= ROOM) return -1;
  return (block * GROUPS + (i64)group) * ROOM + place;
}
