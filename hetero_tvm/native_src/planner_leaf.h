// One independent set of buffers: the best offsets found, what is proven, and steps to improve.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "planner_exact.h"
#include "planner_first_fit.h"

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
  Method method() const { return method_; }
  const Problem& problem() const { return p_; }
  const std::vector<int64_t>& offsets() const { return best_; }
  int64_t decisions() const { return exact_ ? exact_->decisions() : 0; }

  // First fit in fixed orders.  Always leaves a plan.
  void Greedy(int64_t goal) {
    const double weights[][3] = {// size, width, load
                                 {1, 0, 0}, {1, 1, 0}, {0, 1, 0}, {1, 0.5, 0}, {0.3, 1, 0}, {1, 0, 4}, {1, 1, 8}, {0.5, 1, 30}};
    for (const auto& w : weights) {
      Order order;
      order.size = w[0];
      order.width = w[1];
      order.load = w[2];
      order_keys_.push_back(Keys(order));
      for (bool tightest : {false, true}) {
        if (peak_ <= goal || (peak_ != kMax && clock_.Expired())) return;
        const int64_t peak = fit_.Run(OrderBy(order_keys_.back()), tightest, peak_);
        if (peak < peak_) {
          keys_ = order_keys_.back();
          tightest_ = tightest;
          Take(fit_.offsets(), peak, kGreedy);
        }
      }
    }
  }

  // One slice of work towards a peak of at most `goal` (no lower one is of use to the caller;
  // with `only_goal` no higher one either).
  void Step(int64_t goal, bool only_goal) {
    goal = std::max(goal, low_);
    if (!exact_possible_) return SqueakyWheel(goal, 8);
    SqueakyWheel(goal, 4);
    if (peak_ <= goal || clock_.Expired()) return;
    Bisect(goal, only_goal);
  }

 private:
  static constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  struct Order {
    double size = 0, width = 0, load = 0, noise = 0;
  };

  void Take(const std::vector<int64_t>& offsets, int64_t peak, Method method) {
    best_ = offsets;
    peak_ = peak;
    method_ = method;
  }

  std::vector<double> Keys(const Order& o) {
    std::vector<double> keys(p_.n);
    for (int j = 0; j < p_.n; ++j) {
      keys[j] = o.size * features_.size[j] + o.width * features_.width[j] + o.load * features_.load[j];
      if (o.noise > 0) keys[j] += o.noise * (2 * Uniform(random_) - 1);
    }
    return keys;
  }

  void SqueakyWheel(int64_t goal, int rounds) {
    if (walk_.empty()) walk_ = keys_;
    for (int round = 0; round < rounds && peak_ > goal && !clock_.Expired(); ++round) {
      const int64_t peak = fit_.Run(OrderBy(walk_), tightest_, kMax);
      const auto& offsets = fit_.offsets();
      if (peak < peak_) {
        Take(offsets, peak, kLocal);
        keys_ = walk_;
        stale_ = 0;
      } else if (++stale_ % 25 == 0) {
        walk_ = keys_;  // a walk that leads nowhere starts again at the best order, elsewhere
        if (stale_ % 50 == 0) tightest_ = !tightest_;
      }
      const double spread = 0.3 + Uniform(random_);
      for (int j = 0; j < p_.n; ++j)
        if (offsets[j] + p_.size[j] > goal) walk_[j] += spread * Uniform(random_);
    }
  }

  // The exact search at the lowest peak not yet known to be out of reach, then between that and
  // the best; more decisions each time all of them were in vain.
  void Bisect(int64_t goal, bool only_goal) {
    if (!exact_) exact_ = std::make_unique<ExactSearch>(p_, clock_);
    if (vain_ < goal - 1) vain_ = goal - 1;
    const int64_t target = first_ || only_goal ? goal : vain_ + (peak_ - 1 - vain_ + 1) / 2;
    first_ = false;
    const Verdict verdict = Attack(target, effort_);
    if (verdict == Verdict::kInfeasible) low_ = std::max(low_, target + 1);
    if (verdict != Verdict::kSolved) vain_ = target;
    if (only_goal) {
      effort_ *= 2;
    } else if (vain_ >= peak_ - 1) {
      vain_ = low_ - 1;
      effort_ *= 3;
      first_ = true;
    }
  }

  // Restarts under Luby's sequence through a fixed cycle of strategies with random orders.
  Verdict Attack(int64_t target, int restarts) {
    struct Mix {
      Strategy::Kind kind;
      double weighting;
      Strategy::Forced forced;
    };
    static const Mix kMixes[] = {
        {Strategy::kSection, 0, Strategy::kOne},      {Strategy::kSection, 0, Strategy::kOneOrTwo},
        {Strategy::kSection, 0, Strategy::kFewest},   {Strategy::kSection, 0.1, Strategy::kOne},
        {Strategy::kSection, 0.1, Strategy::kOneOrTwo}, {Strategy::kLowest, 0, Strategy::kOne},
    };
    constexpr int kCount = sizeof(kMixes) / sizeof(kMixes[0]);
    for (int i = 0; i < restarts; ++i, ++runs_) {
      const Mix& mix = kMixes[runs_ % kCount];
      Order o;
      o.width = 2 * Uniform(random_);
      o.size = 2 * Uniform(random_);
      o.load = 4 * Uniform(random_);
      o.noise = 0.3 * Uniform(random_);
      Strategy strategy{OrderBy(Keys(o)), mix.kind, mix.weighting, mix.forced};
      int64_t budget = std::max<int64_t>(1000, exact_->decisions() / 100);
      for (int turn = runs_ / kCount + 1; turn % 2 == 0; turn /= 2) budget *= 2;
      const Verdict verdict = exact_->Run(target, budget, strategy);
      if (verdict == Verdict::kSolved) {
        int64_t peak = 0;
        for (int j = 0; j < p_.n; ++j) peak = std::max(peak, exact_->offsets()[j] + p_.size[j]);
        Take(exact_->offsets(), peak, kExact);
      }
      if (verdict != Verdict::kUnknown || clock_.Expired()) return verdict;
    }
    return Verdict::kUnknown;
  }

  const Problem p_;
  const Features features_;
  const int64_t base_;
  Random random_;
  const Clock& clock_;
  FirstFit fit_;
  std::unique_ptr<ExactSearch> exact_;
  bool exact_possible_ = false, tightest_ = false, first_ = true;
  int64_t low_, peak_, vain_ = 0;
  int effort_ = 12, runs_ = 0, stale_ = 0;
  Method method_ = kNone;
  std::vector<int64_t> best_;
  std::vector<double> keys_, walk_;
  std::vector<std::vector<double>> order_keys_;
};

}  // namespace planner
