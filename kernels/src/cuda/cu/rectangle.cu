// Copies a rectangle of one tensor into another, or joins it to what is there.
//
// Macros: INDEX, the type of positions; T, the element type; ELEMENTS of the rectangle, of which a thread moves WIDTH that lie side by
// side; FROM(i) and TO(i), where element i lies; COMBINES, whether it is joined; COMBINE(a, b), what is there with what comes.

extern "C" __global__ void __launch_bounds__(256) rectangle(const T* from, T* to_) {
  INDEX i = ((INDEX)blockIdx.x * 256 + threadIdx.x) * WIDTH;
  if (i >= ELEMENTS) return;
  typedef Vec<T, WIDTH> Several;
  Several moved = *(const Several*)(from + (FROM(i)));
  Several* place = (Several*)(to_ + (TO(i)));
#if COMBINES
  Several there = *place;
#pragma unroll
  for (int k = 0; k < WIDTH; ++k) {
    auto a = load(there.at[k]), b = load(moved.at[k]);
    moved.at[k] = to<T>(COMBINE(a, b));
  }
#endif
  *place = moved;
}
