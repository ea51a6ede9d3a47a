// A plan built from below without ever going back, for huge problems.
//
// The next buffer goes into the section with most left to place.  Which one, is a matter of style:
//
//   plain     the lowest possible one.
//   weighed   the one that seals the least memory under it.  Memory is worth much in sections whose
//             load leaves little to spare, and next to nothing in others: exp(-spare / temperature).
//             Large buffers are preferred a little (greed), since small ones still fit later.
//
// Whatever still fits under the chosen buffer goes first.  Sections that ended too high count as fuller
// in the next dive.  Everything is a pass over flat arrays, by ascending first section, of which blocks
// that cannot overlap are left out: for tens of thousands of buffers that is faster than to hold their
// millions of overlapping pairs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "planner_problem.h"

namespace planner {

class Dive {
 public:
  struct Style {
    bool weighed = false;
    double temperature = 0.005;  // of the lower bound
    double greed = 0.003;        // bytes sealed per byte of the buffer that are no loss
    double noise = 0;            // of the greed, per buffer
  };

  explicit Dive(const Problem& problem) : p_(problem), offsets_(problem.n, 0), extra_(problem.sections, 0) {
    by_first_.resize(p_.n);
    std::iota(by_first_.begin(), by_first_.end(), 0);
    std::sort(by_first_.begin(), by_first_.end(),
              [&](int a, int b) { return std::tie(p_.first[a], a) < std::tie(p_.first[b], b); });
  }

  // Places all; among equals the first in `order` wins.  Returns the peak, or, when the time is
  // over before the end, kUnfinished.
  int64_t Run(const std::vector<int>& order, const Style& style, const Clock& clock) {
    style_ = style;
    Load(order);
    left_ = p_.load;
    top_.assign(p_.sections, 0);
    int64_t peak = 0;
    for (int step = 0; step < p_.n; ++step) {
      if ((step & 63) == 0 && clock.Expired()) return kUnfinished;
      if (style_.weighed && (step & 3) == 0) Weigh();
      const int section = FullestSection();
      int at = style_.weighed ? CheapestIn(section) : LowestIn(section);
      for (int under = at; under >= 0;) {
        at = under;
        under = Under(at);
      }
      peak = std::max(peak, Place(at));
    }
    return peak;
  }

  // After a finished run: makes sections that ended above the goal count as fuller.
  void Learn(int64_t goal) {
    std::vector<int64_t> height(p_.sections, 0);
    for (int j = 0; j < p_.n; ++j)
      for (int s = p_.first[j]; s < p_.last[j]; ++s) height[s] = std::max(height[s], offsets_[j] + p_.size[j]);
    for (int s = 0; s < p_.sections; ++s) extra_[s] += std::max<int64_t>(0, height[s] - goal) / 2;
  }

  const std::vector<int64_t>& offsets() const { return offsets_; }
  static constexpr int64_t kUnfinished = std::numeric_limits<int64_t>::max();

 private:
  static constexpr int kBlock = 64;

  void Load(const std::vector<int>& order) {
    count_ = p_.n;
    dead_ = 0;
    rank_.resize(p_.n);
    for (int i = 0; i < p_.n; ++i) rank_[order[i]] = i;
    id_ = by_first_;
    first_.resize(p_.n);
    last_.resize(p_.n);
    room_.resize(p_.n);
    greed_.resize(p_.n);
    bound_.assign(p_.n, 0);
    uint64_t state = 0x9E3779B97F4A7C15u ^ (order.empty() ? 0 : static_cast<uint64_t>(order[0]) << 20);
    for (int i = 0; i < p_.n; ++i) {
      first_[i] = p_.first[id_[i]];
      last_[i] = p_.last[id_[i]];
      room_[i] = p_.room[id_[i]];
      state = state * 6364136223846793005u + 1442695040888963407u;
      const double chance = static_cast<double>(state >> 11) * 0x1p-52 - 1;  // -1 to 1
      greed_[i] = style_.greed * (1 + style_.noise * chance) * static_cast<double>(room_[i]);
    }
    weight_.assign(p_.sections + 1, 0);
    sealed_.assign(p_.sections + 1, 0);
    Summarize();
  }

  // Prefix sums over sections of what a byte is worth, and of that times the height so far.
  void Weigh() {
    const double bound = static_cast<double>(p_.bound), scale = -1 / (style_.temperature * bound);
    for (int s = 0; s < p_.sections; ++s) {
      const double spare = bound - static_cast<double>(left_[s] + top_[s]);
      const double worth = left_[s] > 0 ? std::exp(scale * std::max(spare, -0.05 * bound)) : 0;
      weight_[s + 1] = weight_[s] + worth;
      sealed_[s + 1] = sealed_[s] + worth * static_cast<double>(top_[s]);
    }
  }

  int FullestSection() const {
    int best = -1;
    int64_t most = -1;
    for (int s = 0; s < p_.sections; ++s) {
      const int64_t score = left_[s] + extra_[s];
      if (score > most && left_[s] > 0) {
        most = score;
        best = s;
      }
    }
    return best;
  }

  // Calls visit(i) for all that share a section with [first, last).
  template <typename Visit>
  void ForEach(int first, int last, Visit visit) const {
    for (int block = 0; block * kBlock < count_; ++block) {
      const int start = block * kBlock, end = std::min(count_, start + kBlock);
      if (first_of_[block] >= last) break;
      if (last_of_[block] <= first) continue;
      for (int i = start; i < end; ++i)
        if ((first_[i] < last) & (first < last_[i])) visit(i);
    }
  }

  int LowestIn(int section) const {
    int best = -1;
    int64_t lowest = kUnfinished;
    ForEach(section, section + 1, [&](int i) {
      if (bound_[i] < lowest || (bound_[i] == lowest && rank_[id_[i]] < rank_[id_[best]])) {
        lowest = bound_[i];
        best = i;
      }
    });
    return best;
  }

  int CheapestIn(int section) const {
    int best = -1;
    double least = std::numeric_limits<double>::max();
    ForEach(section, section + 1, [&](int i) {
      const double worth = weight_[last_[i]] - weight_[first_[i]];
      const double lost = static_cast<double>(bound_[i]) * worth - (sealed_[last_[i]] - sealed_[first_[i]]);
      const double cost = lost - greed_[i] * worth;
      if (best < 0 || cost < least || (cost == least && rank_[id_[i]] < rank_[id_[best]])) {
        least = cost;
        best = i;
      }
    });
    return best;
  }

  // Of the buffers that fit wholly under `at` and share a section with it, the one that fills most.
  int Under(int at) const {
    const int64_t ceiling = bound_[at];
    int best = -1;
    double most = -1;
    ForEach(first_[at], last_[at], [&](int i) {
      if (bound_[i] + room_[i] > ceiling) return;
      const double length = style_.weighed ? weight_[last_[i]] - weight_[first_[i]] : last_[i] - first_[i];
      const double area = static_cast<double>(room_[i]) * length;
      if (area > most || (area == most && rank_[id_[i]] < rank_[id_[best]])) {
        most = area;
        best = i;
      }
    });
    return best;
  }

  int64_t Place(int at) {
    const int first = first_[at], last = last_[at], id = id_[at];
    const int64_t top = bound_[at] + room_[at];
    offsets_[id] = bound_[at];
    for (int s = first; s < last; ++s) {
      left_[s] -= room_[at];
      top_[s] = top;
    }
    first_[at] = last_[at] = -1;  // overlaps nothing any more
    ForEach(first, last, [&](int i) {
      if (bound_[i] < top) bound_[i] = RoundUp(top, p_.align[id_[i]]);
    });
    if (++dead_ > count_ / 8) Compact();
    return offsets_[id] + p_.size[id];
  }

  void Compact() {
    int kept = 0;
    for (int i = 0; i < count_; ++i) {
      if (last_[i] < 0) continue;
      id_[kept] = id_[i];
      first_[kept] = first_[i];
      last_[kept] = last_[i];
      room_[kept] = room_[i];
      greed_[kept] = greed_[i];
      bound_[kept++] = bound_[i];
    }
    count_ = kept;
    dead_ = 0;
    Summarize();
  }

  // The first and last section of each block.
  void Summarize() {
    first_of_.clear();
    last_of_.clear();
    for (int start = 0; start < count_; start += kBlock) {
      const int end = std::min(count_, start + kBlock);
      first_of_.push_back(first_[start]);
      last_of_.push_back(*std::max_element(last_.begin() + start, last_.begin() + end));
    }
  }

  const Problem& p_;
  Style style_;
  int count_ = 0, dead_ = 0;
  std::vector<int> by_first_, rank_, id_, first_, last_, first_of_, last_of_;  // of what is left
  std::vector<int64_t> room_, bound_, left_, top_, offsets_, extra_;
  std::vector<double> greed_, weight_, sealed_;
};

}  // namespace planner
