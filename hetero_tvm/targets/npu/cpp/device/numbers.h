// f16 and bf16 to and from f32, and rounding to integers; whole rows at a time.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace hnpu {

void f16_to_f32(const uint8_t* in, float* out, int64_t n);
void f32_to_f16(const float* in, uint8_t* out, int64_t n);

inline void bf16_to_f32(const uint8_t* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    uint16_t half;
    memcpy(&half, in + 2 * i, 2);
    uint32_t bits = static_cast<uint32_t>(half) << 16;
    memcpy(out + i, &bits, 4);
  }
}

// To nearest even; NaN becomes the quiet NaN of its sign.
inline void f32_to_bf16(const float* in, uint8_t* out, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, in + i, 4);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    bool nan = (bits & 0x7fffffff) > 0x7f800000;
    uint16_t half = static_cast<uint16_t>(nan ? (bits >> 16 & 0x8000) | 0x7fc0 : rounded);
    memcpy(out + 2 * i, &half, 2);
  }
}

// Half to even, plus zero, saturated; NaN to zero.
inline int32_t round_saturated(float value, int32_t zero, int32_t least, int32_t greatest) {
  if (std::isnan(value)) value = 0;
  double rounded = std::nearbyint(static_cast<double>(value)) + zero;
  return rounded <= least ? least : rounded >= greatest ? greatest : static_cast<int32_t>(rounded);
}

inline int32_t saturate(int64_t value, int32_t least, int32_t greatest) {
  return static_cast<int32_t>(value < least ? least : value > greatest ? greatest : value);
}

}  // namespace hnpu
