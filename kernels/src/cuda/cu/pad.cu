// A tensor with one value around and between its elements: a thread for each word of the result.
//
// Macros: WORD, a type of one element or of several side by side; VALUE, a word of the value; ELEMENTS, words of the result; INDEX, the
// type of positions; FIND(i), statements that set `inside`, whether an element is there, and `at`, where in the operand it is.

extern "C" __global__ void __launch_bounds__(256) pad(const WORD* x, WORD* out) {
  INDEX i = (INDEX)blockIdx.x * 256 + threadIdx.x;
  if (i >= ELEMENTS) return;
  bool inside = true;
  INDEX at = 0;
  FIND(i)
  WORD value = VALUE;
  if (inside) value = x[at];
  out[i] = value;
}
