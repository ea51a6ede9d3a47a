// Data races by happens-before: vector clocks over the queues, exact on bytes, whatever the timing.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "hnpu.h"
#include "region.h"

namespace hnpu {

// Component p: how many instructions of queue p are known to have completed.
using Clock = std::array<uint32_t, HNPU_QUEUES>;

class Races {
 public:
  // Call once per instruction, in an order that happens-before allows.  Returns the index of an
  // earlier instruction in conflict with it, or -1.
  int64_t enter(int queue, const Clock& known, uint32_t instruction, const Access* accesses, int count,
                const std::vector<int64_t>& slot_bases);

 private:
  struct Log {  // of one queue in one memory; parallel arrays, in order of time
    std::vector<int64_t> low, high;
    std::vector<uint32_t> epoch, instruction;
    std::vector<Access> access;
    void add(const Access& a, uint32_t at, uint32_t index);
    // An entry later than `known` that meets `a`, or -1.
    int64_t conflict(const Access& a, uint32_t known, uint64_t& steps) const;
  };
  static constexpr int kMemories = HNPU_SCRATCHPADS + 1;
  Log reads_[HNPU_QUEUES][kMemories], writes_[HNPU_QUEUES][kMemories];
  uint64_t steps_ = 0;
};

}  // namespace hnpu
