// The state of the exact search: lower bounds of offsets, how they push one another up, and undoing it.
//
// Rules: a buffer that does not stand on what is placed stands on the lowest top of what is not
// (support); buffers placed on it raise what must lie above; twins keep their order; in every
// section, what must lie at some height or above has to fit (one machine with release dates and a
// common deadline: J. R. Jackson's rule); and what cannot be the lowest of a section stands at least
// as high as the lowest top of those that can (the "not first" rule of scheduling: J. Carlier and
// E. Pinson, "An algorithm for solving the job-shop problem", Management Science 1989).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "planner_problem.h"

namespace planner {

class Bounds {
 public:
  explicit Bounds(const Problem& problem) : p_(problem) {
    weight_.assign(p_.sections, 1.0);
    by_bound_ = p_.members;
    twin_after_.assign(p_.n, -1);
    FindTwins();
  }

  const std::vector<int64_t>& offsets() const { return bound_; }

 protected:
  // All bounds at the bottom; false when nothing fits `capacity` even so.
  bool Start(int64_t capacity) {
    const int n = p_.n;
    capacity_ = capacity;
    rounded_ = RoundUp(capacity, p_.grain);
    bound_.assign(n, 0);
    floor_.assign(n, 0);
    support_.assign(n, -1);
    placed_.assign(n, 0);
    rest_ = p_.load;
    crossing_ = p_.crossing;
    top_.assign(p_.sections, 0);
    old_tops_.clear();
    possible_.assign(p_.sections, kStale);
    trail_.clear();
    queue_.clear();
    queued_.assign(n, 0);
    dirty_.assign(p_.sections, 0);
    dirty_list_.clear();
    area_ = 0;
    for (int j = 0; j < n; ++j)
      if (p_.size[j] > capacity_) return false;
    for (int s = 0; s < p_.sections; ++s) MarkDirty(s);
    for (int j = 0; j < n; ++j) Enqueue(j);
    return Propagate();
  }

  size_t Mark() const { return trail_.size(); }

  int64_t Standing(int j) const { return RoundUp(floor_[j], p_.align[j]); }
  bool Grounded(int j) const { return bound_[j] <= Standing(j); }

  // Buffers with the same span, size and alignment may be swapped: keep the first one lowest.
  void FindTwins() {
    std::vector<int> ids(p_.n);
    std::iota(ids.begin(), ids.end(), 0);
    auto key = [&](int j) { return std::make_tuple(p_.first[j], p_.last[j], p_.size[j], p_.align[j], j); };
    std::sort(ids.begin(), ids.end(), [&](int a, int b) { return key(a) < key(b); });
    for (int i = 0; i + 1 < p_.n; ++i) {
      int a = ids[i], b = ids[i + 1];
      if (p_.first[a] == p_.first[b] && p_.last[a] == p_.last[b] && p_.size[a] == p_.size[b] &&
          p_.align[a] == p_.align[b])
        twin_after_[a] = b;
    }
  }

  void MarkDirty(int s) {
    if (!dirty_[s]) {
      dirty_[s] = 1;
      dirty_list_.push_back(s);
    }
  }

  void Enqueue(int j) {
    if (!queued_[j]) {
      queued_[j] = 1;
      queue_.push_back(j);
    }
  }

  bool Raise(int j, int64_t value) {
    if (value <= bound_[j]) return true;
    trail_.push_back({kBound, j, bound_[j]});
    bound_[j] = value;
    Enqueue(j);
    return value + p_.size[j] <= capacity_;
  }

  // The lowest top among unplaced neighbours: where a buffer that is not grounded can stand.
  bool RaiseToSupport(int j) {
    int64_t best = std::numeric_limits<int64_t>::max();
    int who = -1;
    for (int k : p_.neighbours[j])
      if (!placed_[k] && bound_[k] + p_.room[k] < best) {
        best = bound_[k] + p_.room[k];
        who = k;
      }
    if (who < 0) return false;
    if (who != support_[j]) {
      trail_.push_back({kSupport, j, support_[j]});
      support_[j] = who;
    }
    return Raise(j, RoundUp(best, p_.align[j]));
  }

  bool Propagate() {
    bool fine = true;
    while (fine && (!queue_.empty() || !dirty_list_.empty())) {
      while (fine && !queue_.empty()) {
        int k = queue_.back();
        queue_.pop_back();
        queued_[k] = 0;
        if (placed_[k]) continue;
        for (int s = p_.first[k]; s < p_.last[k]; ++s) MarkDirty(s);
        if (int twin = twin_after_[k]; twin >= 0 && !placed_[twin])
          fine = Raise(twin, RoundUp(bound_[k] + p_.room[k], p_.align[k]));
        for (int j : p_.neighbours[k]) {
          if (!fine) break;
          if (!placed_[j] && support_[j] == k && !Grounded(j)) fine = RaiseToSupport(j);
        }
      }
      while (fine && !dirty_list_.empty()) {
        int s = dirty_list_.back();
        dirty_list_.pop_back();
        dirty_[s] = 0;
        if (!SectionFits(s)) {
          weight_[s] += 1;
          weight_sum_ += 1.0 / p_.sections;
          fine = false;
        }
      }
    }
    for (int k : queue_) queued_[k] = 0;
    queue_.clear();
    for (int s : dirty_list_) dirty_[s] = 0;
    dirty_list_.clear();
    return fine;
  }

  // As Raise; what then stands on nothing that is placed looks for its support.
  bool RaiseOffFloor(int j, int64_t value) { return Raise(j, value) && (Grounded(j) || RaiseToSupport(j)); }

  // For every height h: h plus all that must lie at h or above has to fit; and something must be the
  // lowest, under all that cannot be.
  bool SectionFits(int s) {
    auto& items = by_bound_[s];  // nearly sorted from the last time: insertion sort is quick
    for (size_t i = 1; i < items.size(); ++i) {
      int item = items[i];
      size_t at = i;
      for (; at > 0 && bound_[items[at - 1]] < bound_[item]; --at) items[at] = items[at - 1];
      items[at] = item;
    }
    int64_t above = 0, lowest_top = std::numeric_limits<int64_t>::max();
    int left = 0, possible = 0;
    const int64_t limit = rounded_ - rest_[s];  // the lowest of those left is at or under it
    for (int item : items) {
      if (placed_[item]) continue;
      ++left;
      above += p_.room[item];
      if (bound_[item] + above > rounded_) return false;
      if (bound_[item] > limit) continue;
      ++possible;
      lowest_top = std::min(lowest_top, bound_[item] + p_.room[item]);
    }
    possible_[s] = possible;
    if (possible == left) return true;
    if (possible == 0) return false;
    for (int item : items) {
      if (bound_[item] <= limit) break;  // sorted: the others can be the lowest
      if (placed_[item] || bound_[item] >= lowest_top) continue;
      if (!RaiseOffFloor(item, RoundUp(lowest_top, p_.align[item]))) return false;
    }
    return true;
  }

  bool Place(int j) {
    const int64_t top = bound_[j] + p_.room[j];
    trail_.push_back({kPlaced, j, 0});
    placed_[j] = 1;
    area_ += static_cast<double>(p_.room[j]) * (p_.last[j] - p_.first[j]);
    for (int s = p_.first[j]; s < p_.last[j]; ++s) {
      rest_[s] -= p_.room[j];
      old_tops_.push_back(top_[s]);
      top_[s] = top;
      MarkDirty(s);
      if (s + 1 < p_.last[j]) --crossing_[s];
    }
    bool fine = true;
    for (int k : p_.neighbours[j]) {
      if (placed_[k]) continue;
      if (floor_[k] < top) {
        trail_.push_back({kFloor, k, floor_[k]});
        floor_[k] = top;
        fine = fine && Raise(k, RoundUp(top, p_.align[k]));
      }
      if (fine && support_[k] == j && !Grounded(k)) fine = RaiseToSupport(k);
      if (!fine) break;
    }
    return Propagate() && fine;
  }

  bool Skip(int j) {
    bool fine = RaiseToSupport(j);
    return Propagate() && fine;
  }

  void Undo(size_t mark) {
    while (trail_.size() > mark) {
      const Change change = trail_.back();
      trail_.pop_back();
      const int j = change.item;
      switch (change.what) {
        case kBound:
          bound_[j] = change.old;
          for (int s = p_.first[j]; s < p_.last[j]; ++s) possible_[s] = kStale;
          break;
        case kFloor: floor_[j] = change.old; break;
        case kSupport: support_[j] = static_cast<int>(change.old); break;
        case kPlaced:
          placed_[j] = 0;
          area_ -= static_cast<double>(p_.room[j]) * (p_.last[j] - p_.first[j]);
          for (int s = p_.last[j]; s-- > p_.first[j];) {
            top_[s] = old_tops_.back();
            old_tops_.pop_back();
            possible_[s] = kStale;
            rest_[s] += p_.room[j];
            if (s + 1 < p_.last[j]) ++crossing_[s];
          }
          break;
      }
    }
  }

  // How many buffers could be the lowest of those left in section s.
  int Possible(int s) const {
    if (possible_[s] == kStale) {
      int count = 0;
      for (int k : p_.members[s]) count += !placed_[k] && bound_[k] + rest_[s] <= rounded_;
      possible_[s] = count;
    }
    return possible_[s];
  }

  // The first unplaced neighbour, by `before`, that could still slip under j where it stands now; or -1.
  template <typename Before>
  int Under(int j, Before before) const {
    int best = -1;
    for (int k : p_.neighbours[j])
      if (!placed_[k] && bound_[k] + p_.room[k] <= bound_[j] && (best < 0 || before(k, best))) best = k;
    return best;
  }

  const Problem& p_;
  int64_t capacity_ = -1, rounded_ = 0;
  double area_ = 0;        // memory times sections of what is placed
  double weight_sum_ = 1;  // mean of the weights
  std::vector<int64_t> bound_, floor_;  // per buffer: lowest offset; highest top of what is placed under it
  std::vector<int64_t> rest_, top_;     // per section: rooms still to place; top of what is placed
  std::vector<int> support_, crossing_;
  std::vector<char> placed_;
  std::vector<double> weight_;  // of sections by how often they failed; kept over runs

 private:
  static constexpr int kStale = -1;
  enum What : int { kBound, kFloor, kSupport, kPlaced };
  struct Change {
    What what;
    int item;
    int64_t old;
  };

  std::vector<int> twin_after_, queue_, dirty_list_;
  std::vector<char> queued_, dirty_;
  mutable std::vector<int> possible_;
  std::vector<int64_t> old_tops_;
  std::vector<std::vector<int>> by_bound_;
  std::vector<Change> trail_;
};

}  // namespace planner
