// RMSprop, formulas as of `RmspropUpdate`. States: the mean of squares, the mean where it is CENTERED, the momentum where it has one.
//
// Macros: those of updates; ALPHA, REST, EPSILON, DECAY, MOMENTUM; CENTERED; HAS_MOMENTUM. Numbers: the learning rate.

struct Rates {
  float lr;
  __device__ explicit Rates(const float* numbers) : lr(numbers[0]) {}
};

__device__ __forceinline__ void step(const Rates& rates, float& w, float g, float* states) {
  g += DECAY * w;
  float square = ALPHA * states[0] + REST * g * g;
  states[0] = square;
  if (CENTERED) {
    float mean = ALPHA * states[1] + REST * g;
    states[1] = mean;
    square -= mean * mean;
    // What is no number stays out, as the greater of it and 0 is 0.
    square = square > 0.0f ? square : 0.0f;
  }
  float along = g / (sqrtf(square) + EPSILON);
  if (HAS_MOMENTUM) {
    along = MOMENTUM * states[STATES - 1] + along;
    states[STATES - 1] = along;
  }
  w -= rates.lr * along;
}
