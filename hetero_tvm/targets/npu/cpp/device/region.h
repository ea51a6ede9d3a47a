// Strided regions: costs as the manual defines them, and exact questions about bytes.
#pragma once
#include <cstdint>

#include "isa_table.h"

namespace hnpu {

constexpr int kRank = 4;
constexpr uint8_t kDram = 5;  // after the scratchpads of hnpu.h

// extents, strides in bytes (may be negative), element width; as instructions give them.
struct Box {
  int64_t extent[kRank];
  int64_t stride[kRank];
  int64_t width;
};

// Bytes that an instruction touches, normalised: strides positive and descending, no dimension that
// the run could absorb.
struct Access {
  uint8_t memory;
  bool write;
  uint16_t slot;
  int8_t rank;
  int64_t base, run;
  int64_t extent[kRank], stride[kRank];
  int64_t low, high;  // interval that holds all of it
};

Access make_access(uint8_t memory, uint16_t slot, int64_t base, const Box& box, bool write);
bool overlaps_itself(const Box& box);
int64_t granules(const Box& box);
double bank_cycles(const Box& box, int64_t bytes_per_cycle);

// Whether two accesses share a byte, exactly.  `steps` counts work.
bool overlap(const Access& a, const Access& b, uint64_t& steps);
// The same bytes, element for element.
bool same_region(const Box& a, const Box& b);

// Calls f(first byte, bytes) for every run.
template <class F>
void each_run(const Access& a, F f) {
  int64_t n[kRank] = {1, 1, 1, 1}, s[kRank] = {0, 0, 0, 0};
  for (int i = 0; i < a.rank; i++) n[kRank - a.rank + i] = a.extent[i], s[kRank - a.rank + i] = a.stride[i];
  for (int64_t i = 0; i < n[0]; i++)
    for (int64_t j = 0; j < n[1]; j++)
      for (int64_t k = 0; k < n[2]; k++) {
        int64_t at = a.base + i * s[0] + j * s[1] + k * s[2];
        for (int64_t l = 0; l < n[3]; l++, at += s[3]) f(at, a.run);
      }
}

}  // namespace hnpu
