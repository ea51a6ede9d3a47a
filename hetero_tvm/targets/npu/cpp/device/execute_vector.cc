// Element-wise instructions of the vector unit, in numbers.
#include <algorithm>

#include "vector_rows.h"

namespace hnpu {
namespace {

constexpr int kMostOperands = 4;

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

template <class T>
bool simple_unary(Vunary::Op op, const T* x, T* r, int64_t n) {
  switch (op) {
    case Vunary::Op::k_copy: map(x, r, n, [](T a) { return a; }); return true;
    case Vunary::Op::k_neg: map(x, r, n, [](T a) { return negative(a); }); return true;
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
    case Vbinary::Op::k_div: return map(x, y, r, n, [](T a, T b) { return quotient(a, b); });
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

}  // namespace hnpu
