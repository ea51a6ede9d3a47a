// Decoding and disassembly, driven by the generated field tables.
#include <cinttypes>
#include <cmath>
#include <cstdio>

#include "fault.h"
#include "instruction.h"

namespace hnpu {
namespace {

constexpr int kBytes[] = {1, 2, 4, 8, 4, 4};

int64_t integer(const uint8_t* p, Kind kind) {
  uint64_t raw = 0;
  memcpy(&raw, p, kBytes[static_cast<int>(kind)]);
  if (kind == Kind::i32) return static_cast<int32_t>(raw);
  return static_cast<int64_t>(raw);
}

std::string value_text(const FieldInfo& field, const uint8_t* p) {
  if (field.kind != Kind::f32) {
    int64_t value = integer(p, field.kind);
    if (field.words && value >= 0 && value < field.word_count) return field.words[value];
    return std::to_string(value);
  }
  float value;
  memcpy(&value, p, 4);
  if (std::isnan(value)) return "nan";
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));
  return text;
}

}  // namespace

const InstructionInfo* find_instruction(uint8_t opcode) {
  for (const InstructionInfo& info : kInstructions)
    if (info.opcode == opcode) return &info;
  return nullptr;
}

const InstructionInfo& decode_head(const uint8_t* code, uint64_t left) {
  if (left < kHeadBytes) fail(HNPU_ERROR_STREAM, "the code ends within an instruction");
  const InstructionInfo* info = find_instruction(code[0]);
  if (!info) fail(HNPU_ERROR_STREAM, "there is no opcode ", int{code[0]});
  if (code[1] * 4 != info->size)
    fail(HNPU_ERROR_STREAM, info->name, " has ", info->size, " bytes, its length says ", code[1] * 4);
  if (left < info->size) fail(HNPU_ERROR_STREAM, "the code ends within ", info->name);
  for (int i = info->used; i < info->size; i++)
    if (code[i]) fail(HNPU_ERROR_STREAM, info->name, ": padding is not zero");
  for (int i = 0; i < info->field_count; i++) {
    const FieldInfo& field = info->fields[i];
    if (field.kind == Kind::f32) continue;
    for (int j = 0; j < field.count; j++) {
      int64_t value = integer(code + field.offset + j * kBytes[static_cast<int>(field.kind)], field.kind);
      // A 64-bit value beyond the signed range is beyond every limit too.
      if (value >= field.least && value <= field.greatest) continue;
      if (field.words) {
        std::string words;
        for (int w = 0; w < field.word_count; w++) append(words, w ? ", " : "", field.words[w]);
        fail(HNPU_ERROR_STREAM, info->name, ": ", field.name, " is number ", value, ", of 0 to ", field.greatest, " (",
             words, ")");
      }
      fail(HNPU_ERROR_STREAM, info->name, ": ", field.name, " is ", value, ", allowed are ", field.least,
             " to ", field.greatest);
    }
  }
  return *info;
}

std::string to_text(const uint8_t* code) {
  const InstructionInfo& info = *find_instruction(code[0]);
  std::string text = info.name;
  if (tag_of(code)) text += " #" + std::to_string(tag_of(code));
  for (int i = 0; i < info.field_count; i++) {
    const FieldInfo& field = info.fields[i];
    text += std::string(" ") + field.name + "=";
    for (int j = 0; j < field.count; j++)
      text += (j ? "," : "") + value_text(field, code + field.offset + j * kBytes[static_cast<int>(field.kind)]);
  }
  return text;
}

uint16_t tag_of(const uint8_t* code) {
  uint16_t tag;
  memcpy(&tag, code + 2, 2);
  return tag;
}

int queue_of(const uint8_t* code) {
  int rule = find_instruction(code[0])->queue;
  if (rule == kQueueOfSource) return code[kHeadBytes];
  if (rule == kQueueOfTarget) return code[kHeadBytes + 1];
  return rule;
}

}  // namespace hnpu
