// A step of SGD: (w, g[, m][, factor]) -> (w'[, m']), formulas as of `SgdUpdate`. A factor of 0 says that the step is not made.
//
// Macros: ELEMENTS; W and G, element types; HAS_MOMENTUM, NESTEROV, HAS_FACTOR; MOMENTUM, DECAY; CLIP where gradients are clipped.
// Numbers: the learning rate.

extern "C" __global__ void __launch_bounds__(256) sgd(const float* numbers, const W* w, const G* g
#if HAS_MOMENTUM
    , const float* m
#endif
#if HAS_FACTOR
    , const float* factor
#endif
    , W* new_w
#if HAS_MOMENTUM
    , float* new_m
#endif
) {
  u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
  if (i >= ELEMENTS) return;
  float weight = load(w[i]), gradient = load(g[i]);
#if HAS_MOMENTUM
  float moment = m[i];
#endif
#if HAS_FACTOR
  if (*factor == 0.0f) {
    new_w[i] = w[i];
#if HAS_MOMENTUM
    new_m[i] = moment;
#endif
    return;
  }
  gradient *= *factor;
#endif
#ifdef CLIP
  // What is no number stays.
  if (fabsf(gradient) > CLIP) gradient = copysignf(CLIP, gradient);
#endif
  gradient += DECAY * weight;
#if HAS_MOMENTUM
  moment = MOMENTUM * moment + gradient;
  new_m[i] = moment;
  gradient = NESTEROV ? gradient + MOMENTUM * moment : moment;
#endif
  new_w[i] = to<W>(weight - numbers[0] * gradient);
}
