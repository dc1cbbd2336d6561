// A state that takes in what steps give: decay w + rate x; what is replaced is not read, as it may be no number. The result may be the
// state's memory.
//
// Macros: WIDTH, how many elements a thread takes at once; W and X, the types of the state and of x; V, float or i64; OPERANDS: 3 and 4 where
// there is the factor of updates, and the number of this one, which then says whether it is the first, in which x takes the state's place
// if STARTS; DECAY and RATE of others; INDEX, the type of positions. Of a kernel for one state: ELEMENTS. Of one for several: PARTS, how
// many; STEPS, how often a block goes on. Numbers: decay and rate of this step.

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

#if OPERANDS > 3
#define SCALARS , const float* factor, const float* number
#define GIVEN factor, number
#elif OPERANDS > 2
#define SCALARS , const float* factor
#define GIVEN factor, nullptr
#else
#define SCALARS
#define GIVEN nullptr, nullptr
#endif

// What a state takes in.
struct Shares {
  float decay, rate;
  bool stays;
  __device__ Shares(const float* numbers, const float* factor, const float* number)
      : decay(numbers[0]), rate(numbers[1]), stays(OPERANDS > 2 && *factor == 0.0f) {
    if (OPERANDS > 3) {
      bool replaces = STARTS && !(*number > 1.0f);
      decay = replaces ? 0.0f : DECAY;
      rate = replaces ? 1.0f : RATE;
    }
  }
};

// WIDTH elements from i on, or as many as there are.
__device__ __forceinline__ void blend_at(
    INDEX i, INDEX elements, const Shares& shares, const W* w, const X* x, W* new_w) {
  INDEX end = i + WIDTH <= elements ? i + WIDTH : elements;
  if (shares.stays) {
    for (; i < end; ++i) new_w[i] = w[i];
  } else if (i + WIDTH <= elements) {
    blend_part<WIDTH>(i, shares.decay, shares.rate, w, x, new_w);
  } else {
    for (; i < end; ++i) blend_part<1>(i, shares.decay, shares.rate, w, x, new_w);
  }
}

#ifdef PARTS

// In the table each part has the places of the state, of x and of the result, its elements and its first block; behind the parts stands
// of each block which part it is of.
#define FIELDS 5

extern "C" __global__ void __launch_bounds__(256) blends(
    const float* numbers SCALARS, char* registers, const u64* table) {
  const u64* part = table + table[PARTS * FIELDS + blockIdx.x] * FIELDS;
  const W* w = (const W*)(registers + part[0]);
  const X* x = (const X*)(registers + part[1]);
  W* new_w = (W*)(registers + part[2]);
  INDEX elements = part[3], chunk = blockIdx.x - part[4];
  Shares shares(numbers, GIVEN);
  INDEX i = (chunk * (STEPS * 256) + threadIdx.x) * WIDTH;
  for (int step = 0; step < STEPS && i < elements; ++step, i += 256 * WIDTH)
    blend_at(i, elements, shares, w, x, new_w);
}

#else

extern "C" __global__ void __launch_bounds__(256) blend(const float* numbers, const W* w, const X* x SCALARS, W* new_w) {
  INDEX i = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (i >= ELEMENTS) return;
  blend_at(i, ELEMENTS, Shares(numbers, GIVEN), w, x, new_w);
}

#endif
