// Single-precision tile products for the matrix unit.
#pragma once
#include <cstdint>

namespace hnpu {

constexpr int kPanel = 32;  // columns of B that are packed together

// C[m][n] += A[m][k] * B[k][n], every sum with k ascending, one f32 rounding per product.
// A: rows of k, pitch lda.  B: panels of kPanel columns, each k rows of kPanel, zero padded.
// C: rows of n, pitch ldc.  Pitches in elements.
void gemm(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, float* c, int64_t ldc);

}  // namespace hnpu
