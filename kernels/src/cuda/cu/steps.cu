// Steps of LAMB of several variables, each along its direction at a rate of its own, which follows from two sums of squares. A result may be
// the variable's memory.
//
// Macros: WIDTH, how many elements a thread takes at once; W, the type of variables; PARTS, how many there are; STEPS, how often a block goes
// on; INDEX, the type of positions; FIND, a statement that fills `rates` from `lr`, `a` and `b`. Numbers: the learning rate, and what it has
// lost as a float.

// In the table each part has the places of the variable, its direction, both sums and the result, its elements and its first block; behind
// the parts stands of each block which part it is of.
#define FIELDS 7

template <int COUNT> __device__ __forceinline__ void go(INDEX i, float rate, const W* w, const float* u, W* new_w) {
  Vec<W, COUNT> part = *(const Vec<W, COUNT>*)(w + i);
  Vec<float, COUNT> along = *(const Vec<float, COUNT>*)(u + i);
#pragma unroll
  for (int k = 0; k < COUNT; ++k) part.at[k] = to<W>(load(part.at[k]) - rate * along.at[k]);
  *(Vec<W, COUNT>*)(new_w + i) = part;
}

extern "C" __global__ void __launch_bounds__(256) steps(const float* numbers, char* registers, const u64* table) {
  const u64* part = table + table[PARTS * FIELDS + blockIdx.x] * FIELDS;
  const W* w = (const W*)(registers + part[0]);
  const float* u = (const float*)(registers + part[1]);
  double a = *(const float*)(registers + part[2]), b = *(const float*)(registers + part[3]);
  W* new_w = (W*)(registers + part[4]);
  INDEX elements = part[5], chunk = blockIdx.x - part[6];
  double lr = (double)numbers[0] + (double)numbers[1];
  float rates[1];
  FIND
  INDEX i = (chunk * (STEPS * 256) + threadIdx.x) * WIDTH;
  for (int step = 0; step < STEPS && i < elements; ++step, i += 256 * WIDTH) {
    if (i + WIDTH <= elements) {
      go<WIDTH>(i, rates[0], w, u, new_w);
    } else {
      for (INDEX j = i; j < elements; ++j) go<1>(j, rates[0], w, u, new_w);
    }
  }
}
