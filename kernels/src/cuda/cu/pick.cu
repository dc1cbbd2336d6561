// The element of each row that its label names; 0 where another rank holds it, or it is ignored.
//
// Macros: those of indices; WORD, an unsigned type of an element's size; COUNT, rows; EXTENT, classes of a row in the shard.

extern "C" __global__ void __launch_bounds__(256) pick(
    const WORD* x, const i64* labels, WORD* out, i64 first, Fault* account, u32 call) {
  u64 row = (u64)blockIdx.x * 256 + threadIdx.x;
  if (row >= COUNT) return;
  i64 label = index_at(labels, row, account, call), place = label - first;
  out[row] = label >= 0 && place >= 0 && place < EXTENT ? x[row * EXTENT + place] : (WORD)0;
}
