typedef unsigned u32;
typedef unsigned long long u64;
typedef unsigned short u16;

extern "C" __global__ void axpy(const float *x, const float *y, float *z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = 2.f * x[i] + y[i];
}

__device__ float warp_sum(float v) {
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}
__device__ float warp_max(float v) {
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
  return v;
}

extern "C" __global__ void softmax(const float *x, float *y, int n) {
  __shared__ float maxima[32], sums[32];
  const float *row = x + (size_t)blockIdx.x * n;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float m = __int_as_float(0xff800000), s = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) m = fmaxf(m, row[i]);
  m = warp_max(m);
  if (lane == 0) maxima[warp] = m;
  __syncthreads();
  for (int w = 0; w < blockDim.x / 32; w++) m = fmaxf(m, maxima[w]);
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += expf(row[i] - m);
  s = warp_sum(s);
  if (lane == 0) sums[warp] = s;
  __syncthreads();
  s = 0;
  for (int w = 0; w < blockDim.x / 32; w++) s += sums[w];
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[(size_t)blockIdx.x * n + i] = expf(row[i] - m) / s;
}

extern "C" __global__ void product(const float *a, const float *b, float *c, int m, int n, int k) {
  __shared__ float ta[16][16], tb[16][17];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int q = 0; q < k; q += 16) {
    int ka = q + threadIdx.x, kb = q + threadIdx.y;
    ta[threadIdx.y][threadIdx.x] = row < m && ka < k ? a[row * k + ka] : 0;
    tb[threadIdx.y][threadIdx.x] = column < n && kb < k ? b[kb * n + column] : 0;
    __syncthreads();
    for (int i = 0; i < 16; i++) sum += ta[threadIdx.y][i] * tb[i][threadIdx.x];
    __syncthreads();
  }
  if (row < m && column < n) c[row * n + column] = sum;
}

extern "C" __global__ void adam(float *p, const float *g, float *m, float *v, long long n, float rate, float b1, float b2, float eps) {
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x) {
    float mean = m[i] = b1 * m[i] + (1 - b1) * g[i];
    float square = v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
    p[i] -= rate * mean / (sqrtf(square) + eps);
  }
}

extern "C" __global__ void philox(u32 *y, int n, u64 seed) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  u32 k0 = (u32)seed, k1 = seed >> 32, c0 = i, c1 = 0, c2 = 0, c3 = 0;
  for (int r = 0; r < 10; r++) {
    u64 a = (u64)0xD2511F53u * c0, b = (u64)0xCD9E8D57u * c2;
    u32 n0 = (u32)(b >> 32) ^ c1 ^ k0, n2 = (u32)(a >> 32) ^ c3 ^ k1;
    c1 = (u32)b; c3 = (u32)a; c0 = n0; c2 = n2;
    k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
  }
  y[i] = c0;
}

extern "C" __global__ void atomic_sum(const float *x, float *sum, int n) {
  float s = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += x[i];
  s = warp_sum(s);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, s);
}

extern "C" __global__ void last_block_sum(const float *x, float *parts, u32 *count, float *out, int n) {
  __shared__ float sums[32];
  __shared__ bool last;
  float s = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += x[i];
  s = warp_sum(s);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < blockDim.x / 32; w++) s += sums[w];
    parts[blockIdx.x] = s;
    __threadfence();
    last = atomicAdd(count, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float all = 0;
    for (int b = 0; b < gridDim.x; b++) all += parts[b];
    *out = all;
  }
}

extern "C" __global__ void narrow(const float *x, u16 *bf, u16 *hf, float *back, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  u16 b, h;
  float f;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(x[i]));
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x[i]));
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  bf[i] = b;
  hf[i] = h;
  back[i] = f + __uint_as_float((u32)b << 16);
}
