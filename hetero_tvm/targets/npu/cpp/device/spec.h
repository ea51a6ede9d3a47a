// What the machine can do, from the "key=value" lines that NPUSpec.to_config writes.
#pragma once
#include <cstdint>
#include <string>

#include "hnpu.h"

namespace hnpu {

struct Energy {  // picojoules
  double mac_f16, mac_i8, vector_element, vector_transcendental;
  double l0_byte, l1_byte, ub_byte, dram_byte, instruction, static_per_cycle;
};

struct Spec {
  std::string name;
  uint32_t block_m, block_n, block_k, vector_lanes;
  uint64_t scratchpad[HNPU_SCRATCHPADS];
  uint32_t l1_to_l0a, l1_to_l0b, l0c_to_ub, ub_bytes_per_cycle;
  double clock_hz, dram_bytes_per_cycle;
  uint32_t dram_latency, issue_cycles, transcendental_divisor, dma_outstanding, events, alignment;
  uint64_t dram_bytes;
  Energy energy;
};

// Throws Fault for unknown, missing, repeated or invalid keys.
Spec parse_spec(const char* config);

}  // namespace hnpu
