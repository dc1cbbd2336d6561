typedef unsigned u32;

extern "C" __global__ void missing_barrier(const float *x, float *y) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
#ifndef WITHOUT
  __syncthreads();
#endif
  y[threadIdx.x] = tile[63 - threadIdx.x];
}

// Written again while other warps may still read.
extern "C" __global__ void reused_tile(const float *x, float *y) {
  __shared__ float tile[64];
  float sum = 0;
  for (int i = 0; i < 2; i++) {
    tile[threadIdx.x] = x[threadIdx.x] + i;
    __syncthreads();
    sum += tile[63 - threadIdx.x];
#ifndef WITHOUT
    __syncthreads();
#endif
  }
  y[threadIdx.x] = sum;
}

extern "C" __global__ void divided_barrier(const float *x, float *y) {
#ifdef WITHOUT
  if (threadIdx.x < 32) { y[threadIdx.x] = x[threadIdx.x]; __syncthreads(); y[threadIdx.x] += 1; }
  else { y[threadIdx.x] = 2; __syncthreads(); y[threadIdx.x] += 3; }
#else
  __syncthreads();
  y[threadIdx.x] = x[threadIdx.x];
#endif
}

extern "C" __global__ void missing_lanes(const float *x, float *y) {
  float v = x[threadIdx.x];
#ifdef WITHOUT
  if (threadIdx.x % 32 < 16) v += __shfl_xor_sync(~0u, v, 1);
  else { y[threadIdx.x] = 1; __syncthreads(); }
#else
  v += __shfl_xor_sync(~0u, v, 1);
#endif
  y[threadIdx.x] = v;
}

extern "C" __global__ void shared_outside(const float *x, float *y) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
#ifdef WITHOUT
  y[threadIdx.x] = tile[threadIdx.x + (int)x[0] + 1];
#else
  y[threadIdx.x] = tile[threadIdx.x];
#endif
}

extern "C" __global__ void unwritten_shared(const float *x, float *y) {
  __shared__ float tile[64];
#ifdef WITHOUT
  if (threadIdx.x != 5)
#endif
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[63 - threadIdx.x];
}

extern "C" __global__ void sum_of_blocks(const float *x, float *y) {
#ifdef WITHOUT
  if (threadIdx.x == 0) y[0] += x[blockIdx.x];
#else
  if (threadIdx.x == 0) atomicAdd(y, x[blockIdx.x]);
#endif
}

extern "C" __global__ void same_place(const float *x, float *y) {
#ifdef WITHOUT
  y[threadIdx.x / 2] = x[threadIdx.x];
#else
  y[threadIdx.x / 2] = x[threadIdx.x / 2];
#endif
}

extern "C" __global__ void misaligned(const float *x, float *y) {
#ifdef WITHOUT
  *(float2 *)&y[2 * threadIdx.x % 32 + 1] = make_float2(x[0], x[1]);
#else
  y[threadIdx.x] = x[threadIdx.x];
#endif
}

extern "C" __global__ void missing_fence(const float *x, float *y) {
  u32 *count = (u32 *)y;
  if (threadIdx.x == 0) y[1 + blockIdx.x] = x[blockIdx.x];
#ifndef WITHOUT
  __threadfence();
#endif
  __syncthreads();
  __shared__ u32 place;
  if (threadIdx.x == 0) place = atomicAdd(count, 1);
  __syncthreads();
  if (place == gridDim.x - 1 && threadIdx.x == 0) {
    float sum = 0;
    for (int b = 0; b < gridDim.x; b++) sum += y[1 + b];
    y[10] = sum;
  }
}

extern "C" __global__ void a_trap(const float *x, float *y) {
#ifdef WITHOUT
  if (x[threadIdx.x] > 40) __trap();
#endif
  y[threadIdx.x] = x[threadIdx.x];
}
