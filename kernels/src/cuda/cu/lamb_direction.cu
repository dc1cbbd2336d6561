// The direction of LAMB, formulas as of `LambDirection`: what w becomes is the direction.
//
// Macros: those of updates; BETA1, REST1, BETA2, REST2, EPSILON, DECAY. Numbers: the corrections of the first moment and of the root of the
// second.

struct Rates {
  float correct, root;
  __device__ explicit Rates(const float* numbers) : correct(numbers[0]), root(numbers[1]) {}
};

__device__ __forceinline__ void step(const Rates& rates, float& w, float g, float* states) {
  float m = BETA1 * states[0] + REST1 * g, v = BETA2 * states[1] + REST2 * g * g;
  w = m * rates.correct / (sqrtf(v) * rates.root + EPSILON) + DECAY * w;
  states[0] = m;
  states[1] = v;
}
