// Data movement: limits, footprint, cost.
#include <algorithm>

#include "instruction_groups.h"

namespace hnpu {
namespace {

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

uint8_t target_of(const Gather& v) { return v.dst_mem == Gather::DstMem::k_l1 ? HNPU_L1 : HNPU_UB; }

}  // namespace

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
  int64_t first = v.k_start % v.channels, count = v.k;
  if (first + count > v.channels) first = 0, count = v.channels;
  Box image = {{1, 1, v.height, v.width}, {0, 0, v.row_pitch, v.pixel_pitch}, count * v.elem};
  out[0] = make_access(HNPU_L1, 0, v.src + first * v.elem, image, false);
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

}  // namespace hnpu
