// What the planner's algorithms share: the clock, and a set of buffers with its sections.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <tuple>
#include <vector>

namespace planner {

inline int64_t RoundUp(int64_t value, int64_t to) { return to == 1 ? value : (value + to - 1) / to * to; }

// Time left, and a flag that another thread may set.
class Clock {
 public:
  Clock(double seconds, const volatile int* stop)
      : end_(std::chrono::steady_clock::now() +
             std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds))),
        stop_(stop) {}
  bool Expired() const { return (stop_ && *stop_) || std::chrono::steady_clock::now() >= end_; }

 private:
  std::chrono::steady_clock::time_point end_;
  const volatile int* stop_;
};

struct Item {
  int64_t lower, upper;  // live in [lower, upper)
  int64_t size, align;
  int id;  // index in the caller's arrays
};

// Buffers by index, in sections: the spans between points in time, of which only those are kept
// whose set of live buffers is no subset of a neighbour's (the others can break no limit first).
struct Problem {
  int n = 0, sections = 0;
  int64_t grain = 1;                // greatest common divisor of the alignments
  std::vector<int64_t> size, room;  // room: size rounded up to the grain, what others see of it
  std::vector<int64_t> align;
  std::vector<int64_t> lower, upper;
  std::vector<int> first, last;  // sections [first, last)
  std::vector<std::vector<int>> members;     // section -> buffers
  std::vector<std::vector<int>> neighbours;  // buffer -> buffers live at the same time (maybe empty)
  std::vector<int64_t> load;                 // section -> sum of rooms
  std::vector<int> crossing;                 // section s -> buffers in both s and s + 1
  int64_t bound = 0;                         // no plan has a lower peak
  int64_t pairs = 0;                         // ordered pairs that overlap
};

inline Problem MakeProblem(const std::vector<Item>& items, int64_t pair_limit) {
  Problem p;
  p.n = static_cast<int>(items.size());
  p.grain = 0;
  for (const Item& item : items) p.grain = std::gcd(p.grain, item.align);
  p.grain = std::max<int64_t>(p.grain, 1);
  // Events: a section closes at the first end after a start.
  struct Event {
    int64_t time;
    int start;  // ends (0) go first: ranges are half open
    int item;
  };
  std::vector<Event> events;
  for (int j = 0; j < p.n; ++j) {
    const Item& item = items[j];
    p.size.push_back(item.size);
    p.room.push_back(RoundUp(item.size, p.grain));
    p.align.push_back(item.align);
    p.lower.push_back(item.lower);
    p.upper.push_back(item.upper);
    events.push_back({item.lower, 1, j});
    events.push_back({item.upper, 0, j});
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::tie(a.time, a.start, a.item) < std::tie(b.time, b.start, b.item);
  });
  p.first.assign(p.n, 0);
  p.last.assign(p.n, 0);
  bool grown = false;
  for (const Event& event : events) {
    if (event.start) {
      p.first[event.item] = p.sections;
      grown = true;
    } else {
      if (grown) ++p.sections;
      grown = false;
      p.last[event.item] = p.sections;
    }
  }
  p.load.assign(p.sections, 0);
  p.crossing.assign(p.sections, 0);
  std::vector<int64_t> delta(p.sections + 1, 0), pad(p.sections, 0);
  std::vector<int> count(p.sections + 1, 0), cross(p.sections + 1, 0), starts(p.sections + 1, 0);
  bool padded = false;
  for (int j = 0; j < p.n; ++j) {
    delta[p.first[j]] += p.room[j];
    delta[p.last[j]] -= p.room[j];
    ++count[p.first[j]];
    --count[p.last[j]];
    ++cross[p.first[j]];
    --cross[p.last[j] - 1];
    ++starts[p.first[j]];
    padded = padded || p.room[j] != p.size[j];
  }
  if (padded)
    for (int j = 0; j < p.n; ++j)
      for (int s = p.first[j]; s < p.last[j]; ++s) pad[s] = std::max(pad[s], p.room[j] - p.size[j]);
  int64_t sum = 0, live = 0, joined = 0;
  for (int s = 0; s < p.sections; ++s) {
    p.load[s] = sum += delta[s];
    p.crossing[s] = static_cast<int>(joined += cross[s]);
    // Pairs: the starters of a section with one another and with those live before.
    live += count[s];
    const int64_t fresh = starts[s], before = live - fresh;
    p.pairs += fresh * (fresh - 1) + 2 * fresh * before;
    p.bound = std::max(p.bound, p.load[s] - pad[s]);  // the topmost buffer needs no padding
  }
  if (p.pairs > pair_limit) return p;
  p.members.resize(p.sections);
  for (int j = 0; j < p.n; ++j)
    for (int s = p.first[j]; s < p.last[j]; ++s) p.members[s].push_back(j);
  p.neighbours.resize(p.n);
  for (int s = 0; s < p.sections; ++s)
    for (int j : p.members[s])
      if (p.first[j] == s)
        for (int k : p.members[s])
          if (k != j && (p.first[k] < s || k > j)) {
            p.neighbours[j].push_back(k);
            p.neighbours[k].push_back(j);
          }
  return p;
}

}  // namespace planner
