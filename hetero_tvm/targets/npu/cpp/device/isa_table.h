// Written by hetero_tvm/targets/npu/isa/native_header.py from the declarations beside it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hnpu {

constexpr int kBankBytes = 32;
constexpr int kSumLanes = 16;
constexpr int kHeadBytes = 4;
constexpr int kMaxSlots = 65536;
constexpr int kMaxTags = 65536;
constexpr int kMaxInstructions = 16777216;
enum class Dtype : uint8_t { k_f16, k_bf16, k_f32, k_i8, k_i32 };
enum class Queue : uint8_t { k_dma_in, k_move, k_matrix, k_vector, k_dma_out };
enum class SlotKind : uint8_t { k_input, k_output, k_constant, k_scratch };
constexpr const char* kQueueNames[] = {"dma_in", "move", "matrix", "vector", "dma_out"};
constexpr const char* kScratchpadNames[] = {"l1", "l0a", "l0b", "l0c", "ub"};

enum class Kind : uint8_t { u8, u16, u32, u64, i32, f32 };
struct FieldInfo {
  const char* name; uint16_t offset; Kind kind; uint8_t count; int64_t least, greatest;
  const char* const* words; uint8_t word_count;
};
struct InstructionInfo {
  const char* name; uint8_t opcode; uint16_t size, used; int8_t queue;
  const FieldInfo* fields; uint8_t field_count;
};
constexpr int kQueueOfSource = -1, kQueueOfTarget = -2, kQueueAll = -3;

struct SetFlag {
  static constexpr uint8_t kOpcode = 0x01;
  enum class Source : uint8_t { k_dma_in, k_move, k_matrix, k_vector, k_dma_out };
  enum class Target : uint8_t { k_dma_in, k_move, k_matrix, k_vector, k_dma_out };
  Source source;
  Target target;
  uint16_t event;
  explicit SetFlag(const uint8_t* p) {
    memcpy(&source, p + 4, 1);
    memcpy(&target, p + 5, 1);
    memcpy(&event, p + 6, 2);
  }
  static constexpr const char* kWordsOfSource[] = {"dma_in", "move", "matrix", "vector", "dma_out"};
  static constexpr const char* kWordsOfTarget[] = {"dma_in", "move", "matrix", "vector", "dma_out"};
  static constexpr FieldInfo kFields[] = {
      {"source", 4, Kind::u8, 1, 0, 4, kWordsOfSource, 5},
      {"target", 5, Kind::u8, 1, 0, 4, kWordsOfTarget, 5},
      {"event", 6, Kind::u16, 1, 0, 65535, nullptr, 0},
  };
};

struct WaitFlag {
  static constexpr uint8_t kOpcode = 0x02;
  enum class Source : uint8_t { k_dma_in, k_move, k_matrix, k_vector, k_dma_out };
  enum class Target : uint8_t { k_dma_in, k_move, k_matrix, k_vector, k_dma_out };
  Source source;
  Target target;
  uint16_t event;
  explicit WaitFlag(const uint8_t* p) {
    memcpy(&source, p + 4, 1);
    memcpy(&target, p + 5, 1);
    memcpy(&event, p + 6, 2);
  }
  static constexpr const char* kWordsOfSource[] = {"dma_in", "move", "matrix", "vector", "dma_out"};
  static constexpr const char* kWordsOfTarget[] = {"dma_in", "move", "matrix", "vector", "dma_out"};
  static constexpr FieldInfo kFields[] = {
      {"source", 4, Kind::u8, 1, 0, 4, kWordsOfSource, 5},
      {"target", 5, Kind::u8, 1, 0, 4, kWordsOfTarget, 5},
      {"event", 6, Kind::u16, 1, 0, 65535, nullptr, 0},
  };
};

struct Barrier {
  static constexpr uint8_t kOpcode = 0x03;
  explicit Barrier(const uint8_t* p) { (void)p; }
};

struct Load {
  static constexpr uint8_t kOpcode = 0x10;
  enum class DstMem : uint8_t { k_l1, k_ub };
  uint8_t elem;
  DstMem dst_mem;
  uint16_t src_slot;
  uint64_t src;
  uint32_t dst;
  uint32_t extents[4];
  int32_t src_strides[4];
  int32_t dst_strides[4];
  uint32_t pad_low[4];
  uint32_t pad_high[4];
  uint32_t fill;
  explicit Load(const uint8_t* p) {
    memcpy(&elem, p + 4, 1);
    memcpy(&dst_mem, p + 5, 1);
    memcpy(&src_slot, p + 6, 2);
    memcpy(&src, p + 8, 8);
    memcpy(&dst, p + 16, 4);
    memcpy(&extents, p + 20, 16);
    memcpy(&src_strides, p + 36, 16);
    memcpy(&dst_strides, p + 52, 16);
    memcpy(&pad_low, p + 68, 16);
    memcpy(&pad_high, p + 84, 16);
    memcpy(&fill, p + 100, 4);
  }
  static constexpr const char* kWordsOfDstMem[] = {"l1", "ub"};
  static constexpr FieldInfo kFields[] = {
      {"elem", 4, Kind::u8, 1, 0, 255, nullptr, 0},
      {"dst_mem", 5, Kind::u8, 1, 0, 1, kWordsOfDstMem, 2},
      {"src_slot", 6, Kind::u16, 1, 0, 65535, nullptr, 0},
      {"src", 8, Kind::u64, 1, 0, 281474976710656, nullptr, 0},
      {"dst", 16, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"extents", 20, Kind::u32, 4, 1, 16777216, nullptr, 0},
      {"src_strides", 36, Kind::i32, 4, -2147483648, 2147483647, nullptr, 0},
      {"dst_strides", 52, Kind::i32, 4, -2147483648, 2147483647, nullptr, 0},
      {"pad_low", 68, Kind::u32, 4, 0, 16777216, nullptr, 0},
      {"pad_high", 84, Kind::u32, 4, 0, 16777216, nullptr, 0},
      {"fill", 100, Kind::u32, 1, 0, 4294967295, nullptr, 0},
  };
};

struct Store {
  static constexpr uint8_t kOpcode = 0x11;
  enum class DstMem : uint8_t { k_dram, k_l1 };
  uint8_t elem;
  DstMem dst_mem;
  uint16_t dst_slot;
  uint32_t src;
  uint64_t dst;
  uint32_t extents[4];
  int32_t src_strides[4];
  int32_t dst_strides[4];
  uint32_t pad_low[4];
  uint32_t pad_high[4];
  uint32_t fill;
  explicit Store(const uint8_t* p) {
    memcpy(&elem, p + 4, 1);
    memcpy(&dst_mem, p + 5, 1);
    memcpy(&dst_slot, p + 6, 2);
    memcpy(&src, p + 8, 4);
    memcpy(&dst, p + 12, 8);
    memcpy(&extents, p + 20, 16);
    memcpy(&src_strides, p + 36, 16);
    memcpy(&dst_strides, p + 52, 16);
    memcpy(&pad_low, p + 68, 16);
    memcpy(&pad_high, p + 84, 16);
    memcpy(&fill, p + 100, 4);
  }
  static constexpr const char* kWordsOfDstMem[] = {"dram", "l1"};
  static constexpr FieldInfo kFields[] = {
      {"elem", 4, Kind::u8, 1, 0, 255, nullptr, 0},
      {"dst_mem", 5, Kind::u8, 1, 0, 1, kWordsOfDstMem, 2},
      {"dst_slot", 6, Kind::u16, 1, 0, 65535, nullptr, 0},
      {"src", 8, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"dst", 12, Kind::u64, 1, 0, 281474976710656, nullptr, 0},
      {"extents", 20, Kind::u32, 4, 1, 16777216, nullptr, 0},
      {"src_strides", 36, Kind::i32, 4, -2147483648, 2147483647, nullptr, 0},
      {"dst_strides", 52, Kind::i32, 4, -2147483648, 2147483647, nullptr, 0},
      {"pad_low", 68, Kind::u32, 4, 0, 16777216, nullptr, 0},
      {"pad_high", 84, Kind::u32, 4, 0, 16777216, nullptr, 0},
      {"fill", 100, Kind::u32, 1, 0, 4294967295, nullptr, 0},
  };
};

struct Move {
  static constexpr uint8_t kOpcode = 0x12;
  enum class DstMem : uint8_t { k_l0a, k_l0b };
  uint8_t elem;
  DstMem dst_mem;
  uint32_t src;
  uint32_t dst;
  uint32_t extents[4];
  int32_t src_strides[4];
  int32_t dst_strides[4];
  uint32_t pad_low[4];
  uint32_t pad_high[4];
  uint32_t fill;
  explicit Move(const uint8_t* p) {
    memcpy(&elem, p + 4, 1);
    memcpy(&dst_mem, p + 5, 1);
    memcpy(&src, p + 6, 4);
    memcpy(&dst, p + 10, 4);
    memcpy(&extents, p + 14, 16);
    memcpy(&src_strides, p + 30, 16);
    memcpy(&dst_strides, p + 46, 16);
    memcpy(&pad_low, p + 62, 16);
    memcpy(&pad_high, p + 78, 16);
    memcpy(&fill, p + 94, 4);
  }
  static constexpr const char* kWordsOfDstMem[] = {"l0a", "l0b"};
  static constexpr FieldInfo kFields[] = {
      {"elem", 4, Kind::u8, 1, 0, 255, nullptr, 0},
      {"dst_mem", 5, Kind::u8, 1, 0, 1, kWordsOfDstMem, 2},
      {"src", 6, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"dst", 10, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"extents", 14, Kind::u32, 4, 1, 16777216, nullptr, 0},
      {"src_strides", 30, Kind::i32, 4, -2147483648, 2147483647, nullptr, 0},
      {"dst_strides", 46, Kind::i32, 4, -2147483648, 2147483647, nullptr, 0},
      {"pad_low", 62, Kind::u32, 4, 0, 16777216, nullptr, 0},
      {"pad_high", 78, Kind::u32, 4, 0, 16777216, nullptr, 0},
      {"fill", 94, Kind::u32, 1, 0, 4294967295, nullptr, 0},
  };
};

struct Im2col {
  static constexpr uint8_t kOpcode = 0x13;
  uint8_t elem;
  uint32_t src;
  uint32_t height;
  uint32_t width;
  uint32_t channels;
  uint32_t row_pitch;
  uint32_t pixel_pitch;
  uint16_t kernel_h;
  uint16_t kernel_w;
  uint16_t stride_h;
  uint16_t stride_w;
  uint16_t dilation_h;
  uint16_t dilation_w;
  int32_t pad_top;
  int32_t pad_left;
  uint32_t out_width;
  uint32_t m_start;
  uint32_t m;
  uint32_t k_start;
  uint32_t k;
  uint32_t dst;
  uint32_t dst_pitch;
  uint32_t fill;
  explicit Im2col(const uint8_t* p) {
    memcpy(&elem, p + 4, 1);
    memcpy(&src, p + 5, 4);
    memcpy(&height, p + 9, 4);
    memcpy(&width, p + 13, 4);
    memcpy(&channels, p + 17, 4);
    memcpy(&row_pitch, p + 21, 4);
    memcpy(&pixel_pitch, p + 25, 4);
    memcpy(&kernel_h, p + 29, 2);
    memcpy(&kernel_w, p + 31, 2);
    memcpy(&stride_h, p + 33, 2);
    memcpy(&stride_w, p + 35, 2);
    memcpy(&dilation_h, p + 37, 2);
    memcpy(&dilation_w, p + 39, 2);
    memcpy(&pad_top, p + 41, 4);
    memcpy(&pad_left, p + 45, 4);
    memcpy(&out_width, p + 49, 4);
    memcpy(&m_start, p + 53, 4);
    memcpy(&m, p + 57, 4);
    memcpy(&k_start, p + 61, 4);
    memcpy(&k, p + 65, 4);
    memcpy(&dst, p + 69, 4);
    memcpy(&dst_pitch, p + 73, 4);
    memcpy(&fill, p + 77, 4);
  }
  static constexpr FieldInfo kFields[] = {
      {"elem", 4, Kind::u8, 1, 0, 255, nullptr, 0},
      {"src", 5, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"height", 9, Kind::u32, 1, 1, 16777216, nullptr, 0},
      {"width", 13, Kind::u32, 1, 1, 16777216, nullptr, 0},
      {"channels", 17, Kind::u32, 1, 1, 16777216, nullptr, 0},
      {"row_pitch", 21, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"pixel_pitch", 25, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"kernel_h", 29, Kind::u16, 1, 0, 65535, nullptr, 0},
      {"kernel_w", 31, Kind::u16, 1, 0, 65535, nullptr, 0},
      {"stride_h", 33, Kind::u16, 1, 0, 65535, nullptr, 0},
      {"stride_w", 35, Kind::u16, 1, 0, 65535, nullptr, 0},
      {"dilation_h", 37, Kind::u16, 1, 0, 65535, nullptr, 0},
      {"dilation_w", 39, Kind::u16, 1, 0, 65535, nullptr, 0},
      {"pad_top", 41, Kind::i32, 1, -2147483648, 2147483647, nullptr, 0},
      {"pad_left", 45, Kind::i32, 1, -2147483648, 2147483647, nullptr, 0},
      {"out_width", 49, Kind::u32, 1, 1, 16777216, nullptr, 0},
      {"m_start", 53, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"m", 57, Kind::u32, 1, 1, 16777216, nullptr, 0},
      {"k_start", 61, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"k", 65, Kind::u32, 1, 1, 16777216, nullptr, 0},
      {"dst", 69, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"dst_pitch", 73, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"fill", 77, Kind::u32, 1, 0, 4294967295, nullptr, 0},
  };
};

struct Gather {
  static constexpr uint8_t kOpcode = 0x14;
  enum class DstMem : uint8_t { k_l1, k_ub };
  DstMem dst_mem;
  uint16_t src_slot;
  uint64_t src;
  uint32_t src_pitch;
  uint32_t rows;
  uint32_t row_bytes;
  uint32_t indices;
  uint32_t count;
  uint32_t dst;
  uint32_t dst_pitch;
  explicit Gather(const uint8_t* p) {
    memcpy(&dst_mem, p + 4, 1);
    memcpy(&src_slot, p + 5, 2);
    memcpy(&src, p + 7, 8);
    memcpy(&src_pitch, p + 15, 4);
    memcpy(&rows, p + 19, 4);
    memcpy(&row_bytes, p + 23, 4);
    memcpy(&indices, p + 27, 4);
    memcpy(&count, p + 31, 4);
    memcpy(&dst, p + 35, 4);
    memcpy(&dst_pitch, p + 39, 4);
  }
  static constexpr const char* kWordsOfDstMem[] = {"l1", "ub"};
  static constexpr FieldInfo kFields[] = {
      {"dst_mem", 4, Kind::u8, 1, 0, 1, kWordsOfDstMem, 2},
      {"src_slot", 5, Kind::u16, 1, 0, 65535, nullptr, 0},
      {"src", 7, Kind::u64, 1, 0, 281474976710656, nullptr, 0},
      {"src_pitch", 15, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"rows", 19, Kind::u32, 1, 1, 268435456, nullptr, 0},
      {"row_bytes", 23, Kind::u32, 1, 1, 16777216, nullptr, 0},
      {"indices", 27, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"count", 31, Kind::u32, 1, 1, 16777216, nullptr, 0},
      {"dst", 35, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"dst_pitch", 39, Kind::u32, 1, 0, 4294967295, nullptr, 0},
  };
};

struct Mmad {
  static constexpr uint8_t kOpcode = 0x20;
  enum class Dtype : uint8_t { k_f16, k_bf16, k_i8 };
  enum class Accumulate : uint8_t { k_no, k_yes };
  enum class ATransposed : uint8_t { k_no, k_yes };
  enum class BTransposed : uint8_t { k_no, k_yes };
  Dtype dtype;
  Accumulate accumulate;
  ATransposed a_transposed;
  BTransposed b_transposed;
  uint32_t m;
  uint32_t n;
  uint32_t k;
  uint32_t a;
  uint32_t a_pitch;
  uint32_t b;
  uint32_t b_pitch;
  uint32_t c;
  uint32_t c_pitch;
  explicit Mmad(const uint8_t* p) {
    memcpy(&dtype, p + 4, 1);
    memcpy(&accumulate, p + 5, 1);
    memcpy(&a_transposed, p + 6, 1);
    memcpy(&b_transposed, p + 7, 1);
    memcpy(&m, p + 8, 4);
    memcpy(&n, p + 12, 4);
    memcpy(&k, p + 16, 4);
    memcpy(&a, p + 20, 4);
    memcpy(&a_pitch, p + 24, 4);
    memcpy(&b, p + 28, 4);
    memcpy(&b_pitch, p + 32, 4);
    memcpy(&c, p + 36, 4);
    memcpy(&c_pitch, p + 40, 4);
  }
  static constexpr const char* kWordsOfDtype[] = {"f16", "bf16", "i8"};
  static constexpr const char* kWordsOfAccumulate[] = {"no", "yes"};
  static constexpr const char* kWordsOfATransposed[] = {"no", "yes"};
  static constexpr const char* kWordsOfBTransposed[] = {"no", "yes"};
  static constexpr FieldInfo kFields[] = {
      {"dtype", 4, Kind::u8, 1, 0, 2, kWordsOfDtype, 3},
      {"accumulate", 5, Kind::u8, 1, 0, 1, kWordsOfAccumulate, 2},
      {"a_transposed", 6, Kind::u8, 1, 0, 1, kWordsOfATransposed, 2},
      {"b_transposed", 7, Kind::u8, 1, 0, 1, kWordsOfBTransposed, 2},
      {"m", 8, Kind::u32, 1, 1, 16777216, nullptr, 0},
      {"n", 12, Kind::u32, 1, 1, 16777216, nullptr, 0},
      {"k", 16, Kind::u32, 1, 1, 16777216, nullptr, 0},
      {"a", 20, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"a_pitch", 24, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"b", 28, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"b_pitch", 32, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"c", 36, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"c_pitch", 40, Kind::u32, 1, 0, 4294967295, nullptr, 0},
  };
};

struct MoveOut {
  static constexpr uint8_t kOpcode = 0x21;
  enum class SrcDtype : uint8_t { k_f32, k_i32 };
  enum class DstDtype : uint8_t { k_f16, k_bf16, k_f32, k_i8, k_i32 };
  enum class ScaleMode : uint8_t { k_none, k_immediate, k_column };
  enum class Bias : uint8_t { k_none, k_f16, k_bf16, k_f32, k_i32 };
  enum class Relu : uint8_t { k_no, k_yes };
  enum class Residual : uint8_t { k_none, k_f16, k_bf16, k_f32 };
  enum class ResidualMem : uint8_t { k_l1, k_ub };
  SrcDtype src_dtype;
  DstDtype dst_dtype;
  ScaleMode scale_mode;
  Bias bias;
  Relu relu;
  Residual residual;
  ResidualMem residual_mem;
  uint32_t m;
  uint32_t n;
  uint32_t c;
  uint32_t c_pitch;
  uint32_t dst;
  int32_t row_stride;
  int32_t column_stride;
  float scale;
  uint32_t scales;
  uint32_t biases;
  int32_t zero_point;
  uint32_t residuals;
  uint32_t residual_pitch;
  explicit MoveOut(const uint8_t* p) {
    memcpy(&src_dtype, p + 4, 1);
    memcpy(&dst_dtype, p + 5, 1);
    memcpy(&scale_mode, p + 6, 1);
    memcpy(&bias, p + 7, 1);
    memcpy(&relu, p + 8, 1);
    memcpy(&residual, p + 9, 1);
    memcpy(&residual_mem, p + 10, 1);
    memcpy(&m, p + 11, 4);
    memcpy(&n, p + 15, 4);
    memcpy(&c, p + 19, 4);
    memcpy(&c_pitch, p + 23, 4);
    memcpy(&dst, p + 27, 4);
    memcpy(&row_stride, p + 31, 4);
    memcpy(&column_stride, p + 35, 4);
    memcpy(&scale, p + 39, 4);
    memcpy(&scales, p + 43, 4);
    memcpy(&biases, p + 47, 4);
    memcpy(&zero_point, p + 51, 4);
    memcpy(&residuals, p + 55, 4);
    memcpy(&residual_pitch, p + 59, 4);
  }
  static constexpr const char* kWordsOfSrcDtype[] = {"f32", "i32"};
  static constexpr const char* kWordsOfDstDtype[] = {"f16", "bf16", "f32", "i8", "i32"};
  static constexpr const char* kWordsOfScaleMode[] = {"none", "immediate", "column"};
  static constexpr const char* kWordsOfBias[] = {"none", "f16", "bf16", "f32", "i32"};
  static constexpr const char* kWordsOfRelu[] = {"no", "yes"};
  static constexpr const char* kWordsOfResidual[] = {"none", "f16", "bf16", "f32"};
  static constexpr const char* kWordsOfResidualMem[] = {"l1", "ub"};
  static constexpr FieldInfo kFields[] = {
      {"src_dtype", 4, Kind::u8, 1, 0, 1, kWordsOfSrcDtype, 2},
      {"dst_dtype", 5, Kind::u8, 1, 0, 4, kWordsOfDstDtype, 5},
      {"scale_mode", 6, Kind::u8, 1, 0, 2, kWordsOfScaleMode, 3},
      {"bias", 7, Kind::u8, 1, 0, 4, kWordsOfBias, 5},
      {"relu", 8, Kind::u8, 1, 0, 1, kWordsOfRelu, 2},
      {"residual", 9, Kind::u8, 1, 0, 3, kWordsOfResidual, 4},
      {"residual_mem", 10, Kind::u8, 1, 0, 1, kWordsOfResidualMem, 2},
      {"m", 11, Kind::u32, 1, 1, 16777216, nullptr, 0},
      {"n", 15, Kind::u32, 1, 1, 16777216, nullptr, 0},
      {"c", 19, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"c_pitch", 23, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"dst", 27, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"row_stride", 31, Kind::i32, 1, -2147483648, 2147483647, nullptr, 0},
      {"column_stride", 35, Kind::i32, 1, -2147483648, 2147483647, nullptr, 0},
      {"scale", 39, Kind::f32, 1, 0, 0, nullptr, 0},
      {"scales", 43, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"biases", 47, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"zero_point", 51, Kind::i32, 1, -2147483648, 2147483647, nullptr, 0},
      {"residuals", 55, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"residual_pitch", 59, Kind::u32, 1, 0, 4294967295, nullptr, 0},
  };
};

struct Vunary {
  static constexpr uint8_t kOpcode = 0x30;
  enum class Op : uint8_t { k_copy, k_neg, k_abs, k_relu, k_square, k_floor, k_ceil, k_round, k_exp, k_log, k_erf, k_tanh, k_sigmoid, k_sqrt, k_rsqrt, k_reciprocal, k_sin, k_cos };
  enum class DstDtype : uint8_t { k_f16, k_bf16, k_f32, k_i8, k_i32 };
  enum class SrcDtype : uint8_t { k_f16, k_bf16, k_f32, k_i8, k_i32, k_imm };
  Op op;
  DstDtype dst_dtype;
  SrcDtype src_dtype;
  float mul;
  float add;
  uint32_t dst;
  uint32_t src;
  uint32_t extents[4];
  int32_t dst_strides[4];
  int32_t src_strides[4];
  explicit Vunary(const uint8_t* p) {
    memcpy(&op, p + 4, 1);
    memcpy(&dst_dtype, p + 5, 1);
    memcpy(&src_dtype, p + 6, 1);
    memcpy(&mul, p + 7, 4);
    memcpy(&add, p + 11, 4);
    memcpy(&dst, p + 15, 4);
    memcpy(&src, p + 19, 4);
    memcpy(&extents, p + 23, 16);
    memcpy(&dst_strides, p + 39, 16);
    memcpy(&src_strides, p + 55, 16);
  }
  static constexpr uint32_t kTranscendental = 0x3ff00;
  static constexpr uint32_t kInteger = 0x1f;
  static constexpr const char* kWordsOfOp[] = {"copy", "neg", "abs", "relu", "square", "floor", "ceil", "round", "exp", "log", "erf", "tanh", "sigmoid", "sqrt", "rsqrt", "reciprocal", "sin", "cos"};
  static constexpr const char* kWordsOfDstDtype[] = {"f16", "bf16", "f32", "i8", "i32"};
  static constexpr const char* kWordsOfSrcDtype[] = {"f16", "bf16", "f32", "i8", "i32", "imm"};
  static constexpr FieldInfo kFields[] = {
      {"op", 4, Kind::u8, 1, 0, 17, kWordsOfOp, 18},
      {"dst_dtype", 5, Kind::u8, 1, 0, 4, kWordsOfDstDtype, 5},
      {"src_dtype", 6, Kind::u8, 1, 0, 5, kWordsOfSrcDtype, 6},
      {"mul", 7, Kind::f32, 1, 0, 0, nullptr, 0},
      {"add", 11, Kind::f32, 1, 0, 0, nullptr, 0},
      {"dst", 15, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"src", 19, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"extents", 23, Kind::u32, 4, 1, 16777216, nullptr, 0},
      {"dst_strides", 39, Kind::i32, 4, -2147483648, 2147483647, nullptr, 0},
      {"src_strides", 55, Kind::i32, 4, -2147483648, 2147483647, nullptr, 0},
  };
};

struct Vbinary {
  static constexpr uint8_t kOpcode = 0x31;
  enum class Op : uint8_t { k_add, k_sub, k_mul, k_div, k_max, k_min, k_lt, k_le, k_gt, k_ge, k_eq, k_ne, k_prelu };
  enum class DstDtype : uint8_t { k_f16, k_bf16, k_f32, k_i8, k_i32 };
  enum class Src0Dtype : uint8_t { k_f16, k_bf16, k_f32, k_i8, k_i32, k_imm };
  enum class Src1Dtype : uint8_t { k_f16, k_bf16, k_f32, k_i8, k_i32, k_imm };
  Op op;
  DstDtype dst_dtype;
  Src0Dtype src0_dtype;
  Src1Dtype src1_dtype;
  float imm;
  uint32_t dst;
  uint32_t src0;
  uint32_t src1;
  uint32_t extents[4];
  int32_t dst_strides[4];
  int32_t src0_strides[4];
  int32_t src1_strides[4];
  explicit Vbinary(const uint8_t* p) {
    memcpy(&op, p + 4, 1);
    memcpy(&dst_dtype, p + 5, 1);
    memcpy(&src0_dtype, p + 6, 1);
    memcpy(&src1_dtype, p + 7, 1);
    memcpy(&imm, p + 8, 4);
    memcpy(&dst, p + 12, 4);
    memcpy(&src0, p + 16, 4);
    memcpy(&src1, p + 20, 4);
    memcpy(&extents, p + 24, 16);
    memcpy(&dst_strides, p + 40, 16);
    memcpy(&src0_strides, p + 56, 16);
    memcpy(&src1_strides, p + 72, 16);
  }
  static constexpr uint32_t kTranscendental = 0x8;
  static constexpr uint32_t kInteger = 0xff7;
  static constexpr const char* kWordsOfOp[] = {"add", "sub", "mul", "div", "max", "min", "lt", "le", "gt", "ge", "eq", "ne", "prelu"};
  static constexpr const char* kWordsOfDstDtype[] = {"f16", "bf16", "f32", "i8", "i32"};
  static constexpr const char* kWordsOfSrc0Dtype[] = {"f16", "bf16", "f32", "i8", "i32", "imm"};
  static constexpr const char* kWordsOfSrc1Dtype[] = {"f16", "bf16", "f32", "i8", "i32", "imm"};
  static constexpr FieldInfo kFields[] = {
      {"op", 4, Kind::u8, 1, 0, 12, kWordsOfOp, 13},
      {"dst_dtype", 5, Kind::u8, 1, 0, 4, kWordsOfDstDtype, 5},
      {"src0_dtype", 6, Kind::u8, 1, 0, 5, kWordsOfSrc0Dtype, 6},
      {"src1_dtype", 7, Kind::u8, 1, 0, 5, kWordsOfSrc1Dtype, 6},
      {"imm", 8, Kind::f32, 1, 0, 0, nullptr, 0},
      {"dst", 12, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"src0", 16, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"src1", 20, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"extents", 24, Kind::u32, 4, 1, 16777216, nullptr, 0},
      {"dst_strides", 40, Kind::i32, 4, -2147483648, 2147483647, nullptr, 0},
      {"src0_strides", 56, Kind::i32, 4, -2147483648, 2147483647, nullptr, 0},
      {"src1_strides", 72, Kind::i32, 4, -2147483648, 2147483647, nullptr, 0},
  };
};

struct Vternary {
  static constexpr uint8_t kOpcode = 0x32;
  enum class Op : uint8_t { k_muladd, k_submul, k_add3, k_select };
  enum class DstDtype : uint8_t { k_f16, k_bf16, k_f32, k_i8, k_i32 };
  enum class Src0Dtype : uint8_t { k_f16, k_bf16, k_f32, k_i8, k_i32, k_imm };
  enum class Src1Dtype : uint8_t { k_f16, k_bf16, k_f32, k_i8, k_i32, k_imm };
  enum class Src2Dtype : uint8_t { k_f16, k_bf16, k_f32, k_i8, k_i32, k_imm };
  Op op;
  DstDtype dst_dtype;
  Src0Dtype src0_dtype;
  Src1Dtype src1_dtype;
  Src2Dtype src2_dtype;
  float imm;
  uint32_t dst;
  uint32_t src0;
  uint32_t src1;
  uint32_t src2;
  uint32_t extents[4];
  int32_t dst_strides[4];
  int32_t src0_strides[4];
  int32_t src1_strides[4];
  int32_t src2_strides[4];
  explicit Vternary(const uint8_t* p) {
    memcpy(&op, p + 4, 1);
    memcpy(&dst_dtype, p + 5, 1);
    memcpy(&src0_dtype, p + 6, 1);
    memcpy(&src1_dtype, p + 7, 1);
    memcpy(&src2_dtype, p + 8, 1);
    memcpy(&imm, p + 9, 4);
    memcpy(&dst, p + 13, 4);
    memcpy(&src0, p + 17, 4);
    memcpy(&src1, p + 21, 4);
    memcpy(&src2, p + 25, 4);
    memcpy(&extents, p + 29, 16);
    memcpy(&dst_strides, p + 45, 16);
    memcpy(&src0_strides, p + 61, 16);
    memcpy(&src1_strides, p + 77, 16);
    memcpy(&src2_strides, p + 93, 16);
  }
  static constexpr uint32_t kTranscendental = 0x0;
  static constexpr uint32_t kInteger = 0xf;
  static constexpr const char* kWordsOfOp[] = {"muladd", "submul", "add3", "select"};
  static constexpr const char* kWordsOfDstDtype[] = {"f16", "bf16", "f32", "i8", "i32"};
  static constexpr const char* kWordsOfSrc0Dtype[] = {"f16", "bf16", "f32", "i8", "i32", "imm"};
  static constexpr const char* kWordsOfSrc1Dtype[] = {"f16", "bf16", "f32", "i8", "i32", "imm"};
  static constexpr const char* kWordsOfSrc2Dtype[] = {"f16", "bf16", "f32", "i8", "i32", "imm"};
  static constexpr FieldInfo kFields[] = {
      {"op", 4, Kind::u8, 1, 0, 3, kWordsOfOp, 4},
      {"dst_dtype", 5, Kind::u8, 1, 0, 4, kWordsOfDstDtype, 5},
      {"src0_dtype", 6, Kind::u8, 1, 0, 5, kWordsOfSrc0Dtype, 6},
      {"src1_dtype", 7, Kind::u8, 1, 0, 5, kWordsOfSrc1Dtype, 6},
      {"src2_dtype", 8, Kind::u8, 1, 0, 5, kWordsOfSrc2Dtype, 6},
      {"imm", 9, Kind::f32, 1, 0, 0, nullptr, 0},
      {"dst", 13, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"src0", 17, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"src1", 21, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"src2", 25, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"extents", 29, Kind::u32, 4, 1, 16777216, nullptr, 0},
      {"dst_strides", 45, Kind::i32, 4, -2147483648, 2147483647, nullptr, 0},
      {"src0_strides", 61, Kind::i32, 4, -2147483648, 2147483647, nullptr, 0},
      {"src1_strides", 77, Kind::i32, 4, -2147483648, 2147483647, nullptr, 0},
      {"src2_strides", 93, Kind::i32, 4, -2147483648, 2147483647, nullptr, 0},
  };
};

struct Vreduce {
  static constexpr uint8_t kOpcode = 0x33;
  enum class Op : uint8_t { k_sum, k_max, k_min, k_sumsq, k_absmax };
  enum class DstDtype : uint8_t { k_f16, k_bf16, k_f32, k_i8, k_i32 };
  enum class SrcDtype : uint8_t { k_f16, k_bf16, k_f32, k_i8, k_i32 };
  enum class Accumulate : uint8_t { k_no, k_yes };
  Op op;
  DstDtype dst_dtype;
  SrcDtype src_dtype;
  uint8_t axes;
  Accumulate accumulate;
  uint32_t dst;
  uint32_t src;
  uint32_t extents[4];
  int32_t dst_strides[4];
  int32_t src_strides[4];
  explicit Vreduce(const uint8_t* p) {
    memcpy(&op, p + 4, 1);
    memcpy(&dst_dtype, p + 5, 1);
    memcpy(&src_dtype, p + 6, 1);
    memcpy(&axes, p + 7, 1);
    memcpy(&accumulate, p + 8, 1);
    memcpy(&dst, p + 9, 4);
    memcpy(&src, p + 13, 4);
    memcpy(&extents, p + 17, 16);
    memcpy(&dst_strides, p + 33, 16);
    memcpy(&src_strides, p + 49, 16);
  }
  static constexpr uint32_t kTranscendental = 0x0;
  static constexpr uint32_t kInteger = 0x1f;
  static constexpr const char* kWordsOfOp[] = {"sum", "max", "min", "sumsq", "absmax"};
  static constexpr const char* kWordsOfDstDtype[] = {"f16", "bf16", "f32", "i8", "i32"};
  static constexpr const char* kWordsOfSrcDtype[] = {"f16", "bf16", "f32", "i8", "i32"};
  static constexpr const char* kWordsOfAccumulate[] = {"no", "yes"};
  static constexpr FieldInfo kFields[] = {
      {"op", 4, Kind::u8, 1, 0, 4, kWordsOfOp, 5},
      {"dst_dtype", 5, Kind::u8, 1, 0, 4, kWordsOfDstDtype, 5},
      {"src_dtype", 6, Kind::u8, 1, 0, 4, kWordsOfSrcDtype, 5},
      {"axes", 7, Kind::u8, 1, 0, 255, nullptr, 0},
      {"accumulate", 8, Kind::u8, 1, 0, 1, kWordsOfAccumulate, 2},
      {"dst", 9, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"src", 13, Kind::u32, 1, 0, 4294967295, nullptr, 0},
      {"extents", 17, Kind::u32, 4, 1, 16777216, nullptr, 0},
      {"dst_strides", 33, Kind::i32, 4, -2147483648, 2147483647, nullptr, 0},
      {"src_strides", 49, Kind::i32, 4, -2147483648, 2147483647, nullptr, 0},
  };
};

constexpr InstructionInfo kInstructions[] = {
    {"set_flag", 0x01, 8, 8, -1, SetFlag::kFields, 3},
    {"wait_flag", 0x02, 8, 8, -2, WaitFlag::kFields, 3},
    {"barrier", 0x03, 4, 4, -3, nullptr, 0},
    {"load", 0x10, 104, 104, 0, Load::kFields, 11},
    {"store", 0x11, 104, 104, 4, Store::kFields, 11},
    {"move", 0x12, 100, 98, 1, Move::kFields, 10},
    {"im2col", 0x13, 84, 81, 1, Im2col::kFields, 23},
    {"gather", 0x14, 44, 43, 0, Gather::kFields, 10},
    {"mmad", 0x20, 44, 44, 2, Mmad::kFields, 13},
    {"move_out", 0x21, 64, 63, 3, MoveOut::kFields, 20},
    {"vunary", 0x30, 72, 71, 3, Vunary::kFields, 10},
    {"vbinary", 0x31, 88, 88, 3, Vbinary::kFields, 12},
    {"vternary", 0x32, 112, 109, 3, Vternary::kFields, 15},
    {"vreduce", 0x33, 68, 65, 3, Vreduce::kFields, 10},
};

}  // namespace hnpu
