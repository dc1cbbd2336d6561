// Numbers of an update that follow from numbers on the device, for its kernel: one thread works them out, as double.
//
// Macros: LR, which of the host's numbers is the learning rate; the next is what it has lost as a float; FIND, statements that fill `rates`
// from `lr`, `a` and `b`.

extern "C" __global__ void rates(const float* numbers, const float* of_a, const float* of_b, float* rates) {
  double a = *of_a, b = *of_b, lr = (double)numbers[LR] + (double)numbers[LR + 1];
  FIND
}
