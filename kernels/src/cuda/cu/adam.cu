// Adam, formulas as of `AdamUpdate`.
//
// Macros: those of updates; BETA1, REST1, BETA2, REST2, EPSILON; DECAY, 0 where it is decoupled. Numbers: what w shrinks by, the learning
// rate over the correction of the first moment, the correction of the root of the second.

struct Rates {
  float shrink, rate, root;
  __device__ explicit Rates(const float* numbers) : shrink(numbers[0]), rate(numbers[1]), root(numbers[2]) {}
};

__device__ __forceinline__ void step(const Rates& rates, float& w, float g, float* states) {
  g += DECAY * w;
  float m = BETA1 * states[0] + REST1 * g, v = BETA2 * states[1] + REST2 * g * g;
  w = w * rates.shrink - rates.rate * m / (sqrtf(v) * rates.root + EPSILON);
  states[0] = m;
  states[1] = v;
}
