// Greedy by size over a whole problem, whichever of two equal buffers goes first.
//
// The leaves start with one such order each.  Their own ties are theirs alone, and what was split off
// never was in any order: a simple planner with other ties can come out lower where the search ran out
// of time.  Five first fits are cheap, and no plan is worse than those.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <tuple>
#include <vector>

#include "planner_first_fit.h"
#include "planner_problem.h"

namespace planner {

// Takes over the offsets (by item id) of the lowest of these plans when it ends below `peak`; returns the lower peak.
inline int64_t TakeBestOfTies(const std::vector<Item>& items, int64_t peak, int64_t* offsets) {
  const Problem problem = MakeProblem(items, 0);
  FirstFit fit(problem);
  const std::function<int64_t(const Item&)> ties[] = {
      [](const Item& item) { return item.lower; },
      [](const Item& item) { return -item.upper; },
      [](const Item& item) { return item.lower - item.upper; },
      [](const Item& item) { return item.upper - item.lower; },
      [](const Item& item) { return static_cast<int64_t>(item.id); },
  };
  std::vector<int> order(items.size());
  for (const auto& tie : ties) {
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int a, int b) {
      return std::make_tuple(-items[a].size, tie(items[a]), items[a].id) <
             std::make_tuple(-items[b].size, tie(items[b]), items[b].id);
    });
    const int64_t reached = fit.Run(order, false, peak);
    if (reached >= peak) continue;
    peak = reached;
    for (size_t j = 0; j < items.size(); ++j) offsets[items[j].id] = fit.offsets()[j];
  }
  return peak;
}

}  // namespace planner
