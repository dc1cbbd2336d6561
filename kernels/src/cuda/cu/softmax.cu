// Softmax of rows, or its logarithm.
//
// Macros: those of rows; T; LOGARITHM.

extern "C" __global__ void __launch_bounds__(THREADS) softmax(const T* operand, T* result) {
  Own own;
  Row<T> x(operand, own);
  float greatest = -INFINITE;
  EACH_STEP(step, at) {
    Part part = x.part(step, at);
    EACH(k) greatest = Greatest::of(greatest, part.at[k]);
  }
  greatest = combined<Greatest>(greatest);
  float sum = 0.0f;
  EACH_STEP(step, at) {
    Part part = x.part(step, at);
    EACH(k) {
      float weight = expf(part.at[k] - greatest);
      sum += weight;
      if (!LOGARITHM) part.at[k] = weight;
    }
    if (KEPT) x.kept[step] = part;
  }
  sum = combined<Sum>(sum);
  float factor = 1.0f / sum, log = logf(sum);
  if (!own.writes) return;
  T* out = result + own.start();
  EACH_STEP(step, at) {
    Part part = x.part(step, at);
    EACH(k) {
      if (LOGARITHM) part.at[k] = part.at[k] - greatest - log;
      else part.at[k] = (KEPT ? part.at[k] : expf(part.at[k] - greatest)) * factor;
    }
    write(out, at, part);
  }
}
