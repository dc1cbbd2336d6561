// Where in the sequence an element lies, if early and late chunks of the sequence lie beside each other.
//
// Macros: CHUNK, elements of a chunk, or 0 where the sequence lies in its own order; CHUNKS, how many chunks there are.

// The place in the sequence of the element with an index in the order of pairs of chunks, computed in the index's type.
template <class N> __device__ __forceinline__ i64 position(N index) {
#if CHUNK
  N chunk = index / CHUNK, inside = index % CHUNK;
  return (chunk % 2 == 0 ? chunk / 2 : CHUNKS - 1 - chunk / 2) * CHUNK + inside;
#else
  return index;
#endif
}
