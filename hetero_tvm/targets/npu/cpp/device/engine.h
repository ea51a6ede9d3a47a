// Runs a program: queues, flags, time, and (when asked) numbers.
#pragma once
#include <vector>

#include "hnpu.h"
#include "memory.h"
#include "program.h"

namespace hnpu {

struct Result {
  hnpu_counters counters{};
  std::vector<hnpu_trace_entry> trace;
};

// Throws Fault; the machine must have the program's slots.
void run_program(const Program& program, Machine& machine, bool trace, Result& result);

}  // namespace hnpu
