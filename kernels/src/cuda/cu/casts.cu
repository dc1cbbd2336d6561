// Casts of several tensors in one launch.
//
// Macros: WIDTH, how many elements a thread takes at once; FROM and INTO, the element types; CAST, the value of x as one of INTO; PARTS, how many
// tensors there are; STEPS, how often a block goes on; INDEX, the type of positions.

// In the table each part has the places of the operand and the result, its elements and its first block; behind the parts stands of each block
// which part it is of.
#define FIELDS 4

template <int COUNT> __device__ __forceinline__ void cast_part(INDEX i, const FROM* from, INTO* into) {
  Vec<FROM, COUNT> given = *(const Vec<FROM, COUNT>*)(from + i);
  Vec<INTO, COUNT> made;
#pragma unroll
  for (int k = 0; k < COUNT; ++k) {
    auto x = load(given.at[k]);
    made.at[k] = to<INTO>(CAST);
  }
  *(Vec<INTO, COUNT>*)(into + i) = made;
}

extern "C" __global__ void __launch_bounds__(256) casts(char* registers, const u64* table) {
  const u64* part = table + table[PARTS * FIELDS + blockIdx.x] * FIELDS;
  const FROM* from = (const FROM*)(registers + part[0]);
  INTO* into = (INTO*)(registers + part[1]);
  INDEX elements = part[2], chunk = blockIdx.x - part[3];
  INDEX i = (chunk * (STEPS * 256) + threadIdx.x) * WIDTH;
  for (int step = 0; step < STEPS && i < elements; ++step, i += 256 * WIDTH) {
    if (i + WIDTH <= elements) {
      cast_part<WIDTH>(i, from, into);
    } else {
      for (INDEX j = i; j < elements; ++j) cast_part<1>(j, from, into);
    }
  }
}
