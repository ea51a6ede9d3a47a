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
// Runs that come near to the best partial plans so far follow
//   J. C. Beck, "Solution-guided multi-point constructive search for job shop scheduling", JAIR 2007.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "planner_bounds.h"

namespace planner {

enum class Verdict { kSolved, kInfeasible, kUnknown };

// How the next buffer to decide is chosen.
struct Strategy {
  // kLowest: the lowest bound.  kSection: in the section with most left to place, the lowest
  // buffer, or what must go under it first.  kCheapest: in that section, the buffer that seals the
  // least memory, which is worth much where the load leaves little to spare: exp(-spare / temperature);
  // large ones are preferred a little (greed).
  enum Kind { kLowest, kSection, kCheapest };
  // Sections where only one buffer (or two; or: the fewest) can come next are preferred.
  enum Forced { kOne, kOneOrTwo, kFewest };
  // Of buffers with the same bound, those come first that begin or end where what is placed beside them goes
  // higher: in tight plans something fits into such a corner, and what leaves a slit there wastes it.
  // kCounted: at both ends is better than at one.
  enum Walls { kIgnored, kAny, kCounted };
  std::vector<int> order;  // breaks ties that are left, best first
  Kind kind = kSection;
  double weighting = 0;  // of sections by how often they failed
  Forced forced = kOne;
  Walls walls = kIgnored;
  double temperature = 0.005;  // of the capacity
  double greed = 0.003;        // bytes sealed per byte of the buffer that are no loss
  // Offsets of a partial plan (-1: none): what stands there comes first, what stood higher is raised first.
  const std::vector<int64_t>* guide = nullptr;
};

class ExactSearch : private Bounds {
 public:
  ExactSearch(const Problem& problem, const Clock& clock) : Bounds(problem), clock_(clock) {}

  // Looks for offsets with every end at or under `capacity`, for at most `budget` decisions.
  Verdict Run(int64_t capacity, int64_t budget, const Strategy& strategy) {
    if (capacity != capacity_) failed_.assign(kTable, 0);
    strategy_ = &strategy;
    budget_ = budget;
    stopped_ = false;
    rank_.assign(p_.n, 0);
    for (int i = 0; i < p_.n; ++i) rank_[strategy.order[i]] = i;
    most_area_ = 0;
    fullest_.assign(p_.n, -1);
    if (!Start(capacity)) return Verdict::kInfeasible;
    if (Solve(0, p_.sections)) return Verdict::kSolved;
    return stopped_ ? Verdict::kUnknown : Verdict::kInfeasible;
  }

  using Bounds::offsets;
  int64_t decisions() const { return decisions_; }
  // Of the last run: the partial plan (-1: not placed) that covered the most memory times sections.
  const std::vector<int64_t>& fullest() const { return fullest_; }
  double most_area() const { return most_area_; }

 private:
  static constexpr int kNothing = -1, kDeadEnd = -2, kNobody = -1;
  static constexpr size_t kTable = (1 << 20) - 3;

  // The next buffer among those in sections [begin, end): kNothing when all are placed, kDeadEnd
  // when some section has no buffer that could come next.
  int Choose(int begin, int end) const {
    if (strategy_->kind == Strategy::kLowest && !strategy_->guide) return ChooseLowest(begin, end);
    const int section = ChooseSection(begin, end);
    if (section < 0) return section;
    if (strategy_->guide) {
      const int j = Guided(section);
      if (j >= 0) return j;
    }
    return strategy_->kind == Strategy::kCheapest ? Cheapest(section) : Lowest(section);
  }

  int ChooseLowest(int begin, int end) const {
    int best = kNothing;
    for (int j : strategy_->order)
      if (!placed_[j] && p_.first[j] >= begin && p_.last[j] <= end && Grounded(j) &&
          (best < 0 || bound_[j] < bound_[best]) && Blocker(j) < 0)
        best = j;
    return best;
  }

  int ChooseSection(int begin, int end) const {
    int target = kNothing;
    double highest = -1;
    for (int s = begin; s < end; ++s) {
      if (rest_[s] == 0) continue;
      const int possible = Possible(s);
      if (possible == 0) return kDeadEnd;
      const double weight = 1 + strategy_->weighting * weight_[s] / weight_sum_;
      const double score = Urgency(possible) + static_cast<double>(rest_[s]) / rounded_ * weight;
      if (score > highest) {
        highest = score;
        target = s;
      }
    }
    return target;
  }

  double Urgency(int possible) const {
    switch (strategy_->forced) {
      case Strategy::kOne: return possible == 1 ? 2e9 : 0;
      case Strategy::kOneOrTwo: return possible == 1 ? 2e9 : possible == 2 ? 1e9 : 0;
      case Strategy::kFewest: return 1e9 / possible;
    }
    return 0;
  }

  int Lowest(int section) const {
    int j = kNobody;
    for (int k : p_.members[section])
      if (!placed_[k] && (j < 0 || Before(k, j))) j = k;
    while (true) {  // each step goes to a lower bound, so this ends
      const int under = Grounded(j) ? Blocker(j) : support_[j];
      if (under < 0) return j;
      j = under;
    }
  }

  // What stands where the guide has it, if nothing else has to be decided before.
  int Guided(int section) const {
    int j = kNobody;
    for (int k : p_.members[section])
      if (!placed_[k] && (*strategy_->guide)[k] == bound_[k] && Grounded(k) && (j < 0 || Before(k, j))) j = k;
    while (j >= 0) {
      const int under = Blocker(j);
      if (under < 0) return j;
      j = Grounded(under) ? under : kNobody;
    }
    return kNobody;
  }

  int Cheapest(int section) const {
    Weigh(section);
    int j = kNobody;
    double least = 0;
    for (int k : p_.members[section]) {
      if (placed_[k] || bound_[k] + rest_[section] > rounded_) continue;
      const double worth = Worth(k), sealed = sum_sealed_[p_.last[k]] - sum_sealed_[p_.first[k]];
      const double cost = (static_cast<double>(bound_[k]) - strategy_->greed * p_.room[k]) * worth - sealed;
      if (j < 0 || cost < least || (cost == least && rank_[k] < rank_[j])) {
        least = cost;
        j = k;
      }
    }
    // Of what could slip under, what fills most.
    auto larger = [&](int a, int b) {
      const double x = Worth(a) * p_.room[a], y = Worth(b) * p_.room[b];
      return x != y ? x > y : rank_[a] < rank_[b];
    };
    while (true) {
      const int under = Grounded(j) ? Under(j, larger) : support_[j];
      if (under < 0) return j;
      j = under;
    }
  }

  // Prefix sums over the sections around `section` of what a byte is worth, and of that times the top.
  void Weigh(int section) const {
    low_ = section, high_ = section + 1;
    for (int k : p_.members[section])
      if (!placed_[k]) {
        low_ = std::min(low_, p_.first[k]);
        high_ = std::max(high_, p_.last[k]);
      }
    sum_worth_.resize(p_.sections + 1);
    sum_sealed_.resize(p_.sections + 1);
    sum_worth_[low_] = sum_sealed_[low_] = 0;
    const double scale = -1 / (strategy_->temperature * rounded_);
    for (int s = low_; s < high_; ++s) {
      const double spare = static_cast<double>(rounded_ - rest_[s] - top_[s]);
      const double worth = rest_[s] > 0 ? std::exp(scale * spare) : 0;
      sum_worth_[s + 1] = sum_worth_[s] + worth;
      sum_sealed_[s + 1] = sum_sealed_[s] + worth * static_cast<double>(top_[s]);
    }
  }

  double Worth(int k) const {
    const int from = std::clamp(p_.first[k], low_, high_), to = std::clamp(p_.last[k], low_, high_);
    return sum_worth_[to] - sum_worth_[from];
  }

  bool Before(int a, int b) const {
    if (bound_[a] != bound_[b]) return bound_[a] < bound_[b];
    if (strategy_->walls != Strategy::kIgnored) {
      const int x = Walls(a), y = Walls(b);
      if (x != y) return x > y;
    }
    return rank_[a] < rank_[b];
  }

  int Walls(int j) const {
    const int first = p_.first[j], last = p_.last[j];
    const bool left = first == 0 || top_[first - 1] > bound_[j];
    const bool right = last == p_.sections || top_[last] > bound_[j];
    return strategy_->walls == Strategy::kCounted ? left + right : left || right;
  }

  int Blocker(int j) const {
    return Under(j, [&](int a, int b) { return Before(a, b); });
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
    const size_t entry = Mark();
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
      const size_t mark = Mark();
      const bool raise_first = strategy_->guide && (*strategy_->guide)[j] > bound_[j];
      if (raise_first ? Skip(j) && Solve(begin, end) : PlaceAndSolve(j, begin, end)) return true;
      if (stopped_) return false;
      Undo(mark);
      if (raise_first ? PlaceAndSolve(j, begin, end) : false) return true;
      if (stopped_) return false;
      if (raise_first || !Skip(j)) {
        Undo(entry);
        failed_[key % kTable] = key;
        return false;
      }
    }
  }

  bool PlaceAndSolve(int j, int begin, int end) {
    if (!Place(j)) return false;
    if (area_ > most_area_) {
      most_area_ = area_;
      for (int k = 0; k < p_.n; ++k) fullest_[k] = placed_[k] ? bound_[k] : -1;
    }
    return SolveParts(begin, end);
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

  const Clock& clock_;
  const Strategy* strategy_ = nullptr;
  int64_t budget_ = 0, decisions_ = 0;
  bool stopped_ = false;
  double most_area_ = 0;
  std::vector<int64_t> fullest_;
  std::vector<int> rank_;
  std::vector<uint64_t> failed_;
  mutable int low_ = 0, high_ = 0;  // sections of the sums
  mutable std::vector<double> sum_worth_, sum_sealed_;
};

}  // namespace planner
