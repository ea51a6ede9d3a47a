// One independent set of buffers: the best offsets found, what is proven, and steps to improve.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "planner_dive.h"
#include "planner_first_fit.h"
#include "planner_restarts.h"

namespace planner {

enum Method : int { kNone = 0, kGreedy = 1, kLocal = 2, kExact = 3 };

class Leaf {
 public:
  // Above these limits only first fit and local search run.
  static constexpr int64_t kPairLimit = 20'000'000, kExactWork = 2'000'000'000;
  static constexpr int kExactBuffers = 4000;

  Leaf(const std::vector<Item>& items, int64_t base, uint64_t seed, const Clock& clock)
      : p_(MakeProblem(items, items.size() <= kExactBuffers ? kPairLimit : 0)),
        features_(MakeFeatures(p_)),
        base_(base),
        random_(seed),
        clock_(clock),
        fit_(p_),
        low_(p_.bound) {
    int64_t members = 0;
    for (int j = 0; j < p_.n; ++j) members += p_.last[j] - p_.first[j];
    exact_possible_ = !p_.neighbours.empty() && members * p_.n <= kExactWork;
    peak_ = kMax;
  }

  int64_t base() const { return base_; }
  int64_t peak() const { return peak_; }          // of the best offsets, without the base
  int64_t bound() const { return low_; }          // proven
  // Padding on top makes the bound of huge problems unsharp by less than one grain; that is no
  // reason to go on.
  int64_t slack() const { return exact_possible_ ? 0 : p_.grain - 1; }
  Method method() const { return method_; }
  const Problem& problem() const { return p_; }
  const std::vector<int64_t>& offsets() const { return best_; }
  int64_t decisions() const {
    return (exact_ ? exact_->decisions() : 0) + (between_ ? between_->decisions() : 0);
  }

  // Orders and a dive without chance.  Always leaves a plan, never worse than greedy by size.
  void Greedy(int64_t goal) {
    TryOrder(OrderBy(Keys(features_, {1, 0, 0, 0})), false, kGreedy);
    if (peak_ <= goal || clock_.Expired()) return;
    TryDive(Keys(features_, {1, 1, 0, 0}), Dive::Style(), goal);
    if (peak_ <= goal || clock_.Expired()) return;
    TryDive(Keys(features_, {1, 1, 0, 0}), {true}, goal);
    const Order orders[] = {{1, 0, 0, 0}, {1, 1, 0, 0}, {0, 1, 0, 0}, {0.3, 1, 0, 0}, {1, 0, 4, 0}, {1, 1, 8, 0}};
    for (const Order& order : orders)
      for (bool tightest : {false, true}) {
        if (peak_ <= goal || clock_.Expired()) return;
        TryOrder(OrderBy(Keys(features_, order)), tightest, kGreedy);
      }
  }

  // One slice of work towards a peak of at most `goal` (no lower one is of use to the caller;
  // with `only_goal` no higher one either).
  void Step(int64_t goal, bool only_goal) {
    goal = std::max(goal, low_);
    if (peak_ > goal && !clock_.Expired()) TryDive(RandomKeys(features_, &random_), RandomStyle(), goal);
    for (int i = 0; i < kPulls && peak_ > goal && !clock_.Expired(); ++i) Pull(goal);
    if (exact_possible_ && peak_ > goal && !clock_.Expired()) Bisect(goal, only_goal);
  }

 private:
  static constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  static constexpr int kPulls = 4;

  Dive::Style RandomStyle() {
    Dive::Style style;
    style.weighed = exact_possible_ ? Uniform(random_) < 0.5 : Uniform(random_) < 0.9;
    style.temperature = 0.002 * std::pow(10.0, Uniform(random_));
    style.greed = 0.001 * std::pow(10.0, Uniform(random_));
    style.noise = Uniform(random_);
    return style;
  }

  void Take(const std::vector<int64_t>& offsets, int64_t peak, Method method) {
    best_ = offsets;
    peak_ = peak;
    method_ = method;
  }

  void TryOrder(const std::vector<int>& order, bool tightest, Method method) {
    const int64_t peak = fit_.Run(order, tightest, peak_);
    if (peak < peak_) Take(fit_.offsets(), peak, method);
  }

  void TryDive(const std::vector<double>& keys, const Dive::Style& style, int64_t goal) {
    if (!dive_) dive_ = std::make_unique<Dive>(p_);
    const int64_t peak = dive_->Run(OrderBy(keys), style, clock_);
    if (peak == Dive::kUnfinished) return;
    if (peak < peak_) Take(dive_->offsets(), peak, kGreedy);
    dive_->Learn(goal);
  }

  // First fit in the order of the best offsets finds no worse ones; seen from the top, and with
  // what ends above the goal pulled down by a random way, it may find better ones.
  void Pull(int64_t goal) {
    const bool from_top = Uniform(random_) < 0.5;
    const double reach = std::pow(10.0, -2 * Uniform(random_));  // from 1 to 0.01 of the peak
    std::vector<double> keys(p_.n);
    for (int j = 0; j < p_.n; ++j) {
      const int64_t start = from_top ? peak_ - best_[j] - p_.size[j] : best_[j];
      keys[j] = -static_cast<double>(start);
      if (start + p_.size[j] > goal) keys[j] += reach * peak_ * Uniform(random_);
    }
    TryOrder(OrderBy(keys), false, kLocal);
  }

  // The exact search at the goal, and for as many decisions (unless only the goal is of use) at peaks
  // between what was in vain and the best: each keeps what it learnt.
  void Bisect(int64_t goal, bool only_goal) {
    if (!exact_) exact_ = std::make_unique<Restarts>(p_, features_, clock_);
    Attack(exact_.get(), goal, effort_);
    effort_ *= 2;
    if (only_goal) return;
    if (!between_) between_ = std::make_unique<Restarts>(p_, features_, clock_);
    while (between_->decisions() < exact_->decisions() && peak_ > std::max(goal, low_) && !clock_.Expired()) {
      vain_ = std::max({vain_, goal, low_ - 1});
      if (vain_ >= peak_ - 1) {  // all were in vain: once more from the start, with more effort
        vain_ = 0;
        between_effort_ *= 3;
        return;
      }
      const int64_t target = vain_ + (peak_ - vain_) / 2;
      if (Attack(between_.get(), target, between_effort_) != Verdict::kSolved) vain_ = target;
    }
  }

  Verdict Attack(Restarts* search, int64_t target, int runs) {
    const Verdict verdict = search->Attack(target, runs, &random_);
    if (verdict == Verdict::kInfeasible) low_ = std::max(low_, target + 1);
    if (verdict != Verdict::kSolved) return verdict;
    int64_t peak = 0;
    for (int j = 0; j < p_.n; ++j) peak = std::max(peak, search->offsets()[j] + p_.size[j]);
    Take(search->offsets(), peak, kExact);
    return verdict;
  }

  const Problem p_;
  const Features features_;
  const int64_t base_;
  Random random_;
  const Clock& clock_;
  FirstFit fit_;
  std::unique_ptr<Dive> dive_;
  std::unique_ptr<Restarts> exact_, between_;
  bool exact_possible_ = false;
  int64_t low_, peak_, vain_ = 0;
  int effort_ = 12, between_effort_ = 12;
  Method method_ = kNone;
  std::vector<int64_t> best_;
};

}  // namespace planner
