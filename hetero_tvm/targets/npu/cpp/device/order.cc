// Vector clocks over the queues.  Counting events pair the i-th set with the i-th wait, and every queue
// is in order, so which instructions happen before which does not depend on the interleaving: any one
// that the flags allow finds every race and every deadlock.  Regions are compared byte for byte.
#include "order.h"

#include <algorithm>
#include <array>
#include <deque>

#include "fault.h"

namespace hnpu {
namespace {

// Far more comparisons than any program with sane synchronisation asks for; bounds hostile ones.
constexpr uint64_t kMostSteps = 2'000'000'000;
constexpr size_t kPruneEvery = 4096;

// Component p: how many instructions of queue p are known to have completed.
using Clock = std::array<uint32_t, HNPU_QUEUES>;

void join(Clock& into, const Clock& from) {
  for (int i = 0; i < HNPU_QUEUES; i++) into[i] = std::max(into[i], from[i]);
}

// Accesses of one queue to one memory, in its order.
class Log {
 public:
  void add(const Access& access, uint32_t epoch, uint32_t step) { entries_.push_back({access, epoch, step}); }

  // The step of an entry later than `known` that meets `access`, or -1.
  int64_t conflict(const Access& access, uint32_t known, uint64_t& work) const {
    auto entry = std::upper_bound(entries_.begin(), entries_.end(), known,
                                  [](uint32_t epoch, const Entry& e) { return epoch < e.epoch; });
    work += static_cast<uint64_t>(entries_.end() - entry);
    for (; entry != entries_.end(); ++entry)
      if (overlap(entry->access, access, work)) return entry->step;
    return -1;
  }

  void forget(uint32_t known) {
    entries_.erase(std::remove_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.epoch <= known; }),
                   entries_.end());
  }

 private:
  struct Entry {
    Access access;
    uint32_t epoch, step;
  };
  std::vector<Entry> entries_;
};

class Checker {
 public:
  Checker(const Program& program, const std::vector<int64_t>& bases) : program_(program), bases_(bases) {
    uint32_t events = 0;
    for (size_t i = 0; i < program.steps.size(); i++) {
      const uint8_t* code = program.steps[i].code;
      if (code[0] == SetFlag::kOpcode) events = std::max<uint32_t>(events, SetFlag(code).event + 1u);
      if (code[0] == WaitFlag::kOpcode) events = std::max<uint32_t>(events, WaitFlag(code).event + 1u);
      for (int q = 0; q < HNPU_QUEUES; q++)
        if (program.steps[i].queue == q || program.steps[i].queue == kQueueAll)
          queues_[q].push_back(static_cast<uint32_t>(i));
    }
    events_per_pair_ = events;
    sets_.resize(size_t{HNPU_QUEUES} * HNPU_QUEUES * events);
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int q = 0; q < HNPU_QUEUES; q++)
        while (advance(q)) moved = true;
      moved |= pass_barrier();
    }
    for (int q = 0; q < HNPU_QUEUES; q++)
      if (next_[q] < queues_[q].size()) deadlock();
  }

 private:
  bool advance(int q) {
    if (next_[q] == queues_[q].size()) return false;
    uint32_t step = queues_[q][next_[q]];
    const uint8_t* code = program_.steps[step].code;
    if (code[0] == Barrier::kOpcode) return false;
    if (code[0] == SetFlag::kOpcode) {
      event(SetFlag(code)).push_back(clocks_[q]);
    } else if (code[0] == WaitFlag::kOpcode) {
      std::deque<Clock>& sets = event(WaitFlag(code));
      if (sets.empty()) return false;
      join(clocks_[q], sets.front());
      sets.pop_front();
    } else {
      touch(q, step, code);
    }
    next_[q]++;
    return true;
  }

  bool pass_barrier() {
    for (int q = 0; q < HNPU_QUEUES; q++)
      if (next_[q] == queues_[q].size() || program_.steps[queues_[q][next_[q]]].code[0] != Barrier::kOpcode)
        return false;
    Clock everything{};
    for (const Clock& clock : clocks_) join(everything, clock);
    for (int q = 0; q < HNPU_QUEUES; q++) {
      clocks_[q] = everything;
      next_[q]++;
    }
    return true;
  }

  void touch(int q, uint32_t step, const uint8_t* code) {
    Access found[kMostAccesses];
    int n = accesses(code, found);
    clocks_[q][q]++;
    for (int i = 0; i < n; i++) {
      Access& a = found[i];
      if (a.memory == kDram) {
        a.base += bases_[a.slot];
        a.low += bases_[a.slot];
        a.high += bases_[a.slot];
      }
      for (int other = 0; other < HNPU_QUEUES; other++) {
        if (other == q) continue;
        int64_t meets = writes_[other][a.memory].conflict(a, clocks_[q][other], work_);
        if (meets < 0 && a.write) meets = reads_[other][a.memory].conflict(a, clocks_[q][other], work_);
        if (meets >= 0) race(q, step, other, static_cast<size_t>(meets));
      }
      if (work_ > kMostSteps)
        fail(HNPU_ERROR_UNSUPPORTED, "too many instructions without any order between their queues to check");
      (a.write ? writes_ : reads_)[q][a.memory].add(a, clocks_[q][q], step);
    }
    if (++touched_ % kPruneEvery == 0) prune();
  }

  // What every queue that goes on knows to be complete can no longer conflict.
  void prune() {
    for (int p = 0; p < HNPU_QUEUES; p++) {
      uint32_t known = UINT32_MAX;
      for (int q = 0; q < HNPU_QUEUES; q++)
        if (q != p && next_[q] < queues_[q].size()) known = std::min(known, clocks_[q][p]);
      for (int memory = 0; memory < kMemories; memory++) {
        reads_[p][memory].forget(known);
        writes_[p][memory].forget(known);
      }
    }
  }

  [[noreturn]] void race(int q, uint32_t step, int other, size_t earlier) const {
    fail(HNPU_ERROR_RACE, "data race: ", program_.name(step), " in queue ", kQueueNames[q], " and ",
         program_.name(earlier), " in queue ", kQueueNames[other],
         " touch the same bytes, and no flag or barrier orders them");
  }

  [[noreturn]] void deadlock() const {
    std::string text = "deadlock:";
    for (int q = 0; q < HNPU_QUEUES; q++)
      if (next_[q] < queues_[q].size())
        append(text, " queue ", kQueueNames[q], " waits at ", program_.name(queues_[q][next_[q]]), ";");
    text.back() = '.';
    throw Fault(HNPU_ERROR_DEADLOCK, text);
  }

  template <class Flag>
  std::deque<Clock>& event(const Flag& f) {
    size_t pair = static_cast<size_t>(f.source) * HNPU_QUEUES + static_cast<size_t>(f.target);
    return sets_[pair * events_per_pair_ + f.event];
  }

  static constexpr int kMemories = HNPU_SCRATCHPADS + 1;
  const Program& program_;
  const std::vector<int64_t>& bases_;
  std::vector<uint32_t> queues_[HNPU_QUEUES];
  size_t next_[HNPU_QUEUES] = {};
  Clock clocks_[HNPU_QUEUES] = {};
  size_t events_per_pair_ = 0;
  std::vector<std::deque<Clock>> sets_;
  Log reads_[HNPU_QUEUES][kMemories], writes_[HNPU_QUEUES][kMemories];
  uint64_t work_ = 0;
  size_t touched_ = 0;
};

}  // namespace

void check_order(const Program& program, const std::vector<int64_t>& slot_bases) {
  Checker(program, slot_bases).run();
}

}  // namespace hnpu
