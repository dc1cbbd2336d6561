// A step of an optimizer, in one pass over its tensors. Results may be the operands' memory: a thread writes what it alone has read.
//
// An update defines `struct Rates`, which it makes of a few numbers, and `step(rates, w, g, states)`, which leaves in w and states what
// they become. A factor of 0 says that the step is not made.
//
// Macros: WIDTH, how many elements a thread takes at once; W, G and O, types of the variable, its gradient and the first result;
// STATES, how many; HAS_FACTOR; CLIP where gradients are clipped; SKIPPED, what the first result is where the step is not made, of `w`;
// INDEX, the type of positions; numbers of the update. Of a kernel for one variable: ELEMENTS; PARAMETERS, all tensors and scalars;
// STATES_FROM and STATES_TO, lists of those of states. Of one for several: PARTS, how many; STEPS, how often a block goes on.

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

// WIDTH elements from i on, or as many as there are.
__device__ __forceinline__ void update_at(
    INDEX i, INDEX elements, const Rates& rates, float factor, const W* w, const G* g, const float* const* from, O* new_w,
    float* const* to) {
  if (i + WIDTH <= elements) {
    update_part<WIDTH>(i, rates, factor, w, g, from, new_w, to);
  } else {
    for (; i < elements; ++i) update_part<1>(i, rates, factor, w, g, from, new_w, to);
  }
}

#if HAS_FACTOR
#define FACTOR *factor
#else
#define FACTOR 1.0f
#endif

#ifdef PARTS

// In the table each part has the places of the variable, the gradient, states, the first result and new states, its elements and its
// first block; behind the parts stands of each block which part it is of.
#define FIELDS (2 * STATES + 5)

extern "C" __global__ void __launch_bounds__(256) updates(
    const float* numbers, const float* factor, char* registers, const u64* table) {
  const u64* part = table + table[PARTS * FIELDS + blockIdx.x] * FIELDS;
  const float* from[SLOTS];
  float* to[SLOTS];
#pragma unroll
  for (int state = 0; state < STATES; ++state) {
    from[state] = (const float*)(registers + part[2 + state]);
    to[state] = (float*)(registers + part[3 + STATES + state]);
  }
  const W* w = (const W*)(registers + part[0]);
  const G* g = (const G*)(registers + part[1]);
  O* new_w = (O*)(registers + part[2 + STATES]);
  INDEX elements = part[FIELDS - 2], chunk = blockIdx.x - part[FIELDS - 1];
  float by = FACTOR;
  Rates rates(numbers);
  INDEX i = (chunk * (STEPS * 256) + threadIdx.x) * WIDTH;
  for (int step = 0; step < STEPS && i < elements; ++step, i += 256 * WIDTH)
    update_at(i, elements, rates, by, w, g, from, new_w, to);
}

#else

extern "C" __global__ void __launch_bounds__(256) update(PARAMETERS) {
  INDEX i = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (i >= ELEMENTS) return;
  const float* from[] = {STATES_FROM};
  float* to[] = {STATES_TO};
  float by = FACTOR;
  Rates rates(numbers);
  update_at(i, ELEMENTS, rates, by, w, g, from, new_w, to);
}

#endif
