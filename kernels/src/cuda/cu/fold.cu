// The sum of a function of all elements. Each block adds up a part; `join` adds these, as double. Both have a form for several tensors.
//
// Macros: T; WIDTH, how many elements a thread takes at once; STEPS, how often it does; VALUE(x); INDEX, the type of positions. Of one
// tensor: ELEMENTS; PARTS, blocks. Of several: MEMBERS, how many.

__device__ __forceinline__ void fold_part(const T* x, INDEX elements, INDEX chunk, float* part) {
  float sum = 0.0f;
  for (u32 step = 0; step < STEPS; ++step) {
    INDEX i = ((chunk * STEPS + step) * 256 + threadIdx.x) * WIDTH;
    if (i + WIDTH <= elements) {
      Vec<T, WIDTH> taken = *(const Vec<T, WIDTH>*)(x + i);
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) {
        float value = load(taken.at[k]);
        sum += VALUE(value);
      }
    } else {
      for (; i < elements; ++i) {
        float value = load(x[i]);
        sum += VALUE(value);
      }
    }
  }
  sum = block_sum<256>(sum);
  if (threadIdx.x == 0) *part = sum;
}

__device__ __forceinline__ void join_parts(const float* parts, u32 count, float* result) {
  __shared__ double sums[256];
  double sum = 0.0;
  for (u32 part = threadIdx.x; part < count; part += 256) sum += (double)parts[part];
  sums[threadIdx.x] = sum;
#pragma unroll
  for (u32 half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *result = (float)sums[0];
}

#ifdef MEMBERS

// In the table each member has the places of its tensor and of the sum, its elements, its first block and how many blocks it has; behind
// the members stands of each block which member it is of.
#define FIELDS 5

extern "C" __global__ void __launch_bounds__(256) folds(char* registers, const u64* table, float* parts) {
  const u64* member = table + table[MEMBERS * FIELDS + blockIdx.x] * FIELDS;
  INDEX elements = member[2], chunk = blockIdx.x - member[3];
  fold_part((const T*)(registers + member[0]), elements, chunk, parts + blockIdx.x);
}

extern "C" __global__ void __launch_bounds__(256) joins(char* registers, const u64* table, const float* parts) {
  const u64* member = table + blockIdx.x * FIELDS;
  join_parts(parts + member[3], (u32)member[4], (float*)(registers + member[1]));
}

#else

extern "C" __global__ void __launch_bounds__(256) fold(const T* x, float* parts) {
  fold_part(x, ELEMENTS, blockIdx.x, parts + blockIdx.x);
}

extern "C" __global__ void __launch_bounds__(256) join(const float* parts, float* result) {
  join_parts(parts, PARTS, result);
}

#endif
