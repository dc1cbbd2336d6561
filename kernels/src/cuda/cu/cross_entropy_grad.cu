// The gradient of scores: exp(x - l) g less the label's share, and 0 for a label that is ignored.
//
// Macros: those of indices and classes; T; ELEMENTS of the shard; EXTENT, classes of a row in it; WIDTH, how many elements a thread takes at once,
// which divides these; SHARE, what the target gives the label; EACH_CLASS, what it gives every class besides.

extern "C" __global__ void __launch_bounds__(256) cross_entropy_grad(
    const T* x, const float* l, const i64* labels, const float* g, T* dx, i64 first, Fault* account, u32 call) {
  INDEX i = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (i >= ELEMENTS) return;
  INDEX row = i / EXTENT;
  i64 label = index_at(labels, row, account, call);
  Vec<T, WIDTH> part = *(const Vec<T, WIDTH>*)(x + i);
  float shift = l[row], factor = g[row];
  // Where the label is among these elements.
  i64 place = first + (i64)(i % EXTENT), own = label - place;
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) {
    float value = expf(load(part.at[k]) - shift) * factor;
    if (k == own) value -= SHARE * factor;
    if (EACH_CLASS != 0.0f) value -= EACH_CLASS * factor;
    part.at[k] = to<T>(label < 0 || !IS_CLASS(place + k) ? 0.0f : value);
  }
  *(Vec<T, WIDTH>*)(dx + i) = part;
}
