// The matrix unit, in numbers.
#include <algorithm>
#include <vector>

#include "gemm.h"
#include "instruction.h"
#include "memory.h"
#include "numbers.h"

namespace hnpu {
namespace {

void widen(Mmad::Dtype dtype, const uint8_t* in, float* out, int64_t n) {
  if (dtype == Mmad::Dtype::k_f16) return f16_to_f32(in, out, n);
  if (dtype == Mmad::Dtype::k_bf16) return bf16_to_f32(in, out, n);
  for (int64_t i = 0; i < n; i++) out[i] = static_cast<int8_t>(in[i]);
}

// A as rows of k in f32.
void pack_a(const Mmad& v, const uint8_t* a, std::vector<float>& out) {
  int64_t m = v.m, k = v.k;
  out.resize(m * k);
  if (v.a_transposed == Mmad::ATransposed::k_no) {
    for (int64_t i = 0; i < m; i++) widen(v.dtype, a + i * v.a_pitch, out.data() + i * k, k);
    return;
  }
  std::vector<float> row(m);
  for (int64_t p = 0; p < k; p++) {
    widen(v.dtype, a + p * v.a_pitch, row.data(), m);
    for (int64_t i = 0; i < m; i++) out[i * k + p] = row[i];
  }
}

// B as panels of kPanel columns in f32, zero beyond n.
void pack_b(const Mmad& v, const uint8_t* b, std::vector<float>& out) {
  int64_t n = v.n, k = v.k, panels = (n + kPanel - 1) / kPanel;
  out.assign(panels * kPanel * k, 0);
  if (v.b_transposed == Mmad::BTransposed::k_no) {
    for (int64_t j = 0; j < panels; j++)
      for (int64_t p = 0; p < k; p++) {
        int64_t width = v.dtype == Mmad::Dtype::k_i8 ? 1 : 2;
        widen(v.dtype, b + p * v.b_pitch + j * kPanel * width, out.data() + (j * k + p) * kPanel,
              std::min<int64_t>(kPanel, n - j * kPanel));
      }
    return;
  }
  std::vector<float> row(k);
  for (int64_t j = 0; j < n; j++) {
    widen(v.dtype, b + j * v.b_pitch, row.data(), k);
    float* column = out.data() + j / kPanel * kPanel * k + j % kPanel;
    for (int64_t p = 0; p < k; p++) column[p * kPanel] = row[p];
  }
}

// int8: sums of up to 1024 products are exact in f32.
constexpr int64_t kExact = 1024;

void product_i8(const Mmad& v, const std::vector<float>& a, const std::vector<float>& b, uint8_t* c) {
  int64_t m = v.m, n = v.n, k = v.k;
  std::vector<float> panel, sums;
  for (int64_t j = 0; j < n; j += kPanel) {
    int64_t width = std::min<int64_t>(kPanel, n - j);
    for (int64_t p = 0; p < k; p += kExact) {
      int64_t depth = std::min(kExact, k - p);
      sums.assign(m * kPanel, 0);
      gemm(m, kPanel, depth, a.data() + p, k, b.data() + (j / kPanel * k + p) * kPanel, sums.data(), kPanel);
      for (int64_t i = 0; i < m; i++)
        for (int64_t q = 0; q < width; q++) {
          uint8_t* at = c + i * v.c_pitch + (j + q) * 4;
          uint32_t total = 0;
          if (p || v.accumulate == Mmad::Accumulate::k_yes) memcpy(&total, at, 4);
          total += static_cast<uint32_t>(static_cast<int32_t>(sums[i * kPanel + q]));
          memcpy(at, &total, 4);
        }
    }
  }
}

}  // namespace

void execute_matrix(const Mmad& v, Machine& m) {
  static thread_local std::vector<float> a, b;
  pack_a(v, m.at(HNPU_L0A, v.a), a);
  pack_b(v, m.at(HNPU_L0B, v.b), b);
  uint8_t* c = m.at(HNPU_L0C, v.c);
  if (v.dtype == Mmad::Dtype::k_i8) return product_i8(v, a, b, c);
  if (v.accumulate == Mmad::Accumulate::k_no)
    for (uint32_t i = 0; i < v.m; i++) memset(c + uint64_t{i} * v.c_pitch, 0, uint64_t{4} * v.n);
  gemm(v.m, v.n, v.k, a.data(), v.k, b.data(), reinterpret_cast<float*>(c), v.c_pitch / 4);
}

void execute_matrix(const MoveOut& v, Machine& m) {
  int64_t n = v.n;
  bool integer_source = v.src_dtype == MoveOut::SrcDtype::k_i32, integer_bias = v.bias == MoveOut::Bias::k_i32;
  bool relu = v.relu == MoveOut::Relu::k_yes, has_bias = v.bias != MoveOut::Bias::k_none;
  auto dst_dtype = static_cast<Dtype>(v.dst_dtype);
  bool integer_target = dst_dtype == Dtype::k_i8 || dst_dtype == Dtype::k_i32;
  bool stays_integer = integer_source && integer_target && v.scale_mode == MoveOut::ScaleMode::k_none &&
                       (!has_bias || integer_bias) && v.residual == MoveOut::Residual::k_none;
  std::vector<float> scales(n, v.scale), biases(n), row(n), residual(n);
  int residual_memory = v.residual_mem == MoveOut::ResidualMem::k_l1 ? HNPU_L1 : HNPU_UB;
  std::vector<int32_t> sums(n), added(n);
  std::vector<uint8_t> narrow(4 * n);
  if (v.scale_mode == MoveOut::ScaleMode::k_column) memcpy(scales.data(), m.at(HNPU_UB, v.scales), 4 * n);
  const uint8_t* bias = m.at(HNPU_UB, v.biases);
  if (v.bias == MoveOut::Bias::k_f16) f16_to_f32(bias, biases.data(), n);
  if (v.bias == MoveOut::Bias::k_bf16) bf16_to_f32(bias, biases.data(), n);
  if (v.bias == MoveOut::Bias::k_f32) memcpy(biases.data(), bias, 4 * n);
  if (integer_bias) memcpy(added.data(), bias, 4 * n);
  int32_t least = dst_dtype == Dtype::k_i8 ? -128 : INT32_MIN, most = dst_dtype == Dtype::k_i8 ? 127 : INT32_MAX;

  for (uint32_t i = 0; i < v.m; i++) {
    const uint8_t* from = m.at(HNPU_L0C, v.c + uint64_t{i} * v.c_pitch);
    if (integer_source) {
      memcpy(sums.data(), from, 4 * n);
      if (integer_bias)
        for (int64_t j = 0; j < n; j++)
          sums[j] = static_cast<int32_t>(static_cast<uint32_t>(sums[j]) + static_cast<uint32_t>(added[j]));
      for (int64_t j = 0; j < n; j++) row[j] = static_cast<float>(sums[j]);
    } else {
      memcpy(row.data(), from, 4 * n);
    }
    if (!stays_integer) {
      if (v.scale_mode != MoveOut::ScaleMode::k_none)
        for (int64_t j = 0; j < n; j++) row[j] *= scales[j];
      if (has_bias && !integer_bias)
        for (int64_t j = 0; j < n; j++) row[j] += biases[j];
      if (v.residual != MoveOut::Residual::k_none) {
        const uint8_t* kept_at = m.at(residual_memory, v.residuals + uint64_t{i} * v.residual_pitch);
        if (v.residual == MoveOut::Residual::k_f16) f16_to_f32(kept_at, residual.data(), n);
        if (v.residual == MoveOut::Residual::k_bf16) bf16_to_f32(kept_at, residual.data(), n);
        if (v.residual == MoveOut::Residual::k_f32) memcpy(residual.data(), kept_at, 4 * n);
        for (int64_t j = 0; j < n; j++) row[j] += residual[j];
      }
      if (relu)
        for (int64_t j = 0; j < n; j++) row[j] = row[j] < 0 ? 0 : row[j];
    }
    int64_t width = width_of(dst_dtype);
    if (dst_dtype == Dtype::k_f16) f32_to_f16(row.data(), narrow.data(), n);
    if (dst_dtype == Dtype::k_bf16) f32_to_bf16(row.data(), narrow.data(), n);
    if (dst_dtype == Dtype::k_f32) memcpy(narrow.data(), row.data(), 4 * n);
    if (integer_target)
      for (int64_t j = 0; j < n; j++) {
        int64_t kept = relu && sums[j] < 0 ? 0 : sums[j];
        int32_t value = stays_integer ? saturate(kept + v.zero_point, least, most)
                                      : round_saturated(row[j], v.zero_point, least, most);
        memcpy(narrow.data() + j * width, &value, width);
      }
    int64_t at = int64_t{v.dst} + int64_t{i} * v.row_stride;
    if (v.column_stride == width) {
      memcpy(m.at(HNPU_UB, at), narrow.data(), n * width);
    } else {
      for (int64_t j = 0; j < n; j++) memcpy(m.at(HNPU_UB, at + j * v.column_stride), narrow.data() + j * width, width);
    }
  }
}

}  // namespace hnpu
