#include "instruction.h"

#include <algorithm>

#include "instruction_groups.h"

namespace hnpu {
namespace {

template <class Flag>
void check_flag(const Flag& v, const Spec& spec) {
  if (static_cast<int>(v.source) == static_cast<int>(v.target))
    fail(HNPU_ERROR_STREAM, "source and target are the same queue: a queue is in order by itself");
  if (v.event >= spec.events)
    fail(HNPU_ERROR_RANGE, "event ", v.event, " is out of range: there are ", spec.events);
}

double byte_cost(uint8_t memory, const Energy& e) {
  return memory == kDram ? e.dram_byte : memory == HNPU_L1 ? e.l1_byte : memory == HNPU_UB ? e.ub_byte : e.l0_byte;
}

}  // namespace

void check_one(const SetFlag& v, const Spec& s) { check_flag(v, s); }
void check_one(const WaitFlag& v, const Spec& s) { check_flag(v, s); }
void check_one(const Barrier&, const Spec&) {}
int accesses_one(const SetFlag&, Access*) { return 0; }
int accesses_one(const WaitFlag&, Access*) { return 0; }
int accesses_one(const Barrier&, Access*) { return 0; }
Cost cost_one(const SetFlag&, const Spec&) { return {}; }
Cost cost_one(const WaitFlag&, const Spec&) { return {}; }
Cost cost_one(const Barrier&, const Spec&) { return {}; }

double Cost::cycles(const Spec& spec) const {
  return std::max({unit, static_cast<double>(dram) / spec.dram_bytes_per_cycle, l1, ub});
}

int accesses(const uint8_t* code, Access* out) {
  return visit(code, [&](const auto& v) { return accesses_one(v, out); });
}

void check(const uint8_t* code, const Spec& spec) {
  visit(code, [&](const auto& v) { check_one(v, spec); });
  Access found[kMostAccesses];
  int n = accesses(code, found);
  for (int i = 0; i < n; i++) {
    const Access& a = found[i];
    if (a.memory == kDram) {
      if (a.low < 0) fail(HNPU_ERROR_RANGE, "reaches ", -a.low, " bytes before its DRAM slot");
    } else if (a.low < 0 || a.high > static_cast<int64_t>(spec.scratchpad[a.memory])) {
      fail(HNPU_ERROR_RANGE, "bytes ", a.low, " to ", a.high, " are out of range: ",
           kScratchpadNames[a.memory], " has ", spec.scratchpad[a.memory]);
    }
  }
}

Cost cost(const uint8_t* code, const Spec& spec) {
  Cost c = visit(code, [&](const auto& v) { return cost_one(v, spec); });
  Access found[kMostAccesses];
  int n = accesses(code, found);
  for (int i = 0; i < n; i++) {
    double bytes = static_cast<double>(found[i].run);
    for (int d = 0; d < found[i].rank; d++) bytes *= static_cast<double>(found[i].extent[d]);
    if (found[i].memory == kDram) bytes = static_cast<double>(c.dram);
    c.joule += bytes * byte_cost(found[i].memory, spec.energy);
  }
  c.joule = 1e-12 * (c.joule + spec.energy.instruction);
  return c;
}

}  // namespace hnpu
