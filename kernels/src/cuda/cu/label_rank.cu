// How many elements of each row come before its label's, whose score is given: greater ones, those that are no numbers, and of equal ones
// those of lower classes. 0 for a label that is ignored.
//
// Macros: those of rows, indices and classes; T.

extern "C" __global__ void __launch_bounds__(THREADS) label_rank(
    const T* operand, const i64* labels, const T* scores, float* ranks, i64 first, Fault* account, u32 call) {
  Own own;
  const T* row = operand + own.start();
  i64 label = index_at(labels, own.row, account, call);
  float score = load(scores[own.row]);
  u32 before = 0;
  EACH_STEP(step, at) {
    Part part = read(row, at);
    EACH(k) {
      float x = part.at[k];
      i64 place = first + (i64)(at + k);
      if (IS_CLASS(place)) before += place < label ? !(x < score) : !(x <= score);
    }
  }
  // Whole numbers, which are exact as far as a rank that is told as f32 is.
  float rank = combined<Sum>((float)before);
  if (own.first) ranks[own.row] = label < 0 ? 0.0f : rank;
}
