// A step: the product of all samples' states with the weights, and then the cell. States are f32 from step to step, in two places in turn.
//
// Macros: as of `recurrence.cuh`.

extern "C" __global__ void __launch_bounds__(256) recurrence(const T* x, const T* r, const T* b, const T* first,
#if CELL == LSTM
    const T* first_kept,
#endif
    T* y,
#if CELL == LSTM
    T* all_kept,
#endif
    float* states, float* kept, u32 turn) {
  __shared__ float state[SAMPLES][33];
  __shared__ float weights[GATES][32][33];
  u32 unit = UNIT, sample = SAMPLE, step = REVERSE ? TIME - 1 - turn : turn;
  const float* before = states + (turn + 1) % 2 * (u64)BATCH * UNITS;
  float* after = states + turn % 2 * (u64)BATCH * UNITS;
  float p[EACH][GATES] = {};
  for (u32 start = 0; start < UNITS; start += 32) {
    u32 from = start + threadIdx.x % 32;
    for (u32 at = threadIdx.x / 32; at < SAMPLES; at += 8) {
      u32 own = sample - threadIdx.x / 32 + at;
      bool there = own < BATCH && from < UNITS;
      u64 place = (u64)own * UNITS + from;
      state[at][threadIdx.x % 32] = !there ? 0.0f : (turn == 0 ? load(first[place]) : before[place]);
    }
    for (u32 at = threadIdx.x / 32; at < GATES * 32; at += 8) {
      u32 row = unit - threadIdx.x % 32 + at % 32;
      bool there = row < UNITS && from < UNITS;
      weights[at / 32][at % 32][threadIdx.x % 32] = there ? load(r[(u64)(at / 32 * UNITS + row) * UNITS + from]) : 0.0f;
    }
    __syncthreads();
#pragma unroll 8
    for (u32 k = 0; k < 32; ++k) {
#pragma unroll
      for (u32 gate = 0; gate < GATES; ++gate) {
        float weight = weights[gate][threadIdx.x % 32][k];
#pragma unroll
        for (u32 e = 0; e < EACH; ++e) p[e][gate] = fmaf(state[threadIdx.x / 32 + 8 * e][k], weight, p[e][gate]);
      }
    }
    __syncthreads();
  }
  if (unit >= UNITS) return;
#pragma unroll
  for (u32 e = 0; e < EACH; ++e) {
    u32 own = sample + 8 * e;
    if (own >= BATCH) continue;
    float gates[GATES], share[GATES];
#pragma unroll
    for (u32 gate = 0; gate < GATES; ++gate) {
      share[gate] = p[e][gate] + load(b[gate * UNITS + unit]);
      gates[gate] = load(x[at_step(own, step, GATES, gate * UNITS + unit)]);
    }
    u64 place = (u64)own * UNITS + unit, at = at_step(own, step, 1, unit);
    float made;
#if CELL == LSTM
    float i = sigmoid(gates[0] + share[0]), f = sigmoid(gates[2] + share[2]);
    float old = turn == 0 ? load(first_kept[place]) : kept[place];
    float held = f * old + i * tanhf(gates[3] + share[3]);
    made = sigmoid(gates[1] + share[1]) * tanhf(held);
    kept[place] = held;
    all_kept[at] = to<T>(held);
#elif CELL == GRU
    float z = sigmoid(gates[0] + share[0]), reset = sigmoid(gates[1] + share[1]);
    float old = turn == 0 ? load(first[place]) : before[place];
    made = (1.0f - z) * tanhf(gates[2] + reset * share[2]) + z * old;
#elif CELL == TANH
    made = tanhf(gates[0] + share[0]);
#else
    made = gates[0] + share[0];
    made = made < 0.0f ? 0.0f : made;
#endif
    after[place] = made;
    y[at] = to<T>(made);
  }
}
