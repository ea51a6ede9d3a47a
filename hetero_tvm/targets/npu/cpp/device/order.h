// Whether a program's flags and barriers order all that must be ordered.  No time is involved: what is
// found here is wrong on every machine, however fast its parts are.
#pragma once
#include <cstdint>
#include <vector>

#include "program.h"

namespace hnpu {

// Throws Fault for a data race (two queues touch the same bytes, one writes, nothing orders them) and
// for a deadlock.  slot_bases: where slots lie, so that those that share memory meet.
void check_order(const Program& program, const std::vector<int64_t>& slot_bases);

}  // namespace hnpu
