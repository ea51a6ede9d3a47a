#include "races.h"

#include <algorithm>

#include "fault.h"

namespace hnpu {
namespace {

// Far more comparisons than any program with sane synchronisation asks for; bounds hostile ones.
constexpr uint64_t kMostSteps = 2'000'000'000;

}  // namespace

void Races::Log::add(const Access& a, uint32_t at, uint32_t index) {
  low.push_back(a.low);
  high.push_back(a.high);
  epoch.push_back(at);
  instruction.push_back(index);
  access.push_back(a);
}

int64_t Races::Log::conflict(const Access& a, uint32_t known, uint64_t& steps) const {
  size_t first = std::upper_bound(epoch.begin(), epoch.end(), known) - epoch.begin();
  steps += epoch.size() - first;
  for (size_t i = first; i < epoch.size(); i++)
    if (low[i] < a.high && a.low < high[i] && overlap(access[i], a, steps)) return instruction[i];
  return -1;
}

int64_t Races::enter(int queue, const Clock& known, uint32_t instruction, const Access* accesses, int count,
                     const std::vector<int64_t>& slot_bases) {
  for (int i = 0; i < count; i++) {
    Access a = accesses[i];
    if (a.memory == kDram) {
      int64_t base = slot_bases[a.slot];
      a.base += base;
      a.low += base;
      a.high += base;
    }
    for (int other = 0; other < HNPU_QUEUES; other++) {
      if (other == queue) continue;
      int64_t found = writes_[other][a.memory].conflict(a, known[other], steps_);
      if (found < 0 && a.write) found = reads_[other][a.memory].conflict(a, known[other], steps_);
      if (found >= 0) return found;
    }
    if (steps_ > kMostSteps)
      fail(HNPU_ERROR_UNSUPPORTED, "too many instructions without any order between their queues to check");
    (a.write ? writes_ : reads_)[queue][a.memory].add(a, known[queue], instruction);
  }
  return -1;
}

}  // namespace hnpu
