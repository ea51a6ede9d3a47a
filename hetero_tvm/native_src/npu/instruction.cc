#include "instruction.h"

#include <algorithm>
#include <cmath>

#include "fault.h"

namespace hnpu {
namespace {

int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

Box row_box(int64_t rows, int64_t pitch, int64_t bytes) {
  return {{1, 1, 1, rows}, {0, 0, 0, pitch}, bytes};
}
Box plane_box(int64_t m, int64_t n, int64_t row, int64_t column, int64_t width) {
  return {{1, 1, m, n}, {0, 0, row, column}, width};
}

void aligned(const char* what, int64_t value, int64_t to) {
  if (value % to) fail(HNPU_ERROR_ALIGNMENT, what, " is misaligned: ", value, " is not a multiple of ", to);
}
void aligned(const char* what, const int32_t* strides, int64_t to) {
  for (int i = 0; i < kRank; i++)
    if (strides[i] % to)
      fail(HNPU_ERROR_ALIGNMENT, what, " is misaligned: ", strides[i], " is not a multiple of ", to);
}
void fits_element(uint8_t elem, uint32_t fill) {
  if (elem != 1 && elem != 2 && elem != 4)
    fail(HNPU_ERROR_UNSUPPORTED, "elem must be 1, 2 or 4 bytes, got ", int{elem});
  if (elem < 4 && fill >> (8 * elem)) fail(HNPU_ERROR_RANGE, "fill does not fit ", int{elem}, " bytes");
}
[[noreturn]] void self_overlap(const char* what) { fail(HNPU_ERROR_RANGE, what, " overlaps itself"); }

// --- data movement ---

struct Place {
  uint8_t memory;
  uint16_t slot;
};
Place source(const Load& v) { return {kDram, v.src_slot}; }
Place target(const Load& v) { return {v.dst_mem == Load::DstMem::k_l1 ? uint8_t{HNPU_L1} : uint8_t{HNPU_UB}, 0}; }
Place source(const Store&) { return {HNPU_UB, 0}; }
Place target(const Store& v) {
  if (v.dst_mem == Store::DstMem::k_dram) return {kDram, v.dst_slot};
  return {HNPU_L1, 0};
}
Place source(const Move&) { return {HNPU_L1, 0}; }
Place target(const Move& v) {
  return {v.dst_mem == Move::DstMem::k_l0a ? uint8_t{HNPU_L0A} : uint8_t{HNPU_L0B}, 0};
}

template <class Copy>
void check_copy(const Copy& v, const Spec& spec) {
  fits_element(v.elem, v.fill);
  Box read = read_box(v), written = written_box(v);
  for (int64_t n : read.extent)
    if (n < 0) fail(HNPU_ERROR_RANGE, "padding exceeds the extents");
  if (overlaps_itself(written)) self_overlap("the destination");
  uint8_t memory = target(v).memory;
  aligned("src", static_cast<int64_t>(v.src), v.elem);
  aligned("dst", static_cast<int64_t>(v.dst),
          memory == HNPU_L0A || memory == HNPU_L0B ? spec.alignment : v.elem);
  aligned("src_strides", v.src_strides, v.elem);
  aligned("dst_strides", v.dst_strides, v.elem);
}

template <class Copy>
int copy_accesses(const Copy& v, Access* out) {
  int n = 0;
  Place s = source(v), t = target(v);
  Box read = read_box(v);
  if (!empty(read)) out[n++] = make_access(s.memory, s.slot, static_cast<int64_t>(v.src), read, false);
  out[n++] = make_access(t.memory, t.slot, static_cast<int64_t>(v.dst), written_box(v), true);
  return n;
}

template <class Copy>
int64_t read_bytes(const Copy& v) {
  Box box = read_box(v);
  return empty(box) ? 0 : granules(box) * kBankBytes;
}
template <class Copy>
double read_banks(const Copy& v, int64_t bytes_per_cycle) {
  Box box = read_box(v);
  return empty(box) ? 0 : bank_cycles(box, bytes_per_cycle);
}

void check_one(const Load& v, const Spec& s) { check_copy(v, s); }
void check_one(const Move& v, const Spec& s) { check_copy(v, s); }
void check_one(const Store& v, const Spec& s) {
  check_copy(v, s);
  if (v.dst_mem == Store::DstMem::k_l1 && v.dst_slot)
    fail(HNPU_ERROR_RANGE, "dst_slot must be 0 for a destination in L1");
}
int accesses_one(const Load& v, Access* out) { return copy_accesses(v, out); }
int accesses_one(const Store& v, Access* out) { return copy_accesses(v, out); }
int accesses_one(const Move& v, Access* out) { return copy_accesses(v, out); }

Cost cost_one(const Load& v, const Spec& spec) {
  Cost c;
  c.dram = read_bytes(v);
  if (v.dst_mem == Load::DstMem::k_l1)
    c.l1 = bank_cycles(written_box(v), spec.l1_to_l0a);
  else
    c.ub = bank_cycles(written_box(v), spec.ub_bytes_per_cycle);
  return c;
}
Cost cost_one(const Store& v, const Spec& spec) {
  Cost c;
  int64_t written = granules(written_box(v)) * kBankBytes;
  c.ub = read_banks(v, spec.ub_bytes_per_cycle);
  if (v.dst_mem == Store::DstMem::k_dram) {
    c.dram = written;
  } else {
    c.unit = static_cast<double>(std::max(written, read_bytes(v))) / spec.l0c_to_ub;
    c.l1 = bank_cycles(written_box(v), spec.l1_to_l0a);
  }
  return c;
}
Cost cost_one(const Move& v, const Spec& spec) {
  Cost c;
  int64_t bytes = std::max(read_bytes(v), granules(written_box(v)) * kBankBytes);
  c.unit = static_cast<double>(bytes) / (v.dst_mem == Move::DstMem::k_l0a ? spec.l1_to_l0a : spec.l1_to_l0b);
  c.l1 = read_banks(v, spec.l1_to_l0a);
  return c;
}

void check_one(const Im2col& v, const Spec& spec) {
  fits_element(v.elem, v.fill);
  aligned("src", v.src, v.elem);
  aligned("row_pitch", v.row_pitch, v.elem);
  aligned("pixel_pitch", v.pixel_pitch, v.elem);
  aligned("dst_pitch", v.dst_pitch, v.elem);
  aligned("dst", v.dst, spec.alignment);
  if (v.m > 1 && v.dst_pitch < uint64_t{v.k} * v.elem) self_overlap("the destination");
  uint64_t taps = uint64_t{v.kernel_h} * v.kernel_w * v.channels;
  if (uint64_t{v.k_start} + v.k > taps)
    fail(HNPU_ERROR_RANGE, "k_start + k is ", uint64_t{v.k_start} + v.k, ", a patch has ", taps, " elements");
}
int accesses_one(const Im2col& v, Access* out) {
  Box image = {{1, 1, v.height, v.width}, {0, 0, v.row_pitch, v.pixel_pitch}, int64_t{v.channels} * v.elem};
  out[0] = make_access(HNPU_L1, 0, v.src, image, false);
  out[1] = make_access(HNPU_L0A, 0, v.dst, row_box(v.m, v.dst_pitch, int64_t{v.k} * v.elem), true);
  return 2;
}
Cost cost_one(const Im2col& v, const Spec& spec) {
  int64_t row = int64_t{v.k} * v.elem, pixel = int64_t{v.channels} * v.elem;
  int64_t run = v.pixel_pitch == pixel && v.dilation_w == 1 ? pixel * v.kernel_w : pixel;
  int64_t pieces = v.m * std::max(up(row, kBankBytes), up(row, run) * up(std::min(run, row), kBankBytes));
  Cost c;
  c.unit = c.l1 = static_cast<double>(pieces * kBankBytes) / spec.l1_to_l0a;
  return c;
}

void check_one(const Gather& v, const Spec&) {
  aligned("indices", v.indices, 4);
  if (v.count > 1 && v.dst_pitch < v.row_bytes) self_overlap("the destination");
}
uint8_t target_of(const Gather& v) { return v.dst_mem == Gather::DstMem::k_l1 ? HNPU_L1 : HNPU_UB; }
int accesses_one(const Gather& v, Access* out) {
  out[0] = make_access(HNPU_UB, 0, v.indices, row_box(v.count, 4, 4), false);
  out[1] = make_access(kDram, v.src_slot, static_cast<int64_t>(v.src),
                       row_box(v.rows, v.src_pitch, v.row_bytes), false);
  out[2] = make_access(target_of(v), 0, v.dst, row_box(v.count, v.dst_pitch, v.row_bytes), true);
  return 3;
}
Cost cost_one(const Gather& v, const Spec& spec) {
  Cost c;
  Box written = row_box(v.count, v.dst_pitch, v.row_bytes);
  c.dram = int64_t{v.count} * up(v.row_bytes, kBankBytes) * kBankBytes;
  (target_of(v) == HNPU_L1 ? c.l1 : c.ub) =
      bank_cycles(written, target_of(v) == HNPU_L1 ? spec.l1_to_l0a : spec.ub_bytes_per_cycle);
  return c;
}

// --- matrix unit ---

struct Tile {
  const char* name;
  int64_t rows, bytes, pitch, address, width;
};
void tiles(const Mmad& v, Tile out[3]) {
  int64_t width = v.dtype == Mmad::Dtype::k_i8 ? 1 : 2;
  bool at = v.a_transposed == Mmad::ATransposed::k_yes, bt = v.b_transposed == Mmad::BTransposed::k_yes;
  out[0] = {"a", at ? v.k : v.m, (at ? v.m : v.k) * width, v.a_pitch, v.a, width};
  out[1] = {"b", bt ? v.n : v.k, (bt ? v.k : v.n) * width, v.b_pitch, v.b, width};
  out[2] = {"c", v.m, int64_t{v.n} * 4, v.c_pitch, v.c, 4};
}
void check_one(const Mmad& v, const Spec& spec) {
  Tile t[3];
  tiles(v, t);
  for (const Tile& tile : t) {
    aligned(tile.name, tile.address, spec.alignment);
    aligned((std::string(tile.name) + "_pitch").c_str(), tile.pitch, tile.width);
    if (tile.rows > 1 && tile.pitch < tile.bytes) self_overlap(tile.name);
  }
}
int accesses_one(const Mmad& v, Access* out) {
  Tile t[3];
  tiles(v, t);
  const uint8_t memory[] = {HNPU_L0A, HNPU_L0B, HNPU_L0C};
  int n = 0;
  for (int i = 0; i < 3; i++) {
    Box box = row_box(t[i].rows, t[i].pitch, t[i].bytes);
    if (i < 2 || v.accumulate == Mmad::Accumulate::k_yes)
      out[n++] = make_access(memory[i], 0, t[i].address, box, false);
    if (i == 2) out[n++] = make_access(memory[i], 0, t[i].address, box, true);
  }
  return n;
}
Cost cost_one(const Mmad& v, const Spec& spec) {
  bool bytes = v.dtype == Mmad::Dtype::k_i8;
  Cost c;
  c.unit = static_cast<double>(up(v.m, spec.block_m)) * up(v.n, spec.block_n) *
           up(v.k, spec.block_k * (bytes ? 2 : 1));
  c.macs = static_cast<double>(v.m) * v.n * v.k;
  c.joule = c.macs * (bytes ? spec.energy.mac_i8 : spec.energy.mac_f16);
  return c;
}

int bias_width(const MoveOut& v) {
  return v.bias == MoveOut::Bias::k_none ? 0
         : v.bias == MoveOut::Bias::k_f16 || v.bias == MoveOut::Bias::k_bf16 ? 2 : 4;
}
Dtype dtype_of(MoveOut::DstDtype d) { return static_cast<Dtype>(d); }
Box moved_out(const MoveOut& v) {
  return plane_box(v.m, v.n, v.row_stride, v.column_stride, width_of(dtype_of(v.dst_dtype)));
}
void check_one(const MoveOut& v, const Spec& spec) {
  int width = width_of(dtype_of(v.dst_dtype));
  aligned("c", v.c, spec.alignment);
  aligned("c_pitch", v.c_pitch, 4);
  aligned("dst", v.dst, width);
  aligned("row_stride", v.row_stride, width);
  aligned("column_stride", v.column_stride, width);
  if (overlaps_itself(moved_out(v))) self_overlap("the destination");
  if (v.scale_mode == MoveOut::ScaleMode::k_column) aligned("scales", v.scales, 4);
  if (int w = bias_width(v)) aligned("biases", v.biases, w);
  if (v.bias == MoveOut::Bias::k_i32 && v.src_dtype != MoveOut::SrcDtype::k_i32)
    fail(HNPU_ERROR_UNSUPPORTED, "an i32 bias needs an i32 source");
  if (v.zero_point && dtype_of(v.dst_dtype) != Dtype::k_i8 && dtype_of(v.dst_dtype) != Dtype::k_i32)
    fail(HNPU_ERROR_UNSUPPORTED, "zero_point needs an integer destination");
}
int accesses_one(const MoveOut& v, Access* out) {
  int n = 0;
  out[n++] = make_access(HNPU_L0C, 0, v.c, row_box(v.m, v.c_pitch, int64_t{4} * v.n), false);
  if (v.scale_mode == MoveOut::ScaleMode::k_column)
    out[n++] = make_access(HNPU_UB, 0, v.scales, row_box(v.n, 4, 4), false);
  if (int w = bias_width(v)) out[n++] = make_access(HNPU_UB, 0, v.biases, row_box(v.n, w, w), false);
  out[n++] = make_access(HNPU_UB, 0, v.dst, moved_out(v), true);
  return n;
}
Cost cost_one(const MoveOut& v, const Spec& spec) {
  Cost c;
  c.unit = static_cast<double>(v.m) * v.n * 4 / spec.l0c_to_ub;
  c.ub = bank_cycles(moved_out(v), spec.ub_bytes_per_cycle);
  return c;
}

// --- vector unit ---

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

// --- synchronisation ---

template <class Flag>
void check_flag(const Flag& v, const Spec& spec) {
  if (static_cast<int>(v.source) == static_cast<int>(v.target))
    fail(HNPU_ERROR_STREAM, "source and target are the same queue: a queue is in order by itself");
  if (v.event >= spec.events)
    fail(HNPU_ERROR_RANGE, "event ", v.event, " is out of range: there are ", spec.events);
}
void check_one(const SetFlag& v, const Spec& s) { check_flag(v, s); }
void check_one(const WaitFlag& v, const Spec& s) { check_flag(v, s); }
void check_one(const Barrier&, const Spec&) {}
int accesses_one(const SetFlag&, Access*) { return 0; }
int accesses_one(const WaitFlag&, Access*) { return 0; }
int accesses_one(const Barrier&, Access*) { return 0; }
Cost cost_one(const SetFlag&, const Spec&) { return {}; }
Cost cost_one(const WaitFlag&, const Spec&) { return {}; }
Cost cost_one(const Barrier&, const Spec&) { return {}; }

double byte_cost(uint8_t memory, const Energy& e) {
  return memory == kDram ? e.dram_byte : memory == HNPU_L1 ? e.l1_byte : memory == HNPU_UB ? e.ub_byte : e.l0_byte;
}

VectorOp with_flags(VectorOp v, uint32_t transcendental, uint32_t integer) {
  v.transcendental = transcendental >> v.op & 1;
  v.integer_op = integer >> v.op & 1;
  return v;
}

}  // namespace

double Cost::cycles(const Spec& spec) const {
  return std::max({unit, static_cast<double>(dram) / spec.dram_bytes_per_cycle, l1, ub});
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
