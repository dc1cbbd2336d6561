// The products of each token with its places, 0 where it has none in the shard. A warp for each choice.
//
// Macros: those of experts; T; ELEMENTS of the result; SIZE, elements of a token.

extern "C" __global__ void __launch_bounds__(256) combine_weights_grad(
    const T* y, const i64* slots, const T* x, T* out, i64 first_token, i64 first_choice, i64 first_block, i64 first_place) {
  u64 i = (u64)blockIdx.x * 8 + threadIdx.x / 32;
  if (i >= ELEMENTS) return;
  u64 row = i / OWN_CHOICES, group = row / OWN_TOKENS, token = first_token + row % OWN_TOKENS;
  i64 place = place_of(slots, group, token, first_choice + i % OWN_CHOICES, first_block, first_place);
  float sum = 0.0f;
  for (u32 at = threadIdx.x % 32; place >= 0 && at < SIZE; at += 32) {
    sum += load(y[(u64)place * SIZE + at]) * load(x[row * SIZE + at]);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) out[i] = to<T>(sum);
}
