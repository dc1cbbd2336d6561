// SGD, formulas as of `SgdUpdate`.
//
// Macros: those of updates; MOMENTUM, 0 for none; NESTEROV; DECAY. Numbers: the learning rate.

struct Rates {
  float lr;
  __device__ explicit Rates(const float* numbers) : lr(numbers[0]) {}
};

__device__ __forceinline__ void step(const Rates& rates, float& w, float g, float* states) {
  g += DECAY * w;
  if (STATES == 1) {
    states[0] = MOMENTUM * states[0] + g;
    g = NESTEROV ? g + MOMENTUM * states[0] : states[0];
  }
  w -= rates.lr * g;
}
