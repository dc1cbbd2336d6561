// The gradient of softmax of rows, or of its logarithm, from its result y and the gradient of that.
//
// Macros: those of rows; T; LOGARITHM.

extern "C" __global__ void __launch_bounds__(THREADS) softmax_grad(const T* of_y, const T* of_dy, T* result) {
  Own own;
  Row<T> y(of_y, own), dy(of_dy, own);
  float sum = 0.0f;
  EACH_STEP(step, at) {
    Part a = y.part(step, at), b = dy.part(step, at);
    EACH(k) sum += LOGARITHM ? b.at[k] : a.at[k] * b.at[k];
  }
  sum = combined<Sum>(sum);
  if (!own.writes) return;
  T* out = result + own.start();
  EACH_STEP(step, at) {
    Part a = y.part(step, at), b = dy.part(step, at);
    EACH(k) b.at[k] = LOGARITHM ? b.at[k] - expf(a.at[k]) * sum : a.at[k] * (b.at[k] - sum);
    write(out, at, b);
  }
}
