// Reductions of the vector unit, in numbers.
#include <algorithm>

#include "vector_rows.h"

namespace hnpu {
namespace {

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
      bool integer_target = dst_dtype == Dtype::k_i8 || dst_dtype == Dtype::k_i32;
      if (std::is_same<T, int32_t>::value && !integer_target) {
        // What the destination holds is no integer: the reduced ones join it as floats.
        float before;
        widen(dst_dtype, target, &before, 1);
        before = Accumulator<float>(v.op).combine(before, static_cast<float>(value));
        narrow(dst_dtype, &before, target, 1);
        return;
      }
      T before;
      widen(dst_dtype, target, &before, 1);
      value = accumulator.combine(before, value);
    }
    narrow(dst_dtype, &value, target, 1);
  });
}

}  // namespace

void execute_vector(const Vreduce& v, Machine& m) {
  if (stays_integer(view(v))) reduce<int32_t>(v, m);
  else reduce<float>(v, m);
}

}  // namespace hnpu
