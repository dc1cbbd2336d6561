// SGD, formulas as of `SgdUpdate`.
//
// Macros: those of updates; MOMENTUM, 0 for none; NESTEROV; DECAY; LIMITED. Numbers: the learning rate, and where it is limited
// 1 - lr weight_decay, of the rate without its limit.

struct Rates {
  float lr, shrink;
  __device__ explicit Rates(const float* numbers) : lr(numbers[0]), shrink(LIMITED ? numbers[1] : 1.0f) {}
};

__device__ __forceinline__ void step(const Rates& rates, float& w, float g, float* states) {
  if (LIMITED) {
    w = rates.shrink * w - rates.lr * g;
    return;
  }
  g += DECAY * w;
  if (STATES == 1) {
    states[0] = MOMENTUM * states[0] + g;
    g = NESTEROV ? g + MOMENTUM * states[0] : states[0];
  }
  w -= rates.lr * g;
}
