// Recurrent cells, a step a launch: a thread has one unit of EACH samples, a block 32 units of 8 EACH samples.
//
// Macros: T, the element type; BATCH, TIME, UNITS; CELL, one of LSTM, GRU, TANH, RELU; GATES; REVERSE, whether steps go from the last to
// the first; EACH.

#define LSTM 0
#define GRU 1
#define TANH 2
#define RELU 3
#define SAMPLES (8 * EACH)
#define UNIT (blockIdx.x % ((UNITS + 31) / 32) * 32 + threadIdx.x % 32)
#define SAMPLE (blockIdx.x / ((UNITS + 31) / 32) * SAMPLES + threadIdx.x / 32)

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Where an element of [BATCH, TIME, n UNITS] stands.
__device__ __forceinline__ u64 at_step(u32 sample, u32 step, u32 n, u32 unit) {
  return ((u64)sample * TIME + step) * (n * UNITS) + unit;
}
