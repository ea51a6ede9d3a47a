// A command stream, checked against a machine and ready to run.
#pragma once
#include <string>
#include <vector>

#include "instruction.h"
#include "spec.h"

namespace hnpu {

struct SlotInfo {
  std::string name;
  uint64_t bytes;
  SlotKind kind;
};

struct Step {
  const uint8_t* code;
  int8_t queue;  // kQueueAll for barriers
  Cost cost;
};

struct Program {
  std::vector<uint8_t> stream;
  std::vector<SlotInfo> slots;
  std::vector<std::string> tags;
  std::vector<Step> steps;

  // "instruction 7 at offset 1234 (mmad ...)"
  std::string name(size_t index) const;
};

// Throws Fault with the offset and the reason.
void load_program(Program& program, const void* stream, uint64_t bytes, const Spec& spec);

}  // namespace hnpu
