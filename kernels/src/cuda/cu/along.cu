// A step along a direction, which stands in the gradient's place.
//
// Macros: those of updates. Numbers: the rate.

struct Rates {
  float rate;
  __device__ explicit Rates(const float* numbers) : rate(numbers[0]) {}
};

__device__ __forceinline__ void step(const Rates& rates, float& w, float u, float* states) { w -= rates.rate * u; }
