// Brings kernels to the order in which a product reads them: of each group a matrix [taps of channels summed over, channels made].
//
// Macros besides those of convolutions: ELEMENTS of the kernels; BROUGHT, how many channels a block of the gradient of images
// brings, 0 where their taps are too many for shared memory.

#if KIND == FORWARD

// A block turns 32 features by 32 elements of them, through shared memory, so that it reads and writes what lies side by side.
extern "C" __global__ void __launch_bounds__(256) convolution_pack(const T* k, T* packed) {
  __shared__ T tile[32][33];
  u32 lane = threadIdx.x % 32, group = blockIdx.z;
  u32 feature = blockIdx.x * 32, element = blockIdx.y * 32;
  for (u32 row = threadIdx.x / 32; row < 32; row += 8) {
    if (feature + row < OUTPUTS && element + lane < INPUTS * TAPS)
      tile[row][lane] = k[in_k(group * OUTPUTS + feature + row, 0, element + lane)];
  }
  __syncthreads();
  for (u32 row = threadIdx.x / 32; row < 32; row += 8) {
    u32 o = feature + lane, c = (element + row) / TAPS, tap = (element + row) % TAPS;
    if (o < OUTPUTS && c < INPUTS) packed[(((INDEX)group * TAPS + tap) * INPUTS + c) * OUTPUTS + o] = tile[lane][row];
  }
}

#elif BROUGHT > 0

// A block brings some channels of one feature.
extern "C" __global__ void __launch_bounds__(256) convolution_pack(const T* k, T* packed) {
  __shared__ T part[BROUGHT * TAPS];
  u32 first = blockIdx.y * BROUGHT, count = INPUTS - first < BROUGHT ? INPUTS - first : BROUGHT;
  u32 o = blockIdx.x % OUTPUTS, group = blockIdx.x / OUTPUTS;
  for (u32 at = threadIdx.x; at < count * TAPS; at += 256) part[at] = k[in_k(blockIdx.x, first, at)];
  __syncthreads();
  for (u32 at = threadIdx.x; at < count * TAPS; at += 256) {
    u32 c = at % count, tap = at / count;
    packed[(((INDEX)group * TAPS + tap) * OUTPUTS + o) * INPUTS + first + c] = part[c * TAPS + tap];
  }
}

#else

extern "C" __global__ void __launch_bounds__(256) convolution_pack(const T* k, T* packed) {
  INDEX e = (INDEX)blockIdx.x * 256 + threadIdx.x;
  if (e >= ELEMENTS) return;
  u32 c = (u32)(e % INPUTS), o = (u32)(e / INPUTS % OUTPUTS);
  u32 tap = (u32)(e / INPUTS / OUTPUTS % TAPS), group = (u32)(e / INPUTS / OUTPUTS / TAPS);
  packed[e] = k[in_k(group * OUTPUTS + o, c, tap)];
}

#endif
