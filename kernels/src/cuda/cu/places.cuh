// Places of rows, in batches.
//
// Macros: those of indices; PLACES, places of a batch; EXTENT, rows of a batch in the shard.

// The row of a position, -1 where another rank holds it.
__device__ __forceinline__ i64 row_of(const i64* places, u64 position, i64 first, Fault* account, u32 call) {
  i64 index = index_at(places, position, account, call), place = index - first;
  if (index < 0 || place < 0 || place >= EXTENT) return -1;
  return (i64)(position / PLACES * EXTENT) + place;
}
