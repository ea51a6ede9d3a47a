// Limits, footprint and cost per instruction, one file per group as in isa_*.py; and what they share.
#pragma once
#include "fault.h"
#include "instruction.h"

namespace hnpu {

void check_one(const SetFlag& v, const Spec& spec);
int accesses_one(const SetFlag& v, Access* out);
Cost cost_one(const SetFlag& v, const Spec& spec);
void check_one(const WaitFlag& v, const Spec& spec);
int accesses_one(const WaitFlag& v, Access* out);
Cost cost_one(const WaitFlag& v, const Spec& spec);
void check_one(const Barrier& v, const Spec& spec);
int accesses_one(const Barrier& v, Access* out);
Cost cost_one(const Barrier& v, const Spec& spec);
void check_one(const Load& v, const Spec& spec);
int accesses_one(const Load& v, Access* out);
Cost cost_one(const Load& v, const Spec& spec);
void check_one(const Store& v, const Spec& spec);
int accesses_one(const Store& v, Access* out);
Cost cost_one(const Store& v, const Spec& spec);
void check_one(const Move& v, const Spec& spec);
int accesses_one(const Move& v, Access* out);
Cost cost_one(const Move& v, const Spec& spec);
void check_one(const Im2col& v, const Spec& spec);
int accesses_one(const Im2col& v, Access* out);
Cost cost_one(const Im2col& v, const Spec& spec);
void check_one(const Gather& v, const Spec& spec);
int accesses_one(const Gather& v, Access* out);
Cost cost_one(const Gather& v, const Spec& spec);
void check_one(const Mmad& v, const Spec& spec);
int accesses_one(const Mmad& v, Access* out);
Cost cost_one(const Mmad& v, const Spec& spec);
void check_one(const MoveOut& v, const Spec& spec);
int accesses_one(const MoveOut& v, Access* out);
Cost cost_one(const MoveOut& v, const Spec& spec);
void check_one(const Vunary& v, const Spec& spec);
int accesses_one(const Vunary& v, Access* out);
Cost cost_one(const Vunary& v, const Spec& spec);
void check_one(const Vbinary& v, const Spec& spec);
int accesses_one(const Vbinary& v, Access* out);
Cost cost_one(const Vbinary& v, const Spec& spec);
void check_one(const Vternary& v, const Spec& spec);
int accesses_one(const Vternary& v, Access* out);
Cost cost_one(const Vternary& v, const Spec& spec);
void check_one(const Vreduce& v, const Spec& spec);
int accesses_one(const Vreduce& v, Access* out);
Cost cost_one(const Vreduce& v, const Spec& spec);

inline int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline Box row_box(int64_t rows, int64_t pitch, int64_t bytes) {
  return {{1, 1, 1, rows}, {0, 0, 0, pitch}, bytes};
}
inline Box plane_box(int64_t m, int64_t n, int64_t row, int64_t column, int64_t width) {
  return {{1, 1, m, n}, {0, 0, row, column}, width};
}

inline void aligned(const char* what, int64_t value, int64_t to) {
  if (value % to) fail(HNPU_ERROR_ALIGNMENT, what, " is misaligned: ", value, " is not a multiple of ", to);
}
inline void aligned(const char* what, const int32_t* strides, int64_t to) {
  for (int i = 0; i < kRank; i++)
    if (strides[i] % to)
      fail(HNPU_ERROR_ALIGNMENT, what, " is misaligned: ", strides[i], " is not a multiple of ", to);
}
inline void fits_element(uint8_t elem, uint32_t fill) {
  if (elem != 1 && elem != 2 && elem != 4)
    fail(HNPU_ERROR_UNSUPPORTED, "elem must be 1, 2 or 4 bytes, got ", int{elem});
  if (elem < 4 && fill >> (8 * elem)) fail(HNPU_ERROR_RANGE, "fill does not fit ", int{elem}, " bytes");
}
[[noreturn]] inline void self_overlap(const char* what) { fail(HNPU_ERROR_RANGE, what, " overlaps itself"); }

}  // namespace hnpu
