// Rows less their mean, where they are centered, times r, the reciprocal of the root of their variance. Two sums: the variance is about
// the mean, or it loses digits.
//
// Macros: those of rows; T; CENTER; EPSILON, added to the variance.

extern "C" __global__ void __launch_bounds__(THREADS) normalize(const T* operand, T* result, float* of_r) {
  Own own;
  Row<T> x(operand, own);
  float mean = 0.0f;
  if (CENTER) {
    float sum = 0.0f;
    EACH_STEP(step, at) {
      Part part = x.part(step, at);
      EACH(k) sum += part.at[k];
    }
    mean = combined<Sum>(sum) / (float)EXTENT;
  }
  float squares = 0.0f;
  EACH_STEP(step, at) {
    Part part = x.part(step, at);
    EACH(k) squares += (part.at[k] - mean) * (part.at[k] - mean);
  }
  float variance = combined<Sum>(squares) / (float)EXTENT;
  float r = 1.0f / sqrtf(variance + EPSILON);
  if (own.first) of_r[own.row] = r;
  if (!own.writes) return;
  T* out = result + own.start();
  EACH_STEP(step, at) {
    Part part = x.part(step, at);
    EACH(k) part.at[k] = (part.at[k] - mean) * r;
    write(out, at, part);
  }
}
