#include "numbers.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define HNPU_X86 1
#endif

namespace hnpu {
namespace {

float widen(uint16_t half) {
  uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, magnitude = half & 0x7fff, bits;
  if (magnitude >= 0x7c00) {  // infinity; NaN becomes quiet, as the hardware conversions do
    bits = 0x7f800000 | (magnitude & 0x3ff) << 13 | (magnitude > 0x7c00 ? 0x400000 : 0);
  } else if (magnitude >= 0x400) {
    bits = (magnitude << 13) + (112u << 23);
  } else {  // subnormal: an exact product
    float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
    memcpy(&bits, &value, 4);
  }
  bits |= sign;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

uint16_t narrow(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // rounds to 65536 or more
  if (magnitude < 0x38800000) {  // subnormal: adding 0.5 rounds to a multiple of 2**-24
    float shifted;
    memcpy(&shifted, &magnitude, 4);
    shifted += 0.5f;
    uint32_t moved;
    memcpy(&moved, &shifted, 4);
    return static_cast<uint16_t>(sign | (moved - 0x3f000000));
  }
  magnitude += 0xfff + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((magnitude - (112u << 23)) >> 13));
}

void widen_row(const uint8_t* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    uint16_t half;
    memcpy(&half, in + 2 * i, 2);
    out[i] = widen(half);
  }
}

void narrow_row(const float* in, uint8_t* out, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    uint16_t half = narrow(in[i]);
    memcpy(out + 2 * i, &half, 2);
  }
}

#ifdef HNPU_X86
__attribute__((target("avx,f16c"))) void widen_f16c(const uint8_t* in, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 2 * i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(half));
  }
  _mm256_zeroupper();
  widen_row(in + 2 * i, out + i, n - i);
}

__attribute__((target("avx,f16c"))) void narrow_f16c(const float* in, uint8_t* out, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * i), half);
  }
  _mm256_zeroupper();
  narrow_row(in + i, out + 2 * i, n - i);
}

const bool kF16c = __builtin_cpu_supports("f16c") && __builtin_cpu_supports("avx");
#endif

}  // namespace

void f16_to_f32(const uint8_t* in, float* out, int64_t n) {
#ifdef HNPU_X86
  if (kF16c) return widen_f16c(in, out, n);
#endif
  widen_row(in, out, n);
}

void f32_to_f16(const float* in, uint8_t* out, int64_t n) {
#ifdef HNPU_X86
  if (kF16c) return narrow_f16c(in, out, n);
#endif
  narrow_row(in, out, n);
}

}  // namespace hnpu
