// Offsets for buffers with known live ranges in one arena: split, greedy, local and exact search.
//
// Spans of time without a common buffer are planned one by one, and a buffer that overlaps all
// others goes to the bottom (in any plan it can be slid there, lifting what was under it).  What
// is left are leaves; the work always goes to the leaf with the highest peak.

#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "planner_leaf.h"
#include "planner_ties.h"

namespace planner {
namespace {

// Up to so many buffers no plan is worse than greedy by size, however that orders equal ones: each takes
// time in the square of their number, and the clock has stopped by then.
constexpr int64_t kTiesChecked = 5000;

struct Group {
  std::vector<Item> items;
  int64_t base;
};

// Appends the parts of `group` that no buffer joins, by time.
void SplitByTime(const Group& group, std::vector<Group>* parts) {
  std::vector<Item> items = group.items;
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.lower < b.lower; });
  int64_t end = 0;
  for (const Item& item : items) {
    if (parts->empty() || item.lower >= end) {
      end = item.upper;
      parts->push_back({{}, group.base});
    }
    parts->back().items.push_back(item);
    end = std::max(end, item.upper);
  }
}

// Moves buffers that overlap all others to the bottom; false when there is none.
bool TakeFoundation(Group* group, int64_t* offsets) {
  const auto& items = group->items;
  if (items.size() < 2) return false;
  int64_t earliest_end = std::numeric_limits<int64_t>::max();
  int64_t latest_start = std::numeric_limits<int64_t>::min();
  for (const Item& item : items) {
    // With mixed alignments what lies above might have to move by more than this size.
    if (item.align != items[0].align) return false;
    earliest_end = std::min(earliest_end, item.upper);
    latest_start = std::max(latest_start, item.lower);
  }
  std::vector<Item> rest;
  for (const Item& item : items) {
    // A size that is no multiple of the alignment is worth more on top, where it needs no padding.
    if (item.lower < earliest_end && item.upper > latest_start && item.size % item.align == 0) {
      offsets[item.id] = group->base;
      group->base += item.size;
    } else {
      rest.push_back(item);
    }
  }
  const bool taken = rest.size() < items.size();
  group->items = std::move(rest);
  return taken;
}

std::vector<Group> Split(std::vector<Item> items, int64_t* offsets, int64_t* bound) {
  std::vector<Group> leaves, open{{std::move(items), 0}};
  while (!open.empty()) {
    std::vector<Group> parts;
    const Group group = std::move(open.back());
    open.pop_back();
    SplitByTime(group, &parts);
    for (Group& part : parts) {
      if (!TakeFoundation(&part, offsets)) {
        leaves.push_back(std::move(part));
      } else {
        *bound = std::max(*bound, part.base);
        if (!part.items.empty()) open.push_back(std::move(part));
      }
    }
  }
  return leaves;
}

void PlanMemory(int64_t count, const int64_t* lower, const int64_t* upper, const int64_t* size, const int64_t* align,
                int64_t capacity, double seconds, uint64_t seed, const volatile int* stop, int64_t* offsets,
                int64_t* result) {
  const Clock clock(seconds, stop);
  std::vector<Item> items;
  for (int64_t i = 0; i < count; ++i) items.push_back({lower[i], upper[i], size[i], align[i], static_cast<int>(i)});
  // The result must not depend on the order in which the caller happens to name the buffers.
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return std::tie(a.lower, a.upper, a.size, a.align) < std::tie(b.lower, b.upper, b.size, b.align);
  });
  int64_t floor = 0;  // no plan has a lower peak
  std::vector<Group> groups = Split(items, offsets, &floor);
  std::vector<std::unique_ptr<Leaf>> leaves;
  for (const Group& group : groups) {
    leaves.push_back(std::make_unique<Leaf>(group.items, group.base, seed + leaves.size(), clock));
    floor = std::max(floor, group.base + leaves.back()->bound());
  }
  // No leaf need go lower than this.
  auto goal = [&](const Leaf& leaf) {
    return (capacity < 0 ? floor + leaf.slack() : std::max(floor, capacity)) - leaf.base();
  };
  for (auto& leaf : leaves) leaf->Greedy(goal(*leaf));
  while (!clock.Expired() && (capacity < 0 || floor <= capacity)) {
    Leaf* worst = nullptr;
    for (auto& leaf : leaves)
      if (leaf->peak() > goal(*leaf) && (!worst || leaf->base() + leaf->peak() > worst->base() + worst->peak()))
        worst = leaf.get();
    if (!worst) break;
    worst->Step(goal(*worst), capacity >= 0);
    floor = std::max(floor, worst->base() + worst->bound());
  }
  int64_t peak = 0, decisions = 0;
  int method = kNone;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const Leaf& leaf = *leaves[i];
    for (size_t j = 0; j < groups[i].items.size(); ++j)
      offsets[groups[i].items[j].id] = leaf.base() + leaf.offsets()[j];
    decisions += leaf.decisions();
    method = std::max<int>(method, leaf.method());
  }
  for (int64_t i = 0; i < count; ++i) peak = std::max(peak, offsets[i] + size[i]);
  if (peak > floor && peak > capacity && count <= kTiesChecked) {
    const int64_t lower_peak = TakeBestOfTies(items, peak, offsets);
    if (lower_peak < peak) method = kGreedy;
    peak = lower_peak;
  }
  result[0] = peak;
  result[1] = floor;
  result[2] = method;
  result[3] = decisions;
}

}  // namespace
}  // namespace planner

// Plans `count` buffers, all with upper > lower, size > 0, align > 0 (a power of two).
//
//   capacity   stop at the first plan within it; negative: look for the lowest peak
//   stop       set to non-zero by another thread to end early
//   offsets    out: the best plan found (always a valid one)
//   result     out: peak, proven lower bound of the peak, method, decisions of the exact search
//
// Returns 0, or 1 when memory ran out.  With a capacity, a proven bound above it says that no plan fits.
extern "C" int hetero_plan_memory(int64_t count, const int64_t* lower, const int64_t* upper, const int64_t* size,
                                  const int64_t* align, int64_t capacity, double seconds, uint64_t seed,
                                  const volatile int* stop, int64_t* offsets, int64_t* result) {
  try {
    planner::PlanMemory(count, lower, upper, size, align, capacity, seconds, seed, stop, offsets, result);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}
