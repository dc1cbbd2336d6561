// A state that takes in what steps give: decay w + rate x; what is replaced is not read, as it may be no number. The result may be the
// state's memory.
//
// Macros: ELEMENTS; WIDTH, how many a thread takes at once; W and X, the types of the state and of x; V, float or i64; OPERANDS: 3 and 4 where
// there is the factor of updates, and the number of this one, which then says whether it is the first, in which x takes the state's place
// if STARTS; DECAY and RATE of others; INDEX, the type of positions. Numbers: decay and rate of this step.

template <int COUNT> __device__ __forceinline__ void blend_part(INDEX i, float decay, float rate, const W* w, const X* x, W* new_w) {
  Vec<X, COUNT> taken = *(const Vec<X, COUNT>*)(x + i);
  Vec<W, COUNT> kept;
  if (decay != 0.0f) kept = *(const Vec<W, COUNT>*)(w + i);
#pragma unroll
  for (int k = 0; k < COUNT; ++k) {
    V next = (V)rate * (V)load(taken.at[k]);
    if (decay != 0.0f) next = (V)decay * (V)load(kept.at[k]) + next;
    kept.at[k] = to<W>(next);
  }
  *(Vec<W, COUNT>*)(new_w + i) = kept;
}

extern "C" __global__ void __launch_bounds__(256) blend(const float* numbers, const W* w, const X* x
#if OPERANDS > 2
    , const float* factor
#endif
#if OPERANDS > 3
    , const float* number
#endif
    , W* new_w) {
  INDEX i = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (i >= ELEMENTS) return;
  float decay = numbers[0], rate = numbers[1];
#if OPERANDS > 3
  bool replaces = STARTS && !(*number > 1.0f);
  decay = replaces ? 0.0f : DECAY;
  rate = replaces ? 1.0f : RATE;
#endif
  bool stays = false;
#if OPERANDS > 2
  stays = *factor == 0.0f;
#endif
  INDEX end = i + WIDTH <= ELEMENTS ? i + WIDTH : (INDEX)ELEMENTS;
  if (stays) {
    for (; i < end; ++i) new_w[i] = w[i];
  } else if (i + WIDTH <= ELEMENTS) {
    blend_part<WIDTH>(i, decay, rate, w, x, new_w);
  } else {
    for (; i < end; ++i) blend_part<1>(i, decay, rate, w, x, new_w);
  }
}
