// The vector unit, in numbers: rows of up to kChunk elements are widened to f32 (or int32), computed
// and narrowed.
#include <algorithm>
#include <cmath>
#include <vector>

#include "instruction.h"
#include "memory.h"
#include "numbers.h"

#if defined(__GNUC__) && !defined(__clang__)
// The loops below are what -O3 is for; no fused multiply-add: products are rounded.
#pragma GCC optimize("O3", "fp-contract=off", "no-math-errno")
#else
#pragma STDC FP_CONTRACT OFF
#endif

namespace hnpu {
namespace {

constexpr int64_t kChunk = 512;
constexpr int kMostOperands = 4;

// --- rows in and out ---

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

// --- loops: the operands' common dimensions, merged as far as all of them allow ---

struct Loops {
  int64_t extent[kRank] = {1, 1, 1, 1};
  int64_t stride[kMostOperands][kRank] = {};
};

// operand 0 is the destination.
Loops merge(const VectorOp& v) {
  const Operand* operands[kMostOperands] = {&v.dst, &v.src[0], &v.src[1], &v.src[2]};
  int count = v.sources + 1, at = kRank - 1;
  Loops r;
  bool first = true;
  for (int d = kRank - 1; d >= 0; d--) {
    if (v.extents[d] == 1) continue;
    bool joins = !first;
    for (int o = 0; o < count && joins; o++)
      joins = operands[o]->strides[d] == r.stride[o][at] * r.extent[at];
    if (!joins && !first) at--;
    if (joins) {
      r.extent[at] *= v.extents[d];
    } else {
      r.extent[at] = v.extents[d];
      for (int o = 0; o < count; o++) r.stride[o][at] = operands[o]->strides[d];
    }
    first = false;
  }
  return r;
}

float constant(float immediate, float) { return immediate; }
int32_t constant(float immediate, int32_t) { return round_saturated(immediate, 0, INT32_MIN, INT32_MAX); }

template <class T, class F>
void elementwise(const VectorOp& v, float immediate, Machine& m, F compute) {
  Loops loops = merge(v);
  alignas(64) T source[3][kChunk], result[kChunk];
  for (int s = 0; s < v.sources; s++)
    if (v.src[s].dtype == kImmediate)
      std::fill(source[s], source[s] + kChunk,
                constant(immediate, T()));
  for (int64_t i = 0; i < loops.extent[0]; i++)
    for (int64_t j = 0; j < loops.extent[1]; j++)
      for (int64_t k = 0; k < loops.extent[2]; k++)
        for (int64_t l = 0; l < loops.extent[3]; l += kChunk) {
          int64_t n = std::min(kChunk, loops.extent[3] - l);
          auto address = [&](int o, uint32_t base) {
            const int64_t* s = loops.stride[o];
            return m.at(HNPU_UB, base + i * s[0] + j * s[1] + k * s[2] + l * s[3]);
          };
          for (int s = 0; s < v.sources; s++)
            if (v.src[s].dtype != kImmediate)
              load_row(static_cast<Dtype>(v.src[s].dtype), address(s + 1, v.src[s].address),
                       loops.stride[s + 1][3], source[s], n);
          compute(source[0], source[1], source[2], result, n);
          store_row(static_cast<Dtype>(v.dst.dtype), result, address(0, v.dst.address), loops.stride[0][3], n);
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

template <class T, class F>
void map(const T* x, T* r, int64_t n, F f) {
  for (int64_t i = 0; i < n; i++) r[i] = f(x[i]);
}
template <class T, class F>
void map(const T* x, const T* y, T* r, int64_t n, F f) {
  for (int64_t i = 0; i < n; i++) r[i] = f(x[i], y[i]);
}
template <class T, class F>
void map(const T* x, const T* y, const T* z, T* r, int64_t n, F f) {
  for (int64_t i = 0; i < n; i++) r[i] = f(x[i], y[i], z[i]);
}

// Integers wrap: arithmetic in unsigned.
float plus(float a, float b) { return a + b; }
float minus(float a, float b) { return a - b; }
float times(float a, float b) { return a * b; }
int32_t plus(int32_t a, int32_t b) { return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b)); }
int32_t minus(int32_t a, int32_t b) { return static_cast<int32_t>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b)); }
int32_t times(int32_t a, int32_t b) { return static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b)); }
// NaN wins.
template <class T>
T larger(T a, T b) { return a > b || a != a ? a : b; }
template <class T>
T smaller(T a, T b) { return a < b || a != a ? a : b; }
template <class T>
T magnitude(T a) { return a < 0 ? minus(T(0), a) : a; }
template <>
float magnitude(float a) { return std::fabs(a); }

template <class T>
bool simple_unary(Vunary::Op op, const T* x, T* r, int64_t n) {
  switch (op) {
    case Vunary::Op::k_copy: map(x, r, n, [](T a) { return a; }); return true;
    case Vunary::Op::k_neg: map(x, r, n, [](T a) { return std::is_same<T, float>::value ? T(-a) : minus(T(0), a); }); return true;
    case Vunary::Op::k_abs: map(x, r, n, [](T a) { return magnitude(a); }); return true;
    case Vunary::Op::k_relu: map(x, r, n, [](T a) { return a < 0 ? T(0) : a; }); return true;
    case Vunary::Op::k_square: map(x, r, n, [](T a) { return times(a, a); }); return true;
    default: return false;
  }
}

void unary(Vunary::Op op, const float* x, float* r, int64_t n) {
  if (simple_unary(op, x, r, n)) return;
  switch (op) {
    case Vunary::Op::k_floor: return map(x, r, n, [](float a) { return std::floor(a); });
    case Vunary::Op::k_ceil: return map(x, r, n, [](float a) { return std::ceil(a); });
    case Vunary::Op::k_round: return map(x, r, n, [](float a) { return std::nearbyint(a); });
    case Vunary::Op::k_exp: return map(x, r, n, [](float a) { return std::exp(a); });
    case Vunary::Op::k_log: return map(x, r, n, [](float a) { return std::log(a); });
    case Vunary::Op::k_erf: return map(x, r, n, [](float a) { return std::erf(a); });
    case Vunary::Op::k_tanh: return map(x, r, n, [](float a) { return std::tanh(a); });
    case Vunary::Op::k_sigmoid: return map(x, r, n, [](float a) { return 1.0f / (1.0f + std::exp(-a)); });
    case Vunary::Op::k_sqrt: return map(x, r, n, [](float a) { return std::sqrt(a); });
    case Vunary::Op::k_rsqrt: return map(x, r, n, [](float a) { return 1.0f / std::sqrt(a); });
    case Vunary::Op::k_reciprocal: return map(x, r, n, [](float a) { return 1.0f / a; });
    case Vunary::Op::k_sin: return map(x, r, n, [](float a) { return std::sin(a); });
    case Vunary::Op::k_cos: return map(x, r, n, [](float a) { return std::cos(a); });
    default: return;
  }
}

template <class T>
void binary(Vbinary::Op op, const T* x, const T* y, T* r, int64_t n) {
  switch (op) {
    case Vbinary::Op::k_add: return map(x, y, r, n, [](T a, T b) { return plus(a, b); });
    case Vbinary::Op::k_sub: return map(x, y, r, n, [](T a, T b) { return minus(a, b); });
    case Vbinary::Op::k_mul: return map(x, y, r, n, [](T a, T b) { return times(a, b); });
    case Vbinary::Op::k_div: return map(x, y, r, n, [](T a, T b) { return b == 0 && !std::is_same<T, float>::value ? T(0) : T(a / b); });
    case Vbinary::Op::k_max: return map(x, y, r, n, [](T a, T b) { return larger(a, b); });
    case Vbinary::Op::k_min: return map(x, y, r, n, [](T a, T b) { return smaller(a, b); });
    case Vbinary::Op::k_lt: return map(x, y, r, n, [](T a, T b) { return T(a < b); });
    case Vbinary::Op::k_le: return map(x, y, r, n, [](T a, T b) { return T(a <= b); });
    case Vbinary::Op::k_gt: return map(x, y, r, n, [](T a, T b) { return T(a > b); });
    case Vbinary::Op::k_ge: return map(x, y, r, n, [](T a, T b) { return T(a >= b); });
    case Vbinary::Op::k_eq: return map(x, y, r, n, [](T a, T b) { return T(a == b); });
    case Vbinary::Op::k_ne: return map(x, y, r, n, [](T a, T b) { return T(a != b); });
    case Vbinary::Op::k_prelu: return map(x, y, r, n, [](T a, T b) { return a > 0 ? a : times(a, b); });
  }
}

template <class T>
void ternary(Vternary::Op op, const T* x, const T* y, const T* z, T* r, int64_t n) {
  switch (op) {
    case Vternary::Op::k_muladd: return map(x, y, z, r, n, [](T a, T b, T c) { return plus(times(a, b), c); });
    case Vternary::Op::k_submul: return map(x, y, z, r, n, [](T a, T b, T c) { return times(minus(a, b), c); });
    case Vternary::Op::k_add3: return map(x, y, z, r, n, [](T a, T b, T c) { return plus(plus(a, b), c); });
    case Vternary::Op::k_select: return map(x, y, z, r, n, [](T a, T b, T c) { return a != 0 ? b : c; });
  }
}

// --- reductions ---

template <class T>
class Accumulator {
 public:
  explicit Accumulator(Vreduce::Op op) : op_(op) {}
  void start() {
    std::fill(lane_, lane_ + kSumLanes, T(0));
    count_ = 0;
  }
  void push(const T* x, int64_t n) {
    bool sum = op_ == Vreduce::Op::k_sum, square = op_ == Vreduce::Op::k_sumsq;
    int64_t i = 0;
    if (sum || square) {
      for (; i < n && count_ % kSumLanes; i++) add(x[i], square);
      for (; i + kSumLanes <= n; i += kSumLanes, count_ += kSumLanes)
        for (int l = 0; l < kSumLanes; l++) lane_[l] = plus(lane_[l], square ? times(x[i + l], x[i + l]) : x[i + l]);
      for (; i < n; i++) add(x[i], square);
      return;
    }
    for (; i < n; i++, count_++) {
      T value = op_ == Vreduce::Op::k_absmax ? magnitude(x[i]) : x[i];
      best_ = count_ == 0 ? value : op_ == Vreduce::Op::k_min ? smaller(value, best_) : larger(value, best_);
    }
  }
  T result() {
    if (op_ != Vreduce::Op::k_sum && op_ != Vreduce::Op::k_sumsq) return best_;
    for (int width = kSumLanes / 2; width; width /= 2)
      for (int l = 0; l < width; l++) lane_[l] = plus(lane_[l], lane_[l + width]);
    return lane_[0];
  }
  T combine(T before, T value) const {
    if (op_ == Vreduce::Op::k_sum || op_ == Vreduce::Op::k_sumsq) return plus(before, value);
    return op_ == Vreduce::Op::k_min ? smaller(before, value) : larger(before, value);
  }

 private:
  void add(T x, bool square) {
    T& lane = lane_[count_++ % kSumLanes];
    lane = plus(lane, square ? times(x, x) : x);
  }
  Vreduce::Op op_;
  T lane_[kSumLanes], best_ = 0;
  int64_t count_ = 0;
};

template <class T>
void reduce(const Vreduce& v, Machine& m) {
  int64_t outer[kRank], inner[kRank];
  for (int d = 0; d < kRank; d++) {
    bool reduced = v.axes >> d & 1;
    outer[d] = reduced ? 1 : v.extents[d];
    inner[d] = reduced ? v.extents[d] : 1;
  }
  int last = kRank - 1;  // the innermost reduced dimension is read in rows
  while (!(v.axes >> last & 1)) last--;
  int64_t row = inner[last];
  inner[last] = 1;
  auto src_dtype = static_cast<Dtype>(v.src_dtype);
  auto dst_dtype = static_cast<Dtype>(v.dst_dtype);
  Accumulator<T> accumulator(v.op);
  alignas(64) T chunk[kChunk];
  auto each = [](const int64_t* n, const int32_t* s, auto f) {
    for (int64_t i = 0; i < n[0]; i++)
      for (int64_t j = 0; j < n[1]; j++)
        for (int64_t k = 0; k < n[2]; k++)
          for (int64_t l = 0; l < n[3]; l++) f(i * s[0] + j * s[1] + k * s[2] + l * s[3], i, j, k, l);
  };
  each(outer, v.src_strides, [&](int64_t offset, int64_t i, int64_t j, int64_t k, int64_t l) {
    accumulator.start();
    each(inner, v.src_strides, [&](int64_t step, int64_t, int64_t, int64_t, int64_t) {
      for (int64_t at = 0; at < row; at += kChunk) {
        int64_t n = std::min(kChunk, row - at);
        const uint8_t* p = m.at(HNPU_UB, v.src + offset + step + at * v.src_strides[last]);
        load_row(src_dtype, p, v.src_strides[last], chunk, n);
        accumulator.push(chunk, n);
      }
    });
    T value = accumulator.result();
    const int32_t* s = v.dst_strides;
    uint8_t* target = m.at(HNPU_UB, v.dst + i * s[0] + j * s[1] + k * s[2] + l * s[3]);
    if (v.accumulate == Vreduce::Accumulate::k_yes) {
      float before;
      int32_t integer;
      if (std::is_same<T, int32_t>::value && (dst_dtype == Dtype::k_i8 || dst_dtype == Dtype::k_i32)) {
        widen(dst_dtype, target, &integer, 1);
        value = accumulator.combine(static_cast<T>(integer), value);
      } else {
        widen(dst_dtype, target, &before, 1);
        value = accumulator.combine(static_cast<T>(before), value);
      }
    }
    narrow(dst_dtype, &value, target, 1);
  });
}

}  // namespace

void execute_vector(const Vunary& v, Machine& m) {
  VectorOp op = view(v);
  bool scaled = op.src[0].dtype != kImmediate && (v.mul != 1 || v.add != 0);
  if (!scaled && stays_integer(op)) {
    elementwise<int32_t>(op, 0, m, [&](const int32_t* x, const int32_t*, const int32_t*, int32_t* r, int64_t n) {
      simple_unary(v.op, x, r, n);
    });
    return;
  }
  elementwise<float>(op, v.mul, m, [&](float* x, const float*, const float*, float* r, int64_t n) {
    if (scaled) {
      for (int64_t i = 0; i < n; i++) x[i] *= v.mul;
      for (int64_t i = 0; i < n; i++) x[i] += v.add;
    }
    unary(v.op, x, r, n);
  });
}

void execute_vector(const Vbinary& v, Machine& m) {
  VectorOp op = view(v);
  auto run = [&](auto type) {
    using T = decltype(type);
    elementwise<T>(op, v.imm, m, [&](const T* x, const T* y, const T*, T* r, int64_t n) { binary(v.op, x, y, r, n); });
  };
  if (stays_integer(op)) run(int32_t{});
  else run(float{});
}

void execute_vector(const Vternary& v, Machine& m) {
  VectorOp op = view(v);
  auto run = [&](auto type) {
    using T = decltype(type);
    elementwise<T>(op, v.imm, m,
                   [&](const T* x, const T* y, const T* z, T* r, int64_t n) { ternary(v.op, x, y, z, r, n); });
  };
  if (stays_integer(op)) run(int32_t{});
  else run(float{});
}

void execute_vector(const Vreduce& v, Machine& m) {
  if (stays_integer(view(v))) reduce<int32_t>(v, m);
  else reduce<float>(v, m);
}

}  // namespace hnpu
