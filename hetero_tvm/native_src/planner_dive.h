// A plan built from below without ever going back: the exact search's choices, for huge problems.
//
// The next buffer is the lowest possible one in the section with most left to place; whatever
// still fits under it goes first.  Sections that ended too high count as fuller in the next dive.
// Everything is a linear pass over flat arrays: for tens of thousands of buffers that is faster
// than to hold their millions of overlapping pairs.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "planner_problem.h"

namespace planner {

class Dive {
 public:
  explicit Dive(const Problem& problem) : p_(problem), offsets_(problem.n, 0), extra_(problem.sections, 0) {}

  // Places all; among equals the first in `order` wins.  Returns the peak, or, when the time is
  // over before the end, kUnfinished.
  int64_t Run(const std::vector<int>& order, const Clock& clock) {
    Load(order);
    left_ = p_.load;
    int64_t peak = 0;
    for (int step = 0; step < p_.n; ++step) {
      if ((step & 63) == 0 && clock.Expired()) return kUnfinished;
      int at = LowestIn(FullestSection());
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
  void Load(const std::vector<int>& order) {
    count_ = p_.n;
    dead_ = 0;
    id_ = order;
    first_.resize(p_.n);
    last_.resize(p_.n);
    room_.resize(p_.n);
    bound_.assign(p_.n, 0);
    for (int i = 0; i < p_.n; ++i) {
      first_[i] = p_.first[order[i]];
      last_[i] = p_.last[order[i]];
      room_[i] = p_.room[order[i]];
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

  int LowestIn(int section) const {
    int best = -1;
    int64_t lowest = kUnfinished;
    for (int i = 0; i < count_; ++i)
      if ((first_[i] <= section) & (section < last_[i]) & (bound_[i] < lowest)) {
        lowest = bound_[i];
        best = i;
      }
    return best;
  }

  // Of the buffers that fit wholly under `at` and share a section with it, the one of most area.
  int Under(int at) const {
    const int first = first_[at], last = last_[at];
    const int64_t ceiling = bound_[at];
    int best = -1;
    double most = -1;
    for (int i = 0; i < count_; ++i)
      if ((first_[i] < last) & (first < last_[i]) & (bound_[i] + room_[i] <= ceiling)) {
        const double area = static_cast<double>(room_[i]) * (last_[i] - first_[i]);
        if (area > most) {
          most = area;
          best = i;
        }
      }
    return best;
  }

  int64_t Place(int at) {
    const int first = first_[at], last = last_[at], id = id_[at];
    const int64_t top = bound_[at] + room_[at];
    offsets_[id] = bound_[at];
    for (int s = first; s < last; ++s) left_[s] -= room_[at];
    first_[at] = last_[at] = 0;  // overlaps nothing any more
    for (int i = 0; i < count_; ++i)
      if ((first_[i] < last) & (first < last_[i]) & (bound_[i] < top)) bound_[i] = RoundUp(top, p_.align[id_[i]]);
    if (++dead_ > count_ / 8) Compact();
    return offsets_[id] + p_.size[id];
  }

  void Compact() {
    int kept = 0;
    for (int i = 0; i < count_; ++i) {
      if (last_[i] == 0) continue;
      id_[kept] = id_[i];
      first_[kept] = first_[i];
      last_[kept] = last_[i];
      room_[kept] = room_[i];
      bound_[kept++] = bound_[i];
    }
    count_ = kept;
    dead_ = 0;
  }

  const Problem& p_;
  int count_ = 0, dead_ = 0;
  std::vector<int> id_, first_, last_;  // of what is left, in the given order
  std::vector<int64_t> room_, bound_, left_, offsets_, extra_;
};

}  // namespace planner
