// Rows of up to kChunk elements, widened to f32 (or int32) and narrowed back; scalar arithmetic.
// For the files that execute vector instructions.
#pragma once
#include <cmath>
#include <type_traits>

#include "instruction.h"
#include "memory.h"
#include "numbers.h"

#if defined(__GNUC__) && !defined(__clang__)
// The loops of the vector unit are what -O3 is for; no fused multiply-add: products are rounded.
#pragma GCC optimize("O3", "fp-contract=off", "no-math-errno")
#else
#pragma STDC FP_CONTRACT OFF
#endif

namespace hnpu {
namespace {

constexpr int64_t kChunk = 512;

void widen(Dtype dtype, const uint8_t* p, float* out, int64_t n) {
  switch (dtype) {
    case Dtype::k_f16: return f16_to_f32(p, out, n);
    case Dtype::k_bf16: return bf16_to_f32(p, out, n);
    case Dtype::k_f32: memcpy(out, p, 4 * n); return;
    case Dtype::k_i8:
      for (int64_t i = 0; i < n; i++) out[i] = static_cast<int8_t>(p[i]);
      return;
    case Dtype::k_i32:
      for (int64_t i = 0; i < n; i++) {
        int32_t value;
        memcpy(&value, p + 4 * i, 4);
        out[i] = static_cast<float>(value);
      }
  }
}
void widen(Dtype dtype, const uint8_t* p, int32_t* out, int64_t n) {
  if (dtype == Dtype::k_i32) {
    memcpy(out, p, 4 * n);
    return;
  }
  for (int64_t i = 0; i < n; i++) out[i] = static_cast<int8_t>(p[i]);
}

void narrow(Dtype dtype, const float* in, uint8_t* p, int64_t n) {
  switch (dtype) {
    case Dtype::k_f16: return f32_to_f16(in, p, n);
    case Dtype::k_bf16: return f32_to_bf16(in, p, n);
    case Dtype::k_f32: memcpy(p, in, 4 * n); return;
    case Dtype::k_i8:
      for (int64_t i = 0; i < n; i++) p[i] = static_cast<uint8_t>(round_saturated(in[i], 0, -128, 127));
      return;
    case Dtype::k_i32:
      for (int64_t i = 0; i < n; i++) {
        int32_t value = round_saturated(in[i], 0, INT32_MIN, INT32_MAX);
        memcpy(p + 4 * i, &value, 4);
      }
  }
}
void narrow(Dtype dtype, const int32_t* in, uint8_t* p, int64_t n) {
  if (dtype == Dtype::k_i32) {
    memcpy(p, in, 4 * n);
  } else if (dtype == Dtype::k_i8) {
    for (int64_t i = 0; i < n; i++) p[i] = static_cast<uint8_t>(saturate(in[i], -128, 127));
  } else {
    float row[kChunk] = {};
    for (int64_t i = 0; i < n; i++) row[i] = static_cast<float>(in[i]);
    narrow(dtype, row, p, n);
  }
}

template <class T>
void load_row(Dtype dtype, const uint8_t* p, int64_t stride, T* out, int64_t n) {
  int64_t width = width_of(dtype);
  if (stride == width || n == 1) return widen(dtype, p, out, n);
  if (stride == 0) {
    widen(dtype, p, out, 1);
    std::fill(out + 1, out + n, out[0]);
    return;
  }
  uint8_t packed[4 * kChunk];
  if (width == 2) {
    for (int64_t i = 0; i < n; i++) memcpy(packed + 2 * i, p + i * stride, 2);
  } else if (width == 4) {
    for (int64_t i = 0; i < n; i++) memcpy(packed + 4 * i, p + i * stride, 4);
  } else {
    for (int64_t i = 0; i < n; i++) packed[i] = p[i * stride];
  }
  widen(dtype, packed, out, n);
}

template <class T>
void store_row(Dtype dtype, const T* in, uint8_t* p, int64_t stride, int64_t n) {
  int64_t width = width_of(dtype);
  if (stride == width || n == 1) return narrow(dtype, in, p, n);
  uint8_t packed[4 * kChunk];
  narrow(dtype, in, packed, n);
  if (width == 2) {
    for (int64_t i = 0; i < n; i++) memcpy(p + i * stride, packed + 2 * i, 2);
  } else if (width == 4) {
    for (int64_t i = 0; i < n; i++) memcpy(p + i * stride, packed + 4 * i, 4);
  } else {
    for (int64_t i = 0; i < n; i++) p[i * stride] = packed[i];
  }
}

bool stays_integer(const VectorOp& v) {
  bool memory = false;
  for (int i = 0; i < v.sources; i++) {
    if (v.src[i].dtype == kImmediate) continue;
    memory = true;
    if (v.src[i].dtype != static_cast<int>(Dtype::k_i8) && v.src[i].dtype != static_cast<int>(Dtype::k_i32))
      return false;
  }
  return memory && v.integer_op;
}

// Integers wrap: arithmetic in unsigned.
inline uint32_t bits(int32_t a) { return static_cast<uint32_t>(a); }
inline float plus(float a, float b) { return a + b; }
inline float minus(float a, float b) { return a - b; }
inline float times(float a, float b) { return a * b; }
inline int32_t plus(int32_t a, int32_t b) { return static_cast<int32_t>(bits(a) + bits(b)); }
inline int32_t minus(int32_t a, int32_t b) { return static_cast<int32_t>(bits(a) - bits(b)); }
inline int32_t times(int32_t a, int32_t b) { return static_cast<int32_t>(bits(a) * bits(b)); }
inline float negative(float a) { return -a; }
inline int32_t negative(int32_t a) { return minus(0, a); }
inline float quotient(float a, float b) { return a / b; }
inline int32_t quotient(int32_t, int32_t) { return 0; }  // div is never done in integers
// NaN wins.
template <class T>
T larger(T a, T b) { return a > b || a != a ? a : b; }
template <class T>
T smaller(T a, T b) { return a < b || a != a ? a : b; }
template <class T>
T magnitude(T a) { return a < 0 ? minus(T(0), a) : a; }
template <>
float magnitude(float a) { return std::fabs(a); }

}  // namespace
}  // namespace hnpu
