// The loss of each row of scores for its label, and the logarithm of the sum of powers. Of a label that is ignored the loss is 0.
//
// Macros: those of rows, indices and classes; T; SMOOTHING, the share of the target that all classes have.

// exp(x) of a difference to the greatest: within a few roundings of x.
__device__ __forceinline__ float power(float x) { return power_of_two(x * LOG2_E); }

// The sum of exp(x - greatest) as far as the greatest is known.
struct Powers {
  float greatest, sum;

  __device__ __forceinline__ void add(const Part& part) {
    float most = greatest;
    EACH(k) most = part.at[k] > most ? part.at[k] : most;
    if (most > greatest) {
      sum *= power(greatest - most);
      greatest = most;
    }
    EACH(k) if (part.at[k] != -INFINITE) sum += power(part.at[k] - greatest);
  }
};

extern "C" __global__ void __launch_bounds__(THREADS) cross_entropy(
    const T* operand, const i64* labels, float* losses, float* ls, Fault* account, u32 call) {
  Own own;
  const T* row = operand + own.start();
  Powers powers = {-INFINITE, 0.0f};
  float total = 0.0f;
  EACH_STEP(step, at) {
    Part part = read(row, at);
    EACH(k) {
      if (IS_CLASS(at + k)) total += part.at[k];
      else part.at[k] = -INFINITE;
    }
    powers.add(part);
  }
  float greatest = combined<Greatest>(powers.greatest);
  float scaled = powers.sum == 0.0f ? 0.0f : powers.sum * power(powers.greatest - greatest);
  float log = logf(combined<Sum>(scaled));
  // What is -inf everywhere has no softmax.
  if (EXTENT > 0 && greatest == -INFINITE) log = NOT_A_NUMBER;
  if (SMOOTHING != 0.0f) total = combined<Sum>(total);
  if (!own.first) return;
  ls[own.row] = greatest + log;
  i64 label = index_at(labels, own.row, account, call);
  float loss = 0.0f;
  if (label >= 0) {
    float target = load(row[label]) - greatest;
    if (SMOOTHING != 0.0f) {
      target = (1.0f - SMOOTHING) * target + SMOOTHING * (total / (float)CLASSES - greatest);
    }
    loss = log - target;
  }
  losses[own.row] = loss;
}
