// The vector unit: limits, footprint, cost.
#include <cmath>

#include "instruction_groups.h"

namespace hnpu {
namespace {

int width_of(int dtype) { return hnpu::width_of(static_cast<Dtype>(dtype)); }
double elements(const VectorOp& v) {
  double n = 1;
  for (int i = 0; i < kRank; i++) n *= v.extents[i];
  return n;
}

void check_vector(const VectorOp& v, const Box& written, const Spec& spec) {
  if (elements(v) > static_cast<double>(spec.scratchpad[HNPU_UB]))
    fail(HNPU_ERROR_RANGE, static_cast<uint64_t>(elements(v)),
         " elements are more than the unified buffer has bytes");
  static const char* const names[3][3][2] = {
      {{"src", "src_strides"}, {nullptr, nullptr}, {nullptr, nullptr}},
      {{"src0", "src0_strides"}, {"src1", "src1_strides"}, {nullptr, nullptr}},
      {{"src0", "src0_strides"}, {"src1", "src1_strides"}, {"src2", "src2_strides"}}};
  aligned("dst", v.dst.address, width_of(v.dst.dtype));
  aligned("dst_strides", v.dst.strides, width_of(v.dst.dtype));
  for (int i = 0; i < v.sources; i++) {
    const Operand& o = v.src[i];
    const char* const* name = names[v.sources - 1][i];
    if (o.dtype == kImmediate) {
      bool zero = o.address == 0;
      for (int d = 0; d < kRank; d++) zero &= o.strides[d] == 0;
      if (!zero) fail(HNPU_ERROR_RANGE, name[0], " is an immediate: its address and strides must be 0");
    } else {
      aligned(name[0], o.address, width_of(o.dtype));
      aligned(name[1], o.strides, width_of(o.dtype));
    }
  }
  if (overlaps_itself(written)) self_overlap("the destination");
  Access target = make_access(HNPU_UB, 0, v.dst.address, written, true);
  for (int i = 0; i < v.sources; i++) {
    const Operand& o = v.src[i];
    if (o.dtype == kImmediate) continue;
    Box read = box_of(v, o);
    if (o.address == v.dst.address && same_region(read, written)) continue;
    uint64_t steps = 0;
    if (overlap(target, make_access(HNPU_UB, 0, o.address, read, false), steps))
      fail(HNPU_ERROR_RANGE, "the destination overlaps ", names[v.sources - 1][i][0],
           " without being the same region");
  }
}

Cost cost_vector(const VectorOp& v, const Spec& spec) {
  Cost c;
  bool wide = width_of(v.dst.dtype) == 4;
  c.ub = bank_cycles(box_of(v, v.dst), spec.ub_bytes_per_cycle);
  for (int i = 0; i < v.sources; i++)
    if (v.src[i].dtype != kImmediate) {
      wide |= width_of(v.src[i].dtype) == 4;
      c.ub += bank_cycles(box_of(v, v.src[i]), spec.ub_bytes_per_cycle);
    }
  double rate = spec.vector_lanes / (wide ? 2.0 : 1.0);
  if (v.transcendental) rate /= spec.transcendental_divisor;
  c.elements = elements(v);
  c.unit = std::ceil(c.elements / rate);
  c.joule = c.elements * (v.transcendental ? spec.energy.vector_transcendental : spec.energy.vector_element);
  return c;
}

int vector_accesses(const VectorOp& v, Access* out) {
  int n = 0;
  for (int i = 0; i < v.sources; i++)
    if (v.src[i].dtype != kImmediate)
      out[n++] = make_access(HNPU_UB, 0, v.src[i].address, box_of(v, v.src[i]), false);
  out[n++] = make_access(HNPU_UB, 0, v.dst.address, box_of(v, v.dst), true);
  return n;
}

void needs_memory(const VectorOp& v) {
  for (int i = 0; i < v.sources; i++)
    if (v.src[i].dtype != kImmediate) return;
  fail(HNPU_ERROR_UNSUPPORTED, "at least one source must be in memory");
}

VectorOp with_flags(VectorOp v, uint32_t transcendental, uint32_t integer) {
  v.transcendental = transcendental >> v.op & 1;
  v.integer_op = integer >> v.op & 1;
  return v;
}

}  // namespace

void check_one(const Vunary& v, const Spec& spec) {
  VectorOp op = view(v);
  if (op.src[0].dtype == kImmediate && (v.op != Vunary::Op::k_copy || v.add != 0))
    fail(HNPU_ERROR_UNSUPPORTED, "an immediate source (its value is mul) needs op=copy and add=0");
  check_vector(op, box_of(op, op.dst), spec);
}

void check_one(const Vbinary& v, const Spec& spec) {
  VectorOp op = view(v);
  needs_memory(op);
  check_vector(op, box_of(op, op.dst), spec);
}

void check_one(const Vternary& v, const Spec& spec) {
  VectorOp op = view(v);
  needs_memory(op);
  check_vector(op, box_of(op, op.dst), spec);
}

void check_one(const Vreduce& v, const Spec& spec) {
  if (v.axes == 0 || v.axes > 15)
    fail(HNPU_ERROR_RANGE, "axes must be a mask from 1 to 15, got ", int{v.axes});
  for (int i = 0; i < kRank; i++)
    if (v.axes >> i & 1 && v.dst_strides[i])
      fail(HNPU_ERROR_RANGE, "dst_strides of reduced axes must be 0");
  check_vector(view(v), kept(v), spec);
}

int accesses_one(const Vunary& v, Access* out) { return vector_accesses(view(v), out); }
int accesses_one(const Vbinary& v, Access* out) { return vector_accesses(view(v), out); }
int accesses_one(const Vternary& v, Access* out) { return vector_accesses(view(v), out); }
int accesses_one(const Vreduce& v, Access* out) {
  int n = vector_accesses(view(v), out) - 1;
  if (v.accumulate == Vreduce::Accumulate::k_yes)
    out[n++] = make_access(HNPU_UB, 0, v.dst, kept(v), false);
  out[n++] = make_access(HNPU_UB, 0, v.dst, kept(v), true);
  return n;
}

Cost cost_one(const Vunary& v, const Spec& s) { return cost_vector(view(v), s); }
Cost cost_one(const Vbinary& v, const Spec& s) { return cost_vector(view(v), s); }
Cost cost_one(const Vternary& v, const Spec& s) { return cost_vector(view(v), s); }
Cost cost_one(const Vreduce& v, const Spec& s) {
  Cost c = cost_vector(view(v), s);
  c.unit += std::ceil(std::log2(static_cast<double>(s.vector_lanes)));
  return c;
}

VectorOp view(const Vunary& v) {
  VectorOp r{static_cast<uint8_t>(v.op), false, false, v.extents,
             {static_cast<int>(v.dst_dtype), v.dst, v.dst_strides},
             {{static_cast<int>(v.src_dtype), v.src, v.src_strides}, {}, {}}, 1};
  return with_flags(r, Vunary::kTranscendental, Vunary::kInteger);
}

VectorOp view(const Vbinary& v) {
  VectorOp r{static_cast<uint8_t>(v.op), false, false, v.extents,
             {static_cast<int>(v.dst_dtype), v.dst, v.dst_strides},
             {{static_cast<int>(v.src0_dtype), v.src0, v.src0_strides},
              {static_cast<int>(v.src1_dtype), v.src1, v.src1_strides}, {}}, 2};
  return with_flags(r, Vbinary::kTranscendental, Vbinary::kInteger);
}

VectorOp view(const Vternary& v) {
  VectorOp r{static_cast<uint8_t>(v.op), false, false, v.extents,
             {static_cast<int>(v.dst_dtype), v.dst, v.dst_strides},
             {{static_cast<int>(v.src0_dtype), v.src0, v.src0_strides},
              {static_cast<int>(v.src1_dtype), v.src1, v.src1_strides},
              {static_cast<int>(v.src2_dtype), v.src2, v.src2_strides}}, 3};
  return with_flags(r, Vternary::kTranscendental, Vternary::kInteger);
}

VectorOp view(const Vreduce& v) {
  VectorOp r{static_cast<uint8_t>(v.op), false, false, v.extents,
             {static_cast<int>(v.dst_dtype), v.dst, v.dst_strides},
             {{static_cast<int>(v.src_dtype), v.src, v.src_strides}, {}, {}}, 1};
  return with_flags(r, Vreduce::kTranscendental, Vreduce::kInteger);
}

Box box_of(const VectorOp& v, const Operand& o) {
  Box box;
  for (int i = 0; i < kRank; i++) box.extent[i] = v.extents[i], box.stride[i] = o.strides[i];
  box.width = width_of(o.dtype);
  return box;
}

Box kept(const Vreduce& v) {
  Box box;
  for (int i = 0; i < kRank; i++) {
    bool reduced = v.axes >> i & 1;
    box.extent[i] = reduced ? 1 : v.extents[i];
    box.stride[i] = reduced ? 0 : v.dst_strides[i];
  }
  box.width = width_of(static_cast<int>(v.dst_dtype));
  return box;
}

}  // namespace hnpu
