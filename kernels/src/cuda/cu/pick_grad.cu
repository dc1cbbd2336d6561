// Rows of 0, but for the element that the label names, which is the row's gradient.
//
// Macros: those of indices; WORD, an unsigned type of an element's size; ELEMENTS of the shard; EXTENT, classes of a row in it; WIDTH,
// how many elements a thread takes at once, which divides these.

extern "C" __global__ void __launch_bounds__(256) pick_grad(
    const i64* labels, const WORD* g, WORD* dx, i64 first, Fault* account, u32 call) {
  INDEX i = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (i >= ELEMENTS) return;
  INDEX row = i / EXTENT;
  i64 label = index_at(labels, row, account, call), own = label - first - (i64)(i % EXTENT);
  Vec<WORD, WIDTH> part;
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) part.at[k] = label >= 0 && k == own ? g[row] : (WORD)0;
  *(Vec<WORD, WIDTH>*)(dx + i) = part;
}
