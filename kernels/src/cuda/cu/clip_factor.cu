// What gradients are multiplied by so that their norm is at most MAX, and that norm; formulas as of `ClipFactor`.
//
// Macros: MAX; HAS_FACTOR, whether there is a factor already.

extern "C" __global__ void clip_factor(const float* of_sum
#if HAS_FACTOR
    , const float* of_factor
#endif
    , float* new_factor, float* of_norm) {
  double root = sqrt((double)*of_sum), factor = 1.0;
#if HAS_FACTOR
  factor = *of_factor;
#endif
  double norm = factor * root, share = MAX / (norm + 1e-6);
  bool is_finite = norm - norm == 0.0;
  if (factor == 0.0) {
    *new_factor = 0.0f;
    *of_norm = (float)root;
  } else {
    *new_factor = is_finite ? (float)(factor * (share < 1.0 ? share : 1.0)) : NOT_A_NUMBER;
    *of_norm = (float)norm;
  }
}
