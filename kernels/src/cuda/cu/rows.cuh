// Rows that are read as a whole, e.g. to be normalized. LANES threads share a row; a block of THREADS has several rows where they are
// short. Where a row fits in registers it is read once.
//
// Macros: EXTENT, elements of a row; COUNT, rows; INNER, the distance of a row's elements; WIDTH, how many elements a thread takes at
// once (1 where INNER is not); STEPS, how often; KEPT, whether they stay in registers; LANES; THREADS.

#define ROWS (THREADS / LANES)
#define UNROLLED (KEPT && STEPS > 0 ? STEPS : 1)
// What a thread has of a row: element `at` on, in each step.
#define EACH_STEP(step, at) \
  _Pragma("unroll UNROLLED") for (u32 step = 0, at = own.lane * WIDTH; step < STEPS; ++step, at += LANES * WIDTH) if (at < EXTENT)
#define EACH(k) _Pragma("unroll") for (int k = 0; k < WIDTH; ++k)

// Which row a thread works at. Threads beyond the last row take part in its sums and write nothing.
struct Own {
  u64 row;
  u32 lane;
  bool writes; // whether it writes elements
  bool first;  // whether it writes what there is one of in a row

  __device__ Own() {
    u32 local = INNER == 1 ? threadIdx.x / LANES : threadIdx.x % ROWS;
    lane = INNER == 1 ? threadIdx.x % LANES : threadIdx.x / ROWS;
    row = (u64)blockIdx.x * ROWS + local;
    writes = row < COUNT;
    first = writes && lane == 0;
    if (!writes) row = COUNT - 1;
  }
  // Where the row begins.
  __device__ u64 start() const { return INNER == 1 ? row * EXTENT : row / INNER * ((u64)EXTENT * INNER) + row % INNER; }
};

typedef Vec<float, WIDTH> Part;

template <class E> __device__ __forceinline__ Part read(const E* row, u32 at) {
  Part part;
  if (INNER == 1) {
    Vec<E, WIDTH> elements = *(const Vec<E, WIDTH>*)(row + at);
    EACH(k) part.at[k] = load(elements.at[k]);
  } else {
    part.at[0] = load(row[(u64)at * INNER]);
  }
  return part;
}
template <class E> __device__ __forceinline__ void write(E* row, u32 at, Part part) {
  if (INNER == 1) {
    Vec<E, WIDTH> elements;
    EACH(k) elements.at[k] = to<E>(part.at[k]);
    *(Vec<E, WIDTH>*)(row + at) = elements;
  } else {
    row[(u64)at * INNER] = to<E>(part.at[0]);
  }
}

// A row of an operand.
template <class E> struct Row {
  const E* from;
  Part kept[UNROLLED];

  __device__ __forceinline__ Row(const E* operand, const Own& own) : from(operand + own.start()) {
    if (KEPT) {
      EACH_STEP(step, at) kept[step] = read(from, at);
    }
  }
  __device__ __forceinline__ Part part(u32 step, u32 at) const { return KEPT ? kept[step] : read(from, at); }
};

struct Sum {
  static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};
// What is no number is passed over.
struct Greatest {
  static __device__ __forceinline__ float of(float a, float b) { return b > a ? b : a; }
};

// Combines the values of a row's threads, in an order that is always the same; all get the result.
template <class F> __device__ __forceinline__ float combined(float x) {
  __shared__ float parts[THREADS];
  if (INNER == 1) {
#pragma unroll
    for (int lane = (LANES < 32 ? LANES : 32) / 2; lane > 0; lane /= 2) x = F::of(x, __shfl_xor_sync(ALL_LANES, x, lane));
    if (LANES <= 32) return x;
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = parts[0];
    for (int warp = 1; warp < LANES / 32; ++warp) x = F::of(x, parts[warp]);
    return x;
  }
  u32 lane = threadIdx.x / ROWS;
  __syncthreads();
  parts[threadIdx.x] = x;
#pragma unroll
  for (u32 half = LANES / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) parts[threadIdx.x] = F::of(parts[threadIdx.x], parts[threadIdx.x + half * ROWS]);
  }
  __syncthreads();
  return parts[threadIdx.x % ROWS];
}
