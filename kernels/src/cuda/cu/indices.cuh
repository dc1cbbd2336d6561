// Indices that come with the data, checked one by one.
//
// Macros: RANGE, one past the greatest; IGNORED, an index that stands for none, if there is one.

// The index at a position of its shard, -1 for none. One out of range is a fault, and none.
__device__ __forceinline__ i64 index_at(const i64* indices, u64 position, Fault* account, u32 call) {
  i64 index = indices[position];
  if (index >= 0 && index < RANGE) return index;
#ifdef IGNORED
  if (index == IGNORED) return -1;
#endif
  fault(account, call, FAULT_INDEX, index, position);
  return -1;
}
