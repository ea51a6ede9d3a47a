// Data movement, in numbers.
#include <algorithm>

#include "fault.h"
#include "instruction.h"
#include "memory.h"

namespace hnpu {
namespace {

template <class T>
void copy_elements(const uint8_t* src, uint8_t* dst, const Box& read, const Box& written) {
  for (int64_t i = 0; i < read.extent[0]; i++)
    for (int64_t j = 0; j < read.extent[1]; j++)
      for (int64_t k = 0; k < read.extent[2]; k++) {
        const uint8_t* from = src + i * read.stride[0] + j * read.stride[1] + k * read.stride[2];
        uint8_t* to = dst + i * written.stride[0] + j * written.stride[1] + k * written.stride[2];
        int64_t n = read.extent[3], s = read.stride[3], t = written.stride[3];
        if (n == 1 || (s == sizeof(T) && t == sizeof(T))) {
          memcpy(to, from, n * sizeof(T));
        } else {
          for (int64_t l = 0; l < n; l++) memcpy(to + l * t, from + l * s, sizeof(T));
        }
      }
}

template <class T>
void fill_elements(uint8_t* dst, const Box& written, uint32_t bits) {
  T value = static_cast<T>(bits);
  for (int64_t i = 0; i < written.extent[0]; i++)
    for (int64_t j = 0; j < written.extent[1]; j++)
      for (int64_t k = 0; k < written.extent[2]; k++) {
        uint8_t* to = dst + i * written.stride[0] + j * written.stride[1] + k * written.stride[2];
        for (int64_t l = 0; l < written.extent[3]; l++) memcpy(to + l * written.stride[3], &value, sizeof(T));
      }
}

template <class Copy>
void copy_box(const Copy& v, const uint8_t* src, uint8_t* dst) {
  Box read = read_box(v), written = written_box(v);
  uint8_t* first = dst;
  bool padded = false;
  for (int i = 0; i < kRank; i++) {
    padded |= read.extent[i] != written.extent[i];
    first += v.pad_low[i] * written.stride[i];
  }
  auto run = [&](auto type) {
    using T = decltype(type);
    if (padded) fill_elements<T>(dst, written, v.fill);
    if (!empty(read)) copy_elements<T>(src, first, read, written);
  };
  if (v.elem == 1) run(uint8_t{});
  if (v.elem == 2) run(uint16_t{});
  if (v.elem == 4) run(uint32_t{});
}

}  // namespace

void execute_copy(const Load& v, Machine& m) {
  uint8_t target = v.dst_mem == Load::DstMem::k_l1 ? HNPU_L1 : HNPU_UB;
  // Where all is padding there is no source, and its slot need not be one of the program's.
  copy_box(v, empty(read_box(v)) ? nullptr : m.slots[v.src_slot].data + v.src, m.at(target, v.dst));
}

void execute_copy(const Store& v, Machine& m) {
  bool dram = v.dst_mem == Store::DstMem::k_dram;
  copy_box(v, m.at(HNPU_UB, v.src), dram ? m.slots[v.dst_slot].data + v.dst : m.at(HNPU_L1, v.dst));
}

void execute_copy(const Move& v, Machine& m) {
  copy_box(v, m.at(HNPU_L1, v.src), m.at(v.dst_mem == Move::DstMem::k_l0a ? HNPU_L0A : HNPU_L0B, v.dst));
}

void execute_copy(const Im2col& v, Machine& m) {
  const uint8_t* image = m.at(HNPU_L1, v.src);
  for (uint32_t i = 0; i < v.m; i++) {
    int64_t pixel = int64_t{v.m_start} + i;
    int64_t y0 = pixel / v.out_width * v.stride_h - v.pad_top;
    int64_t x0 = pixel % v.out_width * v.stride_w - v.pad_left;
    uint8_t* row = m.at(HNPU_L0A, v.dst + uint64_t{i} * v.dst_pitch);
    for (int64_t k = v.k_start, end = k + v.k; k < end;) {
      int64_t tap = k / v.channels, channel = k % v.channels;
      int64_t count = std::min<int64_t>(v.channels - channel, end - k);
      int64_t y = y0 + tap / v.kernel_w * v.dilation_h, x = x0 + tap % v.kernel_w * v.dilation_w;
      uint8_t* to = row + (k - v.k_start) * v.elem;
      if (y >= 0 && y < v.height && x >= 0 && x < v.width)
        memcpy(to, image + y * v.row_pitch + x * v.pixel_pitch + channel * v.elem, count * v.elem);
      else
        for (int64_t c = 0; c < count; c++) memcpy(to + c * v.elem, &v.fill, v.elem);
      k += count;
    }
  }
}

void execute_copy(const Gather& v, Machine& m) {
  uint8_t target = v.dst_mem == Gather::DstMem::k_l1 ? HNPU_L1 : HNPU_UB;
  const uint8_t* table = m.slots[v.src_slot].data + v.src;
  for (uint32_t i = 0; i < v.count; i++) {
    int32_t index;
    memcpy(&index, m.at(HNPU_UB, v.indices + uint64_t{4} * i), 4);
    if (index < 0 || static_cast<uint32_t>(index) >= v.rows)
      fail(HNPU_ERROR_RANGE, "index ", index, " (number ", i, ") is out of range: the table has ", v.rows, " rows");
    memcpy(m.at(target, v.dst + uint64_t{i} * v.dst_pitch), table + int64_t{index} * v.src_pitch, v.row_bytes);
  }
}

}  // namespace hnpu
