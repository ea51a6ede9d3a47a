// What is true of an instruction without running it: text, limits, cost, footprint.
// The declarations in isa*.py are the reference; tests compare both sides.
#pragma once
#include <string>

#include "region.h"
#include "spec.h"

namespace hnpu {

struct Cost {
  double unit = 0;      // cycles of the executing unit
  double l1 = 0, ub = 0;  // cycles of all their banks
  uint64_t dram = 0;    // bytes, whole granules
  double macs = 0, elements = 0;
  double joule = 0;
  // Alone on the machine.
  double cycles(const Spec& spec) const;
};

constexpr int kMostAccesses = 5;

// The declaration with this opcode, or null.
const InstructionInfo* find_instruction(uint8_t opcode);
// Length, opcode, field limits, padding.  `left` is what remains of the code.  Throws Fault.
const InstructionInfo& decode_head(const uint8_t* code, uint64_t left);
// As Instruction.to_text in encoding.py.
std::string to_text(const uint8_t* code);
uint16_t tag_of(const uint8_t* code);
// Index of the queue that executes it; kQueueAll for barriers.
int queue_of(const uint8_t* code);

// Footprint; returns the number of accesses.  DRAM addresses count from the slot.
int accesses(const uint8_t* code, Access out[kMostAccesses]);
// Everything that makes it illegal on this machine, except DRAM ranges.  Throws Fault.
void check(const uint8_t* code, const Spec& spec);
Cost cost(const uint8_t* code, const Spec& spec);

inline int width_of(Dtype d) { return d == Dtype::k_i8 ? 1 : d == Dtype::k_f16 || d == Dtype::k_bf16 ? 2 : 4; }

// A source of a vector instruction; dtype 5 is the immediate.
constexpr int kImmediate = 5;
struct Operand {
  int dtype;
  uint32_t address;
  const int32_t* strides;
};
struct VectorOp {
  uint8_t op;
  bool transcendental, integer_op;
  const uint32_t* extents;
  Operand dst;
  Operand src[3];
  int sources;
};
VectorOp view(const Vunary& v);
VectorOp view(const Vbinary& v);
VectorOp view(const Vternary& v);
VectorOp view(const Vreduce& v);
Box box_of(const VectorOp& v, const Operand& o);
// Extents and strides of the result of a reduction.
Box kept(const Vreduce& v);

// The box of load, store and move: what is written, and what of it is read.
template <class Copy>
Box written_box(const Copy& c) {
  Box box;
  for (int i = 0; i < kRank; i++) box.extent[i] = c.extents[i], box.stride[i] = c.dst_strides[i];
  box.width = c.elem;
  return box;
}
template <class Copy>
Box read_box(const Copy& c) {  // an extent is 0 when nothing is read, negative when padding is too large
  Box box;
  for (int i = 0; i < kRank; i++) {
    box.extent[i] = int64_t{c.extents[i]} - c.pad_low[i] - c.pad_high[i];
    box.stride[i] = c.src_strides[i];
  }
  box.width = c.elem;
  return box;
}
inline bool empty(const Box& box) {
  for (int64_t n : box.extent)
    if (n <= 0) return true;
  return false;
}

template <class F>
auto visit(const uint8_t* code, F f) {
  switch (code[0]) {
    case SetFlag::kOpcode: return f(SetFlag(code));
    case WaitFlag::kOpcode: return f(WaitFlag(code));
    case Load::kOpcode: return f(Load(code));
    case Store::kOpcode: return f(Store(code));
    case Move::kOpcode: return f(Move(code));
    case Im2col::kOpcode: return f(Im2col(code));
    case Gather::kOpcode: return f(Gather(code));
    case Mmad::kOpcode: return f(Mmad(code));
    case MoveOut::kOpcode: return f(MoveOut(code));
    case Vunary::kOpcode: return f(Vunary(code));
    case Vbinary::kOpcode: return f(Vbinary(code));
    case Vternary::kOpcode: return f(Vternary(code));
    case Vreduce::kOpcode: return f(Vreduce(code));
    default: return f(Barrier(code));
  }
}

}  // namespace hnpu
