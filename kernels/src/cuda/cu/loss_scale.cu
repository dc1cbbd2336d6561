// The end of a step under loss scaling; formulas as of `LossScale`. Results may be the operands' memory: all is read first.
//
// Macros: GROWTH, BACKOFF, INTERVAL, FLOOR; HAS_FACTOR, whether there is one that may say that the step is not made anyway.

extern "C" __global__ void loss_scale(const float* of_scale, const float* of_good, const float* of_made, const float* of_bad
#if HAS_FACTOR
    , const float* of_factor
#endif
    , float* new_scale, float* new_good, float* new_made, float* factor, float* step, float* used, float* skipped) {
  double scale = *of_scale, good = *of_good, made = *of_made, bad = *of_bad;
  bool left_out = false;
#if HAS_FACTOR
  left_out = *of_factor == 0.0f;
#endif
  double next = scale, streak = good;
  bool is_made = !left_out && bad == 0.0 && scale >= FLOOR;
  if (is_made && good + 1.0 >= (double)INTERVAL) {
    // A scale beyond what a float holds does not grow further.
    double grown = scale * GROWTH;
    next = grown <= 3.4028234663852886e38 ? grown : scale;
    streak = 0.0;
  } else if (is_made) {
    streak = good + 1.0;
  } else if (!left_out) {
    next = fmax(scale * BACKOFF, FLOOR);
    streak = 0.0;
  }
  *new_scale = (float)next;
  *new_good = (float)streak;
  *new_made = (float)(is_made ? made + 1.0 : made);
  *factor = is_made ? (float)(1.0 / scale) : 0.0f;
  *step = (float)(made + 1.0);
  *used = (float)scale;
  *skipped = is_made ? 0.0f : 1.0f;
}
