// First fit in a given order, and what orders are made of.
//
// Each buffer in turn goes to the lowest gap that holds it (or to the tightest one).  The order
// decides the quality: by size is what TensorFlow Lite does (Y. Pisarchyk and J. Lee, "Efficient
// Memory Management for Deep Neural Net Inference", MLSys 2020).
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "planner_problem.h"

namespace planner {

// Placed buffers by ascending offset, in blocks: 64 are tested against a span at once.
class OffsetList {
 public:
  void Clear() {
    used_ = 0;
    order_.clear();
  }

  // Calls visit(offset, end) by ascending offset for each that shares a section with
  // [first, last), until it returns false.
  template <typename Visit>
  void ForEachOverlapping(int first, int last, Visit visit) const {
    for (int index : order_) {
      const Block& block = blocks_[index];
      char hit[kBlock];
      for (int i = 0; i < kBlock; ++i) hit[i] = (block.first[i] < last) & (first < block.last[i]);
      for (int i = 0; i < block.count; ++i)
        if (hit[i] && !visit(block.offset[i], block.end[i])) return;
    }
  }

  void Insert(int first, int last, int64_t offset, int64_t end) {
    if (order_.empty()) order_.push_back(NewBlock());
    // The last block that starts at or below the offset.
    size_t low = 0, high = order_.size();
    while (high - low > 1) {
      const size_t middle = (low + high) / 2;
      (blocks_[order_[middle]].offset[0] <= offset ? low : high) = middle;
    }
    if (blocks_[order_[low]].count == kBlock) {
      const int fresh = NewBlock();  // may move the blocks: take references afterwards
      Block& full = blocks_[order_[low]];
      Block& tail = blocks_[fresh];
      for (int i = kBlock / 2; i < kBlock; ++i) {
        tail.Set(i - kBlock / 2, full.first[i], full.last[i], full.offset[i], full.end[i]);
        full.first[i] = full.last[i] = 0;
      }
      full.count = tail.count = kBlock / 2;
      order_.insert(order_.begin() + low + 1, fresh);
      if (tail.offset[0] <= offset) ++low;
    }
    Block& block = blocks_[order_[low]];
    int at = block.count++;
    for (; at > 0 && block.offset[at - 1] > offset; --at)
      block.Set(at, block.first[at - 1], block.last[at - 1], block.offset[at - 1], block.end[at - 1]);
    block.Set(at, first, last, offset, end);
  }

 private:
  static constexpr int kBlock = 64;
  struct Block {
    int count = 0;
    int first[kBlock] = {}, last[kBlock] = {};  // empty places overlap nothing
    int64_t offset[kBlock], end[kBlock];
    void Set(int i, int f, int l, int64_t o, int64_t e) {
      first[i] = f;
      last[i] = l;
      offset[i] = o;
      end[i] = e;
    }
  };

  int NewBlock() {
    if (used_ == static_cast<int>(blocks_.size())) blocks_.emplace_back();
    blocks_[used_] = Block();
    return used_++;
  }

  std::vector<Block> blocks_;
  std::vector<int> order_;
  int used_ = 0;
};

class FirstFit {
 public:
  explicit FirstFit(const Problem& problem) : p_(problem), offsets_(problem.n, 0) {}

  // Places all in this order; returns the peak, or a value >= limit as soon as one ends there.
  int64_t Run(const std::vector<int>& order, bool tightest, int64_t limit) {
    list_.Clear();
    int64_t peak = 0;
    for (int j : order) {
      const int64_t offset = tightest ? TightestGap(j) : LowestGap(j);
      offsets_[j] = offset;
      peak = std::max(peak, offset + p_.size[j]);
      if (peak >= limit) return peak;
      list_.Insert(p_.first[j], p_.last[j], offset, offset + p_.room[j]);
    }
    return peak;
  }

  const std::vector<int64_t>& offsets() const { return offsets_; }

 private:
  int64_t LowestGap(int j) {
    int64_t at = 0;
    const int64_t need = p_.room[j], align = p_.align[j];
    list_.ForEachOverlapping(p_.first[j], p_.last[j], [&](int64_t offset, int64_t end) {
      if (offset >= at + need) return false;
      if (end > at) at = RoundUp(end, align);
      return true;
    });
    return at;
  }

  int64_t TightestGap(int j) {
    int64_t at = 0, best = -1, best_gap = 0;
    const int64_t need = p_.room[j], align = p_.align[j];
    list_.ForEachOverlapping(p_.first[j], p_.last[j], [&](int64_t offset, int64_t end) {
      if (offset >= at + need && (best < 0 || offset - at < best_gap)) {
        best = at;
        best_gap = offset - at;
      }
      if (end > at) at = RoundUp(end, align);
      return true;
    });
    return best < 0 ? at : best;
  }

  const Problem& p_;
  OffsetList list_;
  std::vector<int64_t> offsets_;
};

// What orders are made of, per buffer: logarithms of size, width in time, and the highest load that it meets.
struct Features {
  std::vector<double> size, width, load;
};

inline Features MakeFeatures(const Problem& p) {
  Features f;
  // Highest load over [first, last) from a sparse table of maxima over powers of two.
  std::vector<std::vector<int64_t>> top{p.load};
  for (int step = 1; 2 * step <= p.sections; step *= 2) {
    const auto& below = top.back();
    std::vector<int64_t> level(p.sections - 2 * step + 1);
    for (size_t s = 0; s < level.size(); ++s) level[s] = std::max(below[s], below[s + step]);
    top.push_back(std::move(level));
  }
  for (int j = 0; j < p.n; ++j) {
    const int span = p.last[j] - p.first[j];
    int k = 0;
    while ((2 << k) <= span) ++k;
    f.size.push_back(std::log(static_cast<double>(p.size[j])));
    f.width.push_back(std::log(static_cast<double>(p.upper[j] - p.lower[j])));
    f.load.push_back(std::log(static_cast<double>(std::max(top[k][p.first[j]], top[k][p.last[j] - (1 << k)]))));
  }
  return f;
}

// Weights of the features, and how far chance may move a buffer.
struct Order {
  double size = 0, width = 0, load = 0, noise = 0;
};

using Random = std::mt19937_64;
inline double Uniform(Random& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

inline std::vector<double> Keys(const Features& f, const Order& o) {
  std::vector<double> keys(f.size.size());
  for (size_t j = 0; j < keys.size(); ++j) keys[j] = o.size * f.size[j] + o.width * f.width[j] + o.load * f.load[j];
  return keys;
}

inline std::vector<double> RandomKeys(const Features& f, Random* random) {
  Order o;
  o.width = 2 * Uniform(*random);
  o.size = 2 * Uniform(*random);
  o.load = 4 * Uniform(*random);
  o.noise = 0.3 * Uniform(*random);
  std::vector<double> keys = Keys(f, o);
  for (double& key : keys) key += o.noise * (2 * Uniform(*random) - 1);
  return keys;
}

// Highest key first; equal keys by index.
inline std::vector<int> OrderBy(const std::vector<double>& key) {
  std::vector<int> order(key.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return key[a] > key[b]; });
  return order;
}

// Highest first key first; equal ones by the second, then by the third.
inline std::vector<int> OrderBy(const std::vector<double>& first, const std::vector<double>& second,
                                const std::vector<double>& third) {
  std::vector<int> order(first.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return std::tie(first[a], second[a], third[a]) > std::tie(first[b], second[b], third[b]);
  });
  return order;
}

}  // namespace planner
