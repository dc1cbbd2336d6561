// The gradient of normalized rows y, of which r is what they were multiplied by.
//
// Macros: those of rows; T; CENTER.

extern "C" __global__ void __launch_bounds__(THREADS) normalize_grad(const T* of_y, const float* of_r, const T* of_dy, T* result) {
  Own own;
  Row<T> y(of_y, own), dy(of_dy, own);
  float sum = 0.0f, product = 0.0f;
  EACH_STEP(step, at) {
    Part a = y.part(step, at), b = dy.part(step, at);
    EACH(k) {
      sum += b.at[k];
      product += a.at[k] * b.at[k];
    }
  }
  float shift = CENTER ? combined<Sum>(sum) / (float)EXTENT : 0.0f;
  float slope = combined<Sum>(product) / (float)EXTENT;
  if (!own.writes) return;
  float r = of_r[own.row];
  T* out = result + own.start();
  EACH_STEP(step, at) {
    Part a = y.part(step, at), b = dy.part(step, at);
    EACH(k) b.at[k] = r * (b.at[k] - shift - a.at[k] * slope);
    write(out, at, b);
  }
}
