// Exact search for offsets under a capacity, by place-or-raise branching.
//
// Normal form: take a solution with the least sum of offsets.  No buffer of it can be dropped, so
// each stands on the floor or on another buffer.  The search keeps a lower bound of every offset
// and decides, buffer by buffer, "stands on what is placed already" or "stands on something still
// to be placed"; the second answer raises the bound to the lowest top among those, and bounds
// push one another up (propagation).  A buffer may be decided when nothing unplaced could still
// slip under it, so the two answers are exhaustive and no solution in normal form is seen twice.
//
// The canonical solutions, the dominance of holes that could be filled, the check of sections, the
// split into independent spans of time and the static orders by total, width and area follow
//   M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine
//   Learning", ASPLOS 2023;
// mixing a heuristic with exact reasoning and restarting with other orders follows
//   M. Maas et al., "TelaMalloc: Efficient On-Chip Memory Allocation for Production Machine
//   Learning Accelerators", ASPLOS 2023;
// the bound of a section is that of one machine with release dates and a common deadline (J. R.
// Jackson's rule), and the weights of sections that failed are those of
//   F. Boussemart et al., "Boosting systematic search by weighting constraints", ECAI 2004.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "planner_problem.h"

namespace planner {

enum class Verdict { kSolved, kInfeasible, kUnknown };

// How the next buffer to decide is chosen.
struct Strategy {
  // kLowest: the lowest bound.  kSection: in the section with most left to place, the lowest
  // buffer, or what must go under it first.
  enum Kind { kLowest, kSection };
  // Sections where only one buffer (or two; or: the fewest) can come next are preferred.
  enum Forced { kOne, kOneOrTwo, kFewest };
  std::vector<int> order;  // breaks ties, best first
  Kind kind = kSection;
  double weighting = 0;  // of sections by how often they failed
  Forced forced = kOne;
};

class ExactSearch {
 public:
  ExactSearch(const Problem& problem, const Clock& clock) : p_(problem), clock_(clock) {
    const int n = p_.n;
    weight_.assign(p_.sections, 1.0);
    by_bound_ = p_.members;
    twin_after_.assign(n, -1);
    FindTwins();
  }

  // Looks for offsets with every end at or under `capacity`, for at most `budget` decisions.
  Verdict Run(int64_t capacity, int64_t budget, const Strategy& strategy) {
    if (capacity != capacity_) failed_.assign(kTable, 0);
    capacity_ = capacity;
    rounded_ = RoundUp(capacity, p_.grain);
    strategy_ = &strategy;
    budget_ = budget;
    stopped_ = false;
    const int n = p_.n;
    rank_.assign(n, 0);
    for (int i = 0; i < n; ++i) rank_[strategy.order[i]] = i;
    bound_.assign(n, 0);
    floor_.assign(n, 0);
    support_.assign(n, -1);
    placed_.assign(n, 0);
    rest_ = p_.load;
    crossing_ = p_.crossing;
    trail_.clear();
    queue_.clear();
    queued_.assign(n, 0);
    dirty_.assign(p_.sections, 0);
    dirty_list_.clear();
    for (int j = 0; j < n; ++j)
      if (p_.size[j] > capacity_) return Verdict::kInfeasible;
    for (int s = 0; s < p_.sections; ++s) MarkDirty(s);
    for (int j = 0; j < n; ++j) Enqueue(j);
    if (!Propagate()) return Verdict::kInfeasible;
    if (Solve(0, p_.sections)) return Verdict::kSolved;
    return stopped_ ? Verdict::kUnknown : Verdict::kInfeasible;
  }

  const std::vector<int64_t>& offsets() const { return bound_; }
  int64_t decisions() const { return decisions_; }

 private:
  static constexpr int kNothing = -1, kDeadEnd = -2;
  static constexpr size_t kTable = (1 << 20) - 3;
  static constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  enum What : int { kBound, kFloor, kSupport, kPlaced };
  struct Change {
    What what;
    int item;
    int64_t old;
  };

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

  // For every height h: h plus all that must lie at h or above has to fit.
  bool SectionFits(int s) {
    auto& items = by_bound_[s];  // nearly sorted from the last time: insertion sort is quick
    for (size_t i = 1; i < items.size(); ++i) {
      int item = items[i];
      size_t at = i;
      for (; at > 0 && bound_[items[at - 1]] < bound_[item]; --at) items[at] = items[at - 1];
      items[at] = item;
    }
    int64_t above = 0;
    for (int item : items) {
      if (placed_[item]) continue;
      above += p_.room[item];
      if (bound_[item] + above > rounded_) return false;
    }
    return true;
  }

  bool Place(int j) {
    const int64_t top = bound_[j] + p_.room[j];
    trail_.push_back({kPlaced, j, 0});
    placed_[j] = 1;
    for (int s = p_.first[j]; s < p_.last[j]; ++s) {
      rest_[s] -= p_.room[j];
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
        case kBound: bound_[j] = change.old; break;
        case kFloor: floor_[j] = change.old; break;
        case kSupport: support_[j] = static_cast<int>(change.old); break;
        case kPlaced:
          placed_[j] = 0;
          for (int s = p_.first[j]; s < p_.last[j]; ++s) {
            rest_[s] += p_.room[j];
            if (s + 1 < p_.last[j]) ++crossing_[s];
          }
          break;
      }
    }
  }

  // The next buffer among those in sections [begin, end): kNothing when all are placed, kDeadEnd
  // when some section has no buffer that could come next.
  int Choose(int begin, int end) const {
    return strategy_->kind == Strategy::kLowest ? ChooseLowest(begin, end) : ChooseInSection(begin, end);
  }

  int ChooseLowest(int begin, int end) const {
    int best = kNothing;
    for (int j : strategy_->order)
      if (!placed_[j] && p_.first[j] >= begin && p_.last[j] <= end && Grounded(j) &&
          (best < 0 || bound_[j] < bound_[best]) && Blocker(j) < 0)
        best = j;
    return best;
  }

  int ChooseInSection(int begin, int end) const {
    int target = -1;
    double highest = -1;
    for (int s = begin; s < end; ++s) {
      if (rest_[s] == 0) continue;
      int possible = 0;  // buffers that could be the lowest of those left in this section
      for (int k : p_.members[s]) possible += !placed_[k] && bound_[k] + rest_[s] <= rounded_;
      if (possible == 0) return kDeadEnd;
      const double weight = 1 + strategy_->weighting * weight_[s] / weight_sum_;
      const double score = Urgency(possible) + static_cast<double>(rest_[s]) / rounded_ * weight;
      if (score > highest) {
        highest = score;
        target = s;
      }
    }
    if (target < 0) return kNothing;
    int j = -1;
    for (int k : p_.members[target])
      if (!placed_[k] && (j < 0 || Before(k, j))) j = k;
    while (true) {  // each step goes to a lower bound, so this ends
      const int under = Grounded(j) ? Blocker(j) : support_[j];
      if (under < 0) return j;
      j = under;
    }
  }

  double Urgency(int possible) const {
    switch (strategy_->forced) {
      case Strategy::kOne: return possible == 1 ? 2e9 : 0;
      case Strategy::kOneOrTwo: return possible == 1 ? 2e9 : possible == 2 ? 1e9 : 0;
      case Strategy::kFewest: return 1e9 / possible;
    }
    return 0;
  }

  bool Before(int a, int b) const {
    return bound_[a] != bound_[b] ? bound_[a] < bound_[b] : rank_[a] < rank_[b];
  }

  // The first unplaced neighbour that could still slip under j, which stands at its bound.
  int Blocker(int j) const {
    int best = -1;
    for (int k : p_.neighbours[j])
      if (!placed_[k] && bound_[k] + p_.room[k] <= bound_[j] && (best < 0 || Before(k, best))) best = k;
    return best;
  }

  // What is left to do in sections [begin, end), as a hash.  Parts that failed once are not tried
  // again, also not after a restart, as long as the capacity stays the same.
  uint64_t Key(int begin, int end) const {
    uint64_t sum = Mix(static_cast<uint64_t>(begin) << 32 | end);
    for (int j = 0; j < p_.n; ++j)
      if (!placed_[j] && p_.first[j] >= begin && p_.last[j] <= end)
        sum += Mix(Mix(static_cast<uint64_t>(j) * 0x9e3779b97f4a7c15ull + bound_[j]) + floor_[j]);
    return sum ? sum : 1;
  }

  static uint64_t Mix(uint64_t x) {  // the finaliser of splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  }

  bool Solve(int begin, int end) {
    const size_t entry = trail_.size();
    while (true) {
      const int j = Choose(begin, end);
      if (j == kNothing) return true;
      const uint64_t key = Key(begin, end);
      if (j == kDeadEnd || failed_[key % kTable] == key) {
        Undo(entry);
        return false;
      }
      ++decisions_;
      if (--budget_ <= 0 || ((decisions_ & 63) == 0 && clock_.Expired())) {
        stopped_ = true;
        return false;
      }
      const size_t mark = trail_.size();
      if (Place(j) && SolveParts(begin, end)) return true;
      Undo(mark);
      if (stopped_) return false;
      if (!Skip(j)) {
        Undo(entry);
        failed_[key % kTable] = key;
        return false;
      }
    }
  }

  // Spans of time that no unplaced buffer joins any more are solved one by one: a failure in one
  // must not make the search try again what succeeded in another.
  bool SolveParts(int begin, int end) {
    std::vector<std::pair<int, int>> parts;
    int from = begin;
    for (int s = begin; s < end; ++s)
      if (s + 1 == end || crossing_[s] == 0) {
        int64_t rest = 0;
        for (int i = from; i <= s; ++i) rest = std::max(rest, rest_[i]);
        if (rest > 0) parts.push_back({from, s + 1});
        from = s + 1;
      }
    if (parts.size() > 1)
      std::stable_sort(parts.begin(), parts.end(), [&](auto a, auto b) { return PartLoad(a) > PartLoad(b); });
    for (auto [low, high] : parts)
      if (!Solve(low, high)) return false;
    return true;
  }

  int64_t PartLoad(std::pair<int, int> part) const {
    return *std::max_element(rest_.begin() + part.first, rest_.begin() + part.second);
  }

  const Problem& p_;
  const Clock& clock_;
  const Strategy* strategy_ = nullptr;
  int64_t capacity_ = -1, rounded_ = 0, budget_ = 0, decisions_ = 0;
  bool stopped_ = false;
  double weight_sum_ = 1;  // mean of the weights
  std::vector<int64_t> bound_, floor_, rest_;
  std::vector<int> support_, rank_, crossing_, twin_after_;
  std::vector<char> placed_, queued_, dirty_;
  std::vector<double> weight_;  // kept over runs: what failed before is decided first
  std::vector<std::vector<int>> by_bound_;
  std::vector<uint64_t> failed_;
  std::vector<Change> trail_;
  std::vector<int> queue_, dirty_list_;
};

}  // namespace planner
