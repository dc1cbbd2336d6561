// Whether a step is made; formulas as of `SkipStep`. The first result may be the first operand's memory: all is read first.

extern "C" __global__ void skip_step(
    const float* of_before, const float* of_bad, const Now* now, float* new_before, float* factor, float* step, float* of_skipped) {
  double before = *of_before, skipped = *of_bad == 0.0f ? 0.0 : 1.0;
  *new_before = (float)(before + skipped);
  *factor = (float)(1.0 - skipped);
  *step = (float)((double)now->step + 1.0 - before);
  *of_skipped = (float)skipped;
}
