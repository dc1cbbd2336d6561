// The sum over the places of each token, times their weights, in the order of the choices; 0 for a token that is dropped. A thread for each
// part of a token.
//
// Macros: as of dispatch, of whose result this takes the shape.

extern "C" __global__ void __launch_bounds__(256) combine(
    const T* y, const T* weights, const i64* slots, T* x, i64 first_token, i64 first_choice, i64 first_block, i64 first_place) {
  INDEX i = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (i >= ELEMENTS) return;
  INDEX row = i / SIZE;
  u64 group = row / OWN_TOKENS, token = first_token + row % OWN_TOKENS;
  float sums[WIDTH] = {};
  for (u32 choice = 0; choice < OWN_CHOICES; ++choice) {
    i64 place = place_of(slots, group, token, first_choice + choice, first_block, first_place);
    if (place < 0) continue;
    float weight = WEIGHTED ? load(weights[(u64)row * OWN_CHOICES + choice]) : 1.0f;
    Vec<T, WIDTH> part = *(const Vec<T, WIDTH>*)(y + (u64)place * SIZE + i % SIZE);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) sums[k] += weight * load(part.at[k]);
  }
  Vec<T, WIDTH> part;
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) part.at[k] = to<T>(sums[k]);
  *(Vec<T, WIDTH>*)(x + i) = part;
}
