typedef unsigned u32;
typedef unsigned short u16;

__device__ __forceinline__ u32 shared(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// c = a b', both of bf16, by blocks of 64 x 64 with copies beside the kernel.
extern "C" __global__ void __launch_bounds__(128) tensor_product(const u16 *a, const u16 *b, float *c, int m, int n, int k) {
  __shared__ __align__(16) u16 sa[2][64][40], sb[2][64][40];
  int t = threadIdx.x, w = t / 32, l = t % 32, m0 = blockIdx.y * 64, n0 = blockIdx.x * 64;
  float sum[2][4][4] = {};
  auto load = [&](int stage, int at) {
    for (int i = t; i < 256; i += 128) {
      int row = i / 4, column = i % 4 * 8;
      const u16 *from[2] = {&a[(size_t)(m0 + row) * k + at + column], &b[(size_t)(n0 + row) * k + at + column]};
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared(&sa[stage][row][column])), "l"(from[0]));
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared(&sb[stage][row][column])), "l"(from[1]));
    }
    asm volatile("cp.async.commit_group;");
  };
  load(0, 0);
  int stage = 0;
  for (int at = 0; at < k; at += 32) {
    if (at + 32 < k) {
      load(stage ^ 1, at + 32);
      asm volatile("cp.async.wait_group 1;");
    } else {
#ifndef NO_WAIT
      asm volatile("cp.async.wait_group 0;");
#endif
    }
    __syncthreads();
    for (int q = 0; q < 32; q += 16) {
      u32 fa[2][4], fb[4][2];
      for (int i = 0; i < 2; i++)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(fa[i][0]), "=r"(fa[i][1]), "=r"(fa[i][2]), "=r"(fa[i][3])
                     : "r"(shared(&sa[stage][w / 2 * 32 + i * 16 + l % 16][q + l / 16 * 8])));
      for (int j = 0; j < 4; j++)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(fb[j][0]), "=r"(fb[j][1])
                     : "r"(shared(&sb[stage][w % 2 * 32 + j * 8 + l % 8][q + l / 8 % 2 * 8])));
      for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++)
          asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                       : "+f"(sum[i][j][0]), "+f"(sum[i][j][1]), "+f"(sum[i][j][2]), "+f"(sum[i][j][3])
                       : "r"(fa[i][0]), "r"(fa[i][1]), "r"(fa[i][2]), "r"(fa[i][3]), "r"(fb[j][0]), "r"(fb[j][1]));
    }
    __syncthreads();
    stage ^= 1;
  }
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 4; j++) {
      int row = m0 + w / 2 * 32 + i * 16 + l / 4, column = n0 + w % 2 * 32 + j * 8 + l % 4 * 2;
      *(float2 *)&c[(size_t)row * n + column] = make_float2(sum[i][j][0], sum[i][j][1]);
      *(float2 *)&c[(size_t)(row + 8) * n + column] = make_float2(sum[i][j][2], sum[i][j][3]);
    }
}

// One product of each kind: a is 16 x k, b is k x 8, both with rows that follow each other.
#define PRODUCT(NAME, TYPE, K, LOAD)                                                                        \
  extern "C" __global__ void NAME(const u16 *a, const u16 *b, float *c) {                                    \
    int l = threadIdx.x, g = l / 4, t = l % 4 * 2;                                                          \
    u32 x[K / 4], y[K / 8];                                                                                 \
    for (int r = 0; r < K / 4; r++) x[r] = *(const u32 *)&a[(g + 8 * (r % 2)) * K + t + 8 * (r / 2)];         \
    for (int r = 0; r < K / 8; r++) y[r] = b[(t + 8 * r) * 8 + g] | (u32)b[(t + 1 + 8 * r) * 8 + g] << 16;    \
    float s[4] = {1, 1, 1, 1};                                                                              \
    LOAD;                                                                                                   \
    c[g * 8 + t] = s[0]; c[g * 8 + t + 1] = s[1]; c[(g + 8) * 8 + t] = s[2]; c[(g + 8) * 8 + t + 1] = s[3];   \
  }
#define K16(TYPE) asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
  : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]))
#define K8(TYPE) asm("mma.sync.aligned.m16n8k8.row.col.f32." TYPE "." TYPE ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};" \
  : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]) : "r"(x[0]), "r"(x[1]), "r"(y[0]))
PRODUCT(product_f16_16, "f16", 16, K16("f16"))
PRODUCT(product_bf16_16, "bf16", 16, K16("bf16"))
PRODUCT(product_f16_8, "f16", 8, K8("f16"))

extern "C" __global__ void product_tf32(const float *a, const float *b, float *c) {
  int l = threadIdx.x, g = l / 4, t = l % 4;
  u32 x[4], y[2];
  for (int r = 0; r < 4; r++) {
    float v = a[(g + 8 * (r % 2)) * 8 + t + 4 * (r / 2)];
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(x[r]) : "f"(v));
  }
  for (int r = 0; r < 2; r++) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y[r]) : "f"(b[(t + 4 * r) * 8 + g]));
  float s[4] = {};
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
  c[g * 8 + 2 * t] = s[0]; c[g * 8 + 2 * t + 1] = s[1]; c[(g + 8) * 8 + 2 * t] = s[2]; c[(g + 8) * 8 + 2 * t + 1] = s[3];
}
