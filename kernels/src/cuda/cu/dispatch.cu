// Tokens, times their weights, at the places that they have; 0 where no token is. A thread for each part of a place.
//
// Macros: those of experts; T; WEIGHTED; ELEMENTS of the result; SIZE, elements of a token; WIDTH, how many a thread takes at once, which
// divides these; INDEX, the type of positions.

extern "C" __global__ void __launch_bounds__(256) dispatch(
    const T* x, const T* weights, const i64* owners, T* y, i64 first_token, i64 first_choice) {
  INDEX i = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (i >= ELEMENTS) return;
  INDEX place = i / SIZE;
  u64 group = place / ROOM % GROUPS;
  i64 owner = owners[place] - 1;
  i64 token = owner / CHOICES - first_token, choice = owner % CHOICES - first_choice;
  Vec<T, WIDTH> part = {};
  if (owner >= 0 && token >= 0 && token < OWN_TOKENS && choice >= 0 && choice < OWN_CHOICES) {
    u64 row = group * OWN_TOKENS + (u64)token;
    float weight = WEIGHTED ? load(weights[row * OWN_CHOICES + choice]) : 1.0f;
    part = *(const Vec<T, WIDTH>*)(x + row * SIZE + i % SIZE);
#pragma unroll
    for (int k = 0; k < WIDTH; ++k) part.at[k] = to<T>(0.0f + weight * load(part.at[k]));
  }
  *(Vec<T, WIDTH>*)(y + i) = part;
}
