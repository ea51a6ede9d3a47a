// The matrix unit: limits, footprint, cost.
#include <string>

#include "instruction_groups.h"

namespace hnpu {
namespace {

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

int bias_width(const MoveOut& v) {
  return v.bias == MoveOut::Bias::k_none ? 0
         : v.bias == MoveOut::Bias::k_f16 || v.bias == MoveOut::Bias::k_bf16 ? 2 : 4;
}

bool has_residual(const MoveOut& v) { return v.residual != MoveOut::Residual::k_none; }
int residual_width(const MoveOut& v) { return v.residual == MoveOut::Residual::k_f32 ? 4 : 2; }
Box residual_box(const MoveOut& v) {
  return row_box(v.m, v.residual_pitch, int64_t{v.n} * residual_width(v));
}
bool residual_in_l1(const MoveOut& v) { return v.residual_mem == MoveOut::ResidualMem::k_l1; }
Access residual_access(const MoveOut& v) {
  return make_access(residual_in_l1(v) ? HNPU_L1 : HNPU_UB, 0, v.residuals, residual_box(v), false);
}

Dtype dtype_of(MoveOut::DstDtype d) { return static_cast<Dtype>(d); }
Box moved_out(const MoveOut& v) {
  return plane_box(v.m, v.n, v.row_stride, v.column_stride, width_of(dtype_of(v.dst_dtype)));
}

void check_residual(const MoveOut& v) {
  int width = residual_width(v);
  aligned("residuals", v.residuals, width);
  aligned("residual_pitch", v.residual_pitch, width);
  if (residual_in_l1(v)) return;
  Box read = plane_box(v.m, v.n, v.residual_pitch, width, width);
  if (v.residuals == v.dst && same_region(read, moved_out(v))) return;
  uint64_t steps = 0;
  if (overlap(make_access(HNPU_UB, 0, v.dst, moved_out(v), true), residual_access(v), steps))
    fail(HNPU_ERROR_RANGE, "the destination overlaps the residual without being the same region");
}

}  // namespace

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
  if (has_residual(v)) check_residual(v);
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
  if (has_residual(v)) out[n++] = residual_access(v);
  out[n++] = make_access(HNPU_UB, 0, v.dst, moved_out(v), true);
  return n;
}

Cost cost_one(const MoveOut& v, const Spec& spec) {
  Cost c;
  c.unit = static_cast<double>(v.m) * v.n * 4 / spec.l0c_to_ub;
  c.ub = bank_cycles(moved_out(v), spec.ub_bytes_per_cycle);
  if (!has_residual(v)) return c;
  int width = residual_width(v);
  Box read = plane_box(v.m, v.n, v.residual_pitch, width, width);
  if (residual_in_l1(v))
    c.l1 = bank_cycles(read, spec.l1_to_l0a);
  else
    c.ub += bank_cycles(read, spec.ub_bytes_per_cycle);
  return c;
}

}  // namespace hnpu
