// What all kernels of attention begin with: where rows of heads lie, and what a query sees. Queries are [BATCH, QUERIES, HEADS, WIDTH],
// keys and values [BATCH, KEYS, SHARED, WIDTH]; a head reads keys and values of head / SHARING.
//
// Macros: INDEX, the type of positions; T, the element type; these extents; CAUSAL, whether query i of the whole tensor sees keys up to
// i alone; SCALE, which multiplies scores.

__device__ __forceinline__ INDEX query_row(u32 batch, u32 query, u32 head) {
  return ((INDEX)batch * QUERIES + query) * HEADS + head;
}
__device__ __forceinline__ INDEX key_row(u32 batch, u32 key, u32 shared) {
  return ((INDEX)batch * KEYS + key) * SHARED + shared;
}

#if CAUSAL
#define ORIGINS , i64 first_query, i64 first_key
#define AHEAD (first_query - first_key)
#else
#define ORIGINS
#define AHEAD 0
#endif

// How many keys a query sees; `ahead` is how many more keys than queries are in other ranks' shards before.
__device__ __forceinline__ u32 seen(u32 query, i64 ahead) {
  if (query >= QUERIES) return 0;
  if (!CAUSAL) return KEYS;
  i64 count = (i64)query + ahead + 1;
  return count < 0 ? 0 : (count < KEYS ? (u32)count : KEYS);
}

// The first query that sees this key; QUERIES where none does.
__device__ __forceinline__ u32 first_seeing(u32 key, i64 ahead) {
  if (!CAUSAL) return 0;
  i64 first = (i64)key - ahead;
  return first < 0 ? 0 : (first < QUERIES ? (u32)first : QUERIES);
}
