// What all kernels of attention begin with: where rows of heads lie, and what a query sees. Queries are [BATCH, QUERIES, HEADS, WIDTH],
// keys and values [BATCH, KEYS, SHARED, WIDTH]; a head reads keys and values of head / SHARING.
//
// Macros: INDEX, the type of positions; T, the element type; these extents; CAUSAL, whether query i of the whole tensor sees keys up to
// i alone; those of zigzag.cuh, which stands in front; WINDOW, how many keys a query sees at most, 0 for all; SCALE, which multiplies
// scores; SOFT_CAP, which bounds them, where CAPPED; and where HAS_BIAS, B, its element type, FLOOR, and from one index to the next of each
// of its dims BIAS_BATCH, BIAS_HEAD, BIAS_QUERY and BIAS_KEY. DROPS, whether weights are dropped; then DROPOUT_KEY of the stream, THRESHOLD
// and KEPT as of dropout, and WHOLE_HEADS, WHOLE_QUERIES and WHOLE_KEYS, the extents of all ranks' weights.

__device__ __forceinline__ INDEX query_row(u32 batch, u32 query, u32 head) {
  return ((INDEX)batch * QUERIES + query) * HEADS + head;
}
__device__ __forceinline__ INDEX key_row(u32 batch, u32 key, u32 shared) {
  return ((INDEX)batch * KEYS + key) * SHARED + shared;
}

#if DROPS
#define ORIGINS , i64 first_query, i64 first_key, i64 first_batch, i64 first_head, const Now* now
#elif CAUSAL
#define ORIGINS , i64 first_query, i64 first_key
#else
#define ORIGINS
#endif
#if CAUSAL
#define AHEAD (first_query - first_key)
#else
#define AHEAD 0
#endif

// How many keys there are up to the place of a query; `ahead` is how many more keys than queries are in other ranks' shards before. In an
// order of pairs it is how many queries are, and all keys are here, in the sequence's own order.
__device__ __forceinline__ i64 up_to(u32 query, i64 ahead) {
#if CHUNK
  return position((u32)(query + ahead)) + 1;
#else
  return (i64)query + ahead + 1;
#endif
}

// How many keys a query sees.
__device__ __forceinline__ u32 seen(u32 query, i64 ahead) {
  if (query >= QUERIES) return 0;
  if (!CAUSAL) return KEYS;
  i64 count = up_to(query, ahead);
  return count < 0 ? 0 : (count < KEYS ? (u32)count : KEYS);
}

// How many of the first keys a query does not see, because its window is behind them.
__device__ __forceinline__ u32 passed(u32 query, i64 ahead) {
  if (WINDOW == 0) return 0;
  i64 count = up_to(query, ahead) - WINDOW;
  return count < 0 ? 0 : (count < KEYS ? (u32)count : KEYS);
}

// Whether each query is behind the one before in the sequence: of one pair of chunks both are, and of several they are not.
#define ASCENDING (CHUNK == 0 || QUERIES == 2 * CHUNK)

// How many keys some of the queries up to `last`, of a tile, see, and how many none from `start` on does.
__device__ __forceinline__ u32 any_seen(u32 last, i64 ahead) { return ASCENDING ? seen(last, ahead) : KEYS; }
__device__ __forceinline__ u32 all_passed(u32 start, i64 ahead) { return ASCENDING ? passed(start, ahead) : 0; }

// The query behind the last one that sees this key, or any of which that is known.
__device__ __forceinline__ u32 behind_seeing(u32 key, i64 ahead) {
  if (WINDOW == 0 || CHUNK) return QUERIES;
  i64 end = (i64)key + WINDOW - ahead;
  return end < 0 ? 0 : (end < QUERIES ? (u32)end : QUERIES);
}

// The first query that sees this key; QUERIES where none does.
__device__ __forceinline__ u32 first_seeing(u32 key, i64 ahead) {
  if (!CAUSAL || !ASCENDING) return 0;
#if CHUNK
  // Of a pair early queries come first, and then late ones.
  i64 early = (i64)key - position((u32)ahead), late = (i64)key - position((u32)(ahead + CHUNK));
  i64 first = early < CHUNK ? early : CHUNK + (late < 0 ? 0 : late);
#else
  i64 first = (i64)key - ahead;
#endif
  return first < 0 ? 0 : (first < QUERIES ? (u32)first : QUERIES);
}

#if HAS_BIAS
#define BIAS , const B* bias
#define BIAS_GIVEN , bias
#define BIAS_MEMBER const B* bias;
// The log-sum-exp of a query whose keys are all hidden: any number, as its scores are -inf.
#define FINITE(l) ((l) == -INFINITE ? 0.0f : (l))
#else
#define BIAS
#define BIAS_GIVEN
#define BIAS_MEMBER
#define FINITE(l) (l)
#endif

// The scaled product of a query and a key within the soft cap.
__device__ __forceinline__ float bounded(float product) {
#if CAPPED
  return SOFT_CAP * tanhf(product * SCALE / SOFT_CAP);
#else
  return product * SCALE;
#endif
}

// How fast that grows with the scaled product.
__device__ __forceinline__ float slope(float product) {
#if CAPPED
  float share = tanhf(product * SCALE / SOFT_CAP);
  return 1.0f - share * share;
#else
  return 1.0f;
#endif
}

// Their score, with the bias.
#if HAS_BIAS
__device__ __forceinline__ float biased(float score, const B* bias, u32 batch, u32 head, u32 query, u32 key) {
  if (query >= QUERIES || key >= KEYS) return score;
  INDEX place = (INDEX)batch * BIAS_BATCH + (INDEX)head * BIAS_HEAD + (INDEX)query * BIAS_QUERY + (INDEX)key * BIAS_KEY;
  float sum = score + load(bias[place]);
  return sum == -INFINITE ? sum : fmaxf(sum, FLOOR);
}
#define SCORE(product, batch, head, query, key) biased(bounded(product), bias, batch, head, query, key)
#else
#define SCORE(product, batch, head, query, key) bounded(product)
#endif

// The choice of the weights that are dropped. A weight's random number is that of its place in the whole [batch, heads, queries, keys].
#if DROPS
struct Dropping {
  u64 seed, step, first;

  __device__ __forceinline__ bool drops(u32 batch, u32 head, u32 query, u32 key) const {
    u64 place = first + (((u64)batch * WHOLE_HEADS + head) * WHOLE_QUERIES + query) * WHOLE_KEYS + key;
    return random_words(seed, DROPOUT_KEY, step, place).at[0] >> 8 < THRESHOLD;
  }
  // A weight, or what is multiplied by one, as dropout leaves it.
  __device__ __forceinline__ float keep(float x, u32 batch, u32 head, u32 query, u32 key) const {
    return drops(batch, head, query, key) ? 0.0f : x / KEPT;
  }
};
#define DROPPING \
  {now->seed, now->step, (((u64)first_batch * WHOLE_HEADS + first_head) * WHOLE_QUERIES + first_query) * WHOLE_KEYS + first_key}
#else
struct Dropping {
  __device__ __forceinline__ float keep(float x, u32, u32, u32, u32) const { return x; }
};
#define DROPPING {}
#define KEPT 1.0f
#endif

// How many threads a block has. With more than a mask in its scores a kernel is told that one block of a multiprocessor is enough: left to
// itself the compiler would keep registers in memory to have more of them.
#if HAS_BIAS || CAPPED || WINDOW || DROPS
#define OF_THREADS(count) __launch_bounds__(count, 1)
#else
#define OF_THREADS(count) __launch_bounds__(count)
#endif
