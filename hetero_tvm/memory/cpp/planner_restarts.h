// Restarts of the exact search under Luby's sequence, through a cycle of strategies with random orders.
//
// After the first runs, half of the decisions go to a search from below in the fixed orders of MiniMalloc,
// each in turn and for twice as long in every round: it solves some problems that the sections mislead.
//
// Most runs are guided by one of a few partial plans that came far; a run that comes farther takes the
// place of its guide.  A guide that has led nowhere for long is dropped.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "planner_exact.h"
#include "planner_first_fit.h"

namespace planner {

class Restarts {
 public:
  Restarts(const Problem& problem, const Features& features, const Clock& clock)
      : features_(features), clock_(clock), exact_(problem, clock) {
    std::vector<double> area(features.size);
    for (size_t j = 0; j < area.size(); ++j) area[j] += features.width[j];
    fixed_orders_ = {OrderBy(features.width, area, features.load), OrderBy(features.load, area, features.width),
                     OrderBy(features.load, features.width, area)};
  }

  // At most so many runs at this capacity; offsets() hold the plan when it is solved.
  Verdict Attack(int64_t capacity, int runs, Random* random) {
    if (capacity != capacity_) guides_.clear();
    capacity_ = capacity;
    for (int i = 0; i < runs; ++i) {
      const bool fixed = fixed_decisions_ + kFree < exact_.decisions() - fixed_decisions_;
      const Verdict verdict = fixed ? RunFixed() : Run(random);
      if (verdict != Verdict::kUnknown || clock_.Expired()) return verdict;
    }
    return Verdict::kUnknown;
  }

  const std::vector<int64_t>& offsets() const { return exact_.offsets(); }
  int64_t decisions() const { return exact_.decisions(); }

 private:
  static constexpr size_t kGuides = 3;
  static constexpr double kGuided = 0.9;
  static constexpr int kAlone = 3;  // times through the cycle without a guide: easy problems need none
  static constexpr int kPatience = 40;
  static constexpr int64_t kFree = 50'000;  // decisions before the first in a fixed order
  static constexpr int64_t kFixedBudget = 1000;  // decisions of the first round
  struct Guide {
    std::vector<int64_t> offsets;
    double area;
    int vain;  // runs that it led, since it came farthest
  };
  struct Mix {
    Strategy::Kind kind;
    double weighting;
    Strategy::Forced forced;
    Strategy::Walls walls;
  };

  Verdict Run(Random* random) {
    using S = Strategy;
    static const Mix kMixes[] = {
        {S::kSection, 0, S::kOne, S::kIgnored},       {S::kSection, 0, S::kFewest, S::kCounted},
        {S::kCheapest, 0, S::kOne, S::kIgnored},      {S::kSection, 0, S::kOneOrTwo, S::kAny},
        {S::kSection, 0, S::kOneOrTwo, S::kIgnored},  {S::kSection, 0, S::kFewest, S::kAny},
        {S::kCheapest, 0.1, S::kOneOrTwo, S::kIgnored}, {S::kSection, 0.1, S::kOne, S::kAny},
        {S::kSection, 0, S::kFewest, S::kIgnored},    {S::kSection, 0.1, S::kFewest, S::kAny},
        {S::kCheapest, 0, S::kFewest, S::kIgnored},   {S::kSection, 0.1, S::kOneOrTwo, S::kCounted},
        {S::kLowest, 0, S::kOne, S::kIgnored},
    };
    constexpr int kCount = sizeof(kMixes) / sizeof(kMixes[0]);
    const Mix& mix = kMixes[runs_ % kCount];
    Strategy strategy;
    strategy.order = OrderBy(RandomKeys(features_, random));
    strategy.kind = mix.kind;
    strategy.weighting = mix.weighting;
    strategy.forced = mix.forced;
    strategy.walls = mix.walls;
    strategy.temperature = 0.002 * std::pow(20.0, Uniform(*random));
    strategy.greed = 0.001 * std::pow(30.0, Uniform(*random));
    int64_t budget = std::max<int64_t>(1000, exact_.decisions() / 100);
    for (int turn = runs_ / kCount + 1; turn % 2 == 0; turn /= 2) budget *= 2;
    ++runs_;
    size_t at = guides_.size();
    if (runs_ > kAlone * kCount && guides_.size() == kGuides && Uniform(*random) < kGuided) {
      at = std::min(static_cast<size_t>(Uniform(*random) * kGuides), kGuides - 1);
      strategy.guide = &guides_[at].offsets;
    }
    const Verdict verdict = exact_.Run(capacity_, budget, strategy);
    if (verdict == Verdict::kUnknown) Learn(at);
    return verdict;
  }

  // One run from below in a fixed order; what it learns about parts that fail stays for all others.
  Verdict RunFixed() {
    Strategy strategy;
    strategy.order = fixed_orders_[fixed_runs_ % fixed_orders_.size()];
    strategy.kind = Strategy::kLowest;
    const int round = std::min<int>(fixed_runs_++ / fixed_orders_.size(), 40);
    const int64_t before = exact_.decisions();
    const Verdict verdict = exact_.Run(capacity_, kFixedBudget << round, strategy);
    fixed_decisions_ += exact_.decisions() - before;
    return verdict;
  }

  // `at`: the guide of the last run, or the number of guides when it had none.
  void Learn(size_t at) {
    const bool guided = at < guides_.size();
    if (guides_.size() < kGuides) {
      guides_.push_back({exact_.fullest(), exact_.most_area(), 0});
      return;
    }
    if (!guided) {
      at = 0;
      for (size_t g = 1; g < kGuides; ++g)
        if (guides_[g].area < guides_[at].area) at = g;
    }
    if (exact_.most_area() > guides_[at].area) {
      guides_[at] = {exact_.fullest(), exact_.most_area(), 0};
    } else if (guided && ++guides_[at].vain > kPatience) {
      guides_.erase(guides_.begin() + at);
    }
  }

  const Features& features_;
  const Clock& clock_;
  ExactSearch exact_;
  std::vector<Guide> guides_;
  std::vector<std::vector<int>> fixed_orders_;
  int64_t capacity_ = -1, fixed_decisions_ = 0;
  int runs_ = 0, fixed_runs_ = 0;
};

}  // namespace planner
