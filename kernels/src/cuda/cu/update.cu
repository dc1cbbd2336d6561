// A step of an optimizer, in one pass over its tensors. Results may be the operands' memory: a thread writes what it alone has read.
//
// An update defines `struct Rates`, which it makes of a few numbers, and `step(rates, w, g, states)`, which leaves in w and states what
// they become. A factor of 0 says that the step is not made.
//
// Macros: ELEMENTS; WIDTH, how many a thread takes at once; W, G and O, types of the variable, its gradient and the first result;
// STATES, how many; PARAMETERS, all tensors and scalars; STATES_FROM and STATES_TO, lists of those of states; HAS_FACTOR; CLIP where
// gradients are clipped; SKIPPED, what the first result is where the step is not made, of `w`; INDEX, the type of positions; numbers of
// the update.

#define SLOTS (STATES > 0 ? STATES : 1)

// Elements from i on of a tensor, of which COUNT are there.
template <int COUNT, class T> __device__ __forceinline__ void read(const T* from, INDEX i, float (&to)[COUNT]) {
  Vec<T, COUNT> part = *(const Vec<T, COUNT>*)(from + i);
#pragma unroll
  for (int k = 0; k < COUNT; ++k) to[k] = load(part.at[k]);
}
template <int COUNT, class T> __device__ __forceinline__ void write(T* out, INDEX i, const float (&from)[COUNT]) {
  Vec<T, COUNT> part;
#pragma unroll
  for (int k = 0; k < COUNT; ++k) part.at[k] = to<T>(from[k]);
  *(Vec<T, COUNT>*)(out + i) = part;
}

// The gradient as the update takes it. What is no number stays.
__device__ __forceinline__ float taken(float g, float factor) {
  if (HAS_FACTOR) g *= factor;
#ifdef CLIP
  if (fabsf(g) > CLIP) g = copysignf(CLIP, g);
#endif
  return g;
}

template <int COUNT> __device__ __forceinline__ void update_part(
    INDEX i, const Rates& rates, float factor, const W* w, const G* g, const float* const* from, O* new_w, float* const* to) {
  float of_w[COUNT], of_g[COUNT], states[SLOTS][COUNT];
  read(w, i, of_w);
  read(g, i, of_g);
#pragma unroll
  for (int state = 0; state < STATES; ++state) read(from[state], i, states[state]);
#pragma unroll
  for (int k = 0; k < COUNT; ++k) {
    float own[SLOTS];
    for (int state = 0; state < STATES; ++state) own[state] = states[state][k];
    if (HAS_FACTOR && factor == 0.0f) {
      float w = of_w[k];
      of_w[k] = SKIPPED;
    } else {
      step(rates, of_w[k], taken(of_g[k], factor), own);
    }
    for (int state = 0; state < STATES; ++state) states[state][k] = own[state];
  }
  write(new_w, i, of_w);
#pragma unroll
  for (int state = 0; state < STATES; ++state) write(to[state], i, states[state]);
}

extern "C" __global__ void __launch_bounds__(256) update(PARAMETERS) {
  INDEX i = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (i >= ELEMENTS) return;
  const float* from[] = {STATES_FROM};
  float* to[] = {STATES_TO};
#if HAS_FACTOR
  float by = *factor;
#else
  float by = 1.0f;
#endif
  Rates rates(numbers);
  if (i + WIDTH <= ELEMENTS) {
    update_part<WIDTH>(i, rates, by, w, g, from, new_w, to);
  } else {
    for (; i < ELEMENTS; ++i) update_part<1>(i, rates, by, w, g, from, new_w, to);
  }
}
