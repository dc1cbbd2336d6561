// Elements that are 0 with a probability, and others divided by the probability of what is kept. The result may be the operand's
// memory: a thread writes what it alone has read.
//
// Macros: T; ELEMENTS, their number; WIDTH, how many a thread takes at once, which divides them; INDEX, the type of positions;
// WHOLE(i), the position of element i in the whole; ORIGINS, parameters that it takes; KEY of the stream; THRESHOLD: an element is 0
// where the first 24 random bits are less; KEPT, the probability of what is kept.

extern "C" __global__ void __launch_bounds__(256) dropout(const T* x, T* out, const Now* now ORIGINS) {
  INDEX first = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (first >= ELEMENTS) return;
  u64 seed = now->seed, step = now->step;
  Vec<T, WIDTH> part = *(const Vec<T, WIDTH>*)(x + first);
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) {
    INDEX i = first + k;
    u32 random = random_words(seed, KEY, step, WHOLE(i)).at[0] >> 8;
    part.at[k] = to<T>(random < THRESHOLD ? 0.0f : load(part.at[k]) / KEPT);
  }
  *(Vec<T, WIDTH>*)(out + first) = part;
}
