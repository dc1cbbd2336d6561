// Looks at indices, where nothing is done with them.
//
// Macros: those of indices; COUNT, how many.

extern "C" __global__ void __launch_bounds__(256) check(const i64* indices, Fault* account, u32 call) {
  u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
  if (i < COUNT) index_at(indices, i, account, call);
}
