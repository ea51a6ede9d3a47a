// One kernel, compiled for three instruction sets and chosen when the library is loaded.  Vectors are
// the compiler's own 16-float type, so the same source serves machines without any of them.
//
// A step of a sum is rounded once, as a fused multiply-add does: products of bf16 numbers may lie
// beyond the range of f32 where the sum does not.  Machines without one add in double, where product
// and sum have room, so results do not depend on the machine.
#include "gemm.h"

#include <algorithm>
#include <cstring>

namespace hnpu {
namespace {

typedef float Vector __attribute__((vector_size(64)));
typedef double Wide __attribute__((vector_size(128)));
constexpr int kLanes = 16;

#define HNPU_INLINE inline __attribute__((always_inline))

HNPU_INLINE void load(Vector& v, const float* p) { memcpy(&v, p, sizeof v); }
HNPU_INLINE void store(float* p, const Vector& v) { memcpy(p, &v, sizeof v); }

template <bool Fused>
HNPU_INLINE void multiply_add(Vector& sum, float left, const Vector& right) {
  if constexpr (Fused)
    sum += left * right;  // one instruction, with -fexpensive-optimizations (part of -O2)
  else
    sum = __builtin_convertvector(
        __builtin_convertvector(sum, Wide) + static_cast<double>(left) * __builtin_convertvector(right, Wide), Vector);
}

// Rows x (Columns * 16) of C in registers over the whole of k.
template <int Rows, int Columns, bool Fused>
HNPU_INLINE void tile(int64_t k, const float* a, int64_t lda, const float* b, float* c, int64_t ldc) {
  Vector sum[Rows][Columns];
  for (int i = 0; i < Rows; i++)
    for (int j = 0; j < Columns; j++) load(sum[i][j], c + i * ldc + j * kLanes);
  for (int64_t p = 0; p < k; p++) {
    Vector right[Columns];
    for (int j = 0; j < Columns; j++) load(right[j], b + p * kPanel + j * kLanes);
    for (int i = 0; i < Rows; i++) {
      float left = a[i * lda + p];
      for (int j = 0; j < Columns; j++) multiply_add<Fused>(sum[i][j], left, right[j]);
    }
  }
  for (int i = 0; i < Rows; i++)
    for (int j = 0; j < Columns; j++) store(c + i * ldc + j * kLanes, sum[i][j]);
}

template <int Rows, int Columns, bool Fused>
HNPU_INLINE void column(int64_t m, int64_t k, const float* a, int64_t lda, const float* b, float* c, int64_t ldc) {
  int64_t i = 0;
  for (; i + Rows <= m; i += Rows) tile<Rows, Columns, Fused>(k, a + i * lda, lda, b, c + i * ldc, ldc);
  for (; i < m; i++) tile<1, Columns, Fused>(k, a + i * lda, lda, b, c + i * ldc, ldc);
}

template <int Rows, int Columns, bool Fused>
HNPU_INLINE void product(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, float* c,
                         int64_t ldc) {
  constexpr int kStep = Columns * kLanes;
  for (int64_t j = 0; j < n; j += kStep) {
    const float* panel = b + j / kPanel * kPanel * k + j % kPanel;
    if (j + kStep <= n) {
      column<Rows, Columns, Fused>(m, k, a, lda, panel, c + j, ldc);
      continue;
    }
    for (int64_t i = 0; i < m; i += Rows) {  // the last columns: through a tile of full width
      float edge[Rows * kStep] = {};
      int64_t rows = std::min<int64_t>(Rows, m - i), width = n - j;
      for (int64_t r = 0; r < rows; r++) memcpy(edge + r * kStep, c + (i + r) * ldc + j, 4 * width);
      column<Rows, Columns, Fused>(rows, k, a + i * lda, lda, panel, edge, kStep);
      for (int64_t r = 0; r < rows; r++) memcpy(c + (i + r) * ldc + j, edge + r * kStep, 4 * width);
    }
  }
}

#if defined(__FMA__) || defined(__aarch64__)
constexpr bool kFusedAlways = true;
#else
constexpr bool kFusedAlways = false;
#endif

using Product = void (*)(int64_t, int64_t, int64_t, const float*, int64_t, const float*, float*, int64_t);

void plain(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, float* c, int64_t ldc) {
  product<2, 1, kFusedAlways>(m, n, k, a, lda, b, c, ldc);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void avx2(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                                              const float* b, float* c, int64_t ldc) {
  product<6, 1, true>(m, n, k, a, lda, b, c, ldc);
}
__attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,fma"))) void avx512(
    int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, float* c, int64_t ldc) {
  product<12, 2, true>(m, n, k, a, lda, b, c, ldc);
}
Product choose() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
    return avx512;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? avx2 : plain;
}
#else
Product choose() { return plain; }
#endif

const Product kProduct = choose();

}  // namespace

void gemm(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, float* c, int64_t ldc) {
  kProduct(m, n, k, a, lda, b, c, ldc);
}

}  // namespace hnpu
