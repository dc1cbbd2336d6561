// A step back: what the step behind it gives the gradient of the state, a product of the gradients of all its gates with the weights,
// and then the gradient of the cell. The launch after the first step gives the gradients of what there was before it.
//
// Macros: as of `recurrence.cuh`; HAS_KEPT_GRADIENT, whether what an LSTM keeps has a gradient from elsewhere.
// `shares` holds the gradients of gates, in two places in turn; `states` what goes straight a step back; `kept` the gradient of what an
// LSTM keeps.

extern "C" __global__ void __launch_bounds__(256) recurrence_grad(const T* r,
#if CELL == LSTM
    const T* gates, const T* first_kept, const T* all_kept, const T* dy,
#if HAS_KEPT_GRADIENT
    const T* of_all_kept,
#endif
    T* dx, T* of_first, T* of_first_kept,
#elif CELL == GRU
    const T* x, const T* p, const T* s, const T* dy, T* dx, T* dp, T* of_first,
#else
    const T* y, const T* dy, T* dx, T* of_first,
#endif
    float* shares, float* states, float* kept, u32 turn) {
  __shared__ float given[SAMPLES][33];
  __shared__ float weights[32][33];
  u32 unit = UNIT, sample = SAMPLE;
  const float* before = shares + (turn + 1) % 2 * (u64)BATCH * (GATES * UNITS);
  float* after = shares + turn % 2 * (u64)BATCH * (GATES * UNITS);
  float sums[EACH] = {};
  for (u32 start = 0; start < GATES * UNITS && turn > 0; start += 32) {
    u32 from = start + threadIdx.x % 32;
    for (u32 at = threadIdx.x / 32; at < SAMPLES; at += 8) {
      u32 own = sample - threadIdx.x / 32 + at;
      given[at][threadIdx.x % 32] = own < BATCH && from < GATES * UNITS ? before[(u64)own * (GATES * UNITS) + from] : 0.0f;
    }
    for (u32 at = threadIdx.x / 32; at < 32; at += 8) {
      bool there = unit < UNITS && start + at < GATES * UNITS;
      weights[at][threadIdx.x % 32] = there ? load(r[(u64)(start + at) * UNITS + unit]) : 0.0f;
    }
    __syncthreads();
#pragma unroll 8
    for (u32 k = 0; k < 32; ++k) {
      float weight = weights[k][threadIdx.x % 32];
#pragma unroll
      for (u32 e = 0; e < EACH; ++e) sums[e] = fmaf(given[threadIdx.x / 32 + 8 * e][k], weight, sums[e]);
    }
    __syncthreads();
  }
  if (unit >= UNITS) return;
  u32 step = REVERSE ? turn : TIME - 1 - turn;
#pragma unroll
  for (u32 e = 0; e < EACH; ++e) {
    u32 own = sample + 8 * e;
    if (own >= BATCH) continue;
    u64 place = (u64)own * UNITS + unit;
    float of_state = sums[e];
#if CELL == GRU
    if (turn > 0) of_state += states[place];
#endif
    if (turn == TIME) {
      of_first[place] = to<T>(of_state);
#if CELL == LSTM
      of_first_kept[place] = to<T>(kept[place]);
#endif
      continue;
    }
    u64 at = at_step(own, step, 1, unit), wide = at_step(own, step, GATES, unit);
    float* own_shares = after + (u64)own * (GATES * UNITS) + unit;
    of_state += load(dy[at]);
    float found[GATES];
#if CELL == LSTM
    float i = sigmoid(load(gates[wide])), o = sigmoid(load(gates[wide + UNITS]));
    float f = sigmoid(load(gates[wide + 2 * UNITS])), g = tanhf(load(gates[wide + 3 * UNITS]));
    float out = tanhf(load(all_kept[at])), of_kept = turn > 0 ? kept[place] : 0.0f;
#if HAS_KEPT_GRADIENT
    of_kept += load(of_all_kept[at]);
#endif
    bool begins = step == (REVERSE ? TIME - 1 : 0);
    float old = load(begins ? first_kept[place] : all_kept[at_step(own, begins ? 0 : (REVERSE ? step + 1 : step - 1), 1, unit)]);
    of_kept += of_state * o * (1.0f - out * out);
    found[0] = of_kept * g * (i * (1.0f - i));
    found[1] = of_state * out * (o * (1.0f - o));
    found[2] = of_kept * old * (f * (1.0f - f));
    found[3] = of_kept * i * (1.0f - g * g);
    kept[place] = of_kept * f;
#elif CELL == GRU
    float z = sigmoid(load(x[wide]) + load(p[wide])), reset = sigmoid(load(x[wide + UNITS]) + load(p[wide + UNITS]));
    float share = load(p[wide + 2 * UNITS]), made = tanhf(load(x[wide + 2 * UNITS]) + reset * share);
    float of_new = of_state * (1.0f - z) * (1.0f - made * made);
    found[0] = of_state * (load(s[at]) - made) * (z * (1.0f - z));
    found[1] = of_new * share * (reset * (1.0f - reset));
    found[2] = of_new * reset;
    states[place] = of_state * z;
#elif CELL == TANH
    float value = load(y[at]);
    found[0] = of_state * (1.0f - value * value);
#else
    found[0] = load(y[at]) > 0.0f ? of_state : 0.0f;
#endif
#pragma unroll
    for (u32 gate = 0; gate < GATES; ++gate) {
      own_shares[gate * UNITS] = found[gate];
#if CELL == GRU
      dp[wide + gate * UNITS] = to<T>(found[gate]);
      dx[wide + gate * UNITS] = to<T>(gate == 2 ? of_new : found[gate]);
#else
      dx[wide + gate * UNITS] = to<T>(found[gate]);
#endif
    }
  }
}
