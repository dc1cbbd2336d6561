// Rows taken by their places, 0 where another rank holds them: a thread for each word.
//
// Macros: those of indices; WORD, a type of one element or of several side by side; ELEMENTS, words of the result; WIDTH, words of a row;
// PLACES, places of a batch; EXTENT, rows of a batch in the shard; INDEX, the type of positions.

extern "C" __global__ void __launch_bounds__(256) gather(
    const WORD* x, const i64* places, WORD* out, i64 first, Fault* account, u32 call) {
  INDEX i = (INDEX)blockIdx.x * 256 + threadIdx.x;
  if (i >= ELEMENTS) return;
  INDEX position = i / WIDTH;
  i64 index = index_at(places, position, account, call), place = index - first;
  WORD value = {};
  if (index >= 0 && place >= 0 && place < EXTENT) {
    value = x[((u64)(position / PLACES) * EXTENT + (u64)place) * WIDTH + i % WIDTH];
  }
  out[i] = value;
}
