// Brings kernels to the order in which a product reads them: of each group a matrix [taps of channels summed over, channels made].
//
// Macros besides those of convolutions: ELEMENTS of the kernels.

#if KIND == FORWARD
#define SUMMED INPUTS
#define MADE OUTPUTS
#else
#define SUMMED OUTPUTS
#define MADE INPUTS
#endif

extern "C" __global__ void __launch_bounds__(256) convolution_pack(const T* k, T* packed) {
  INDEX e = (INDEX)blockIdx.x * 256 + threadIdx.x;
  if (e >= ELEMENTS) return;
  u32 made = (u32)(e % MADE), summed = (u32)(e / MADE % SUMMED);
  u32 tap = (u32)(e / MADE / SUMMED % TAPS), group = (u32)(e / MADE / SUMMED / TAPS);
  u32 o = KIND == FORWARD ? made : summed, c = KIND == FORWARD ? summed : made;
  packed[e] = k[in_k(group * OUTPUTS + o, c, tap)];
}
