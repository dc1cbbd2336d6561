// Pairs of a head's elements that are turned by an angle that follows from their position. Angles are computed as double, once for each
// position and pair: at position 100,000 a float has lost the digits that matter.
//
// Macros: T; TIME, HEADS and HEAD (elements of one) of the shard; PAIRS, half of HEAD; HALVES, pairs of the shard; WIDTH, pairs that a thread
// takes at once, which divides PAIRS; INTERLEAVED, whether neighbours make a pair, or else elements half a head apart; INVERSE; INDEX, the
// type of positions; those of zigzag.cuh, which stands in front. So do `frequencies`, of all pairs of a whole head.

struct alignas(8) Turn {
  float sine, cosine;
};

// The table, [TIME, PAIRS].
extern "C" __global__ void __launch_bounds__(256) angles(Turn* turns, i64 first, i64 first_element) {
  u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
  if (i >= (u64)TIME * PAIRS) return;
  double angle = (double)position(first + (i64)(i / PAIRS)) * frequencies[first_element / 2 + (i64)(i % PAIRS)];
  if (INVERSE) angle = -angle;
  // In turns, of which only the fraction counts: what a quotient by 2 pi loses is added to that.
  const double turn = 0.15915494309189535, rest = -9.839338337591243e-18;
  double whole = angle * turn, sine, cosine;
  double part = whole - rint(whole) + (fma(angle, turn, -whole) + angle * rest);
  sincospi(2.0 * part, &sine, &cosine);
  turns[i] = Turn{(float)sine, (float)cosine};
}

extern "C" __global__ void __launch_bounds__(256) rotary(const T* x, const Turn* turns, T* out) {
  INDEX i = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (i >= HALVES) return;
  INDEX head = i / PAIRS;
  u32 pair = i % PAIRS;
  const Turn* turn = turns + (u64)(head / HEADS % TIME) * PAIRS + pair;
  u64 at = (u64)head * HEAD + (INTERLEAVED ? 2 * pair : pair);
#if INTERLEAVED
  Vec<T, 2 * WIDTH> both = *(const Vec<T, 2 * WIDTH>*)(x + at);
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) {
    float a = load(both.at[2 * k]), b = load(both.at[2 * k + 1]);
    both.at[2 * k] = to<T>(a * turn[k].cosine - b * turn[k].sine);
    both.at[2 * k + 1] = to<T>(a * turn[k].sine + b * turn[k].cosine);
  }
  *(Vec<T, 2 * WIDTH>*)(out + at) = both;
#else
  Vec<T, WIDTH> one = *(const Vec<T, WIDTH>*)(x + at), other = *(const Vec<T, WIDTH>*)(x + at + PAIRS);
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) {
    float a = load(one.at[k]), b = load(other.at[k]);
    one.at[k] = to<T>(a * turn[k].cosine - b * turn[k].sine);
    other.at[k] = to<T>(a * turn[k].sine + b * turn[k].cosine);
  }
  *(Vec<T, WIDTH>*)(out + at) = one;
  *(Vec<T, WIDTH>*)(out + at + PAIRS) = other;
#endif
}
