// Joins what the chunks of reductions have left. A block has JOINED results that lie side by side and goes over their chunks with
// 256 / JOINED threads each: a single one would wait for memory once for each chunk.
//
// Macros: JOINED, a power of two up to 256; CHUNKS.

#define OWN_RESULT (threadIdx.x % JOINED)
#define OWN_CHUNK (threadIdx.x / JOINED)
#define CHUNKS_AT_ONCE (256 / JOINED)

// Combines what the threads of each result have, which all take part: the first JOINED threads get it. The order is always the same.
template <class Number, class Combine> __device__ __forceinline__ Number join_threads(Number x, Combine combine) {
  __shared__ Number parts[256];
  parts[threadIdx.x] = x;
#pragma unroll
  for (u32 half = 128; half >= JOINED; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) parts[threadIdx.x] = combine(parts[threadIdx.x], parts[threadIdx.x + half]);
  }
  return parts[threadIdx.x];
}
