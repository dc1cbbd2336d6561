// What becomes of a product's sum before it is written: a summand of the result's shape, then one for each column, then a function.
//
// Macros: OUT, the element type of the result and of all that is added; ADDED, BIAS and KEPT, whether there is such a matrix or row;
// ACTIVATION, one of those below.

#define NOTHING 0
#define RELU 1
#define GELU 2
#define GELU_GRAD 3

#if ACTIVATION == GELU || ACTIVATION == GELU_GRAD
// tanh, within a rounding of 1.
__device__ __forceinline__ float tanh_of(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power_of_two(x * (2.0f * LOG2_E))));
  return 1.0f - 2.0f * inverse;
}
#endif

// Of the element at a place of the result, in a column. GELU writes what it is taken of, its gradient reads that.
__device__ __forceinline__ float ended(float x, u64 at, u64 column, const OUT* added, const OUT* bias, OUT* kept) {
  if (ADDED) x += load(added[at]);
  if (BIAS) x += load(bias[column]);
#if ACTIVATION == RELU
  x = x < 0.0f ? 0.0f : x;
#elif ACTIVATION == GELU
  if (KEPT) kept[at] = to<OUT>(x);
  x = 0.5f * x * (1.0f + tanh_of(0.7978846f * (x + 0.044715f * x * x * x)));
#elif ACTIVATION == GELU_GRAD
  float z = load(kept[at]), t = tanh_of(0.7978846f * (z + 0.044715f * z * z * z));
  float slope = 0.7978846f * (1.0f + 0.134145f * z * z);
  x *= 0.5f * (1.0f + t) + 0.5f * z * (1.0f - t * t) * slope;
#endif
  return x;
}
