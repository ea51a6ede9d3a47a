#include "program.h"

#include <array>

#include "fault.h"

namespace hnpu {
namespace {

constexpr int kHeader = 96, kSlotBytes = 16, kCrcOffset = 8;
constexpr uint64_t kMostBytes = uint64_t{1} << 31;

std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; bit++) c = c & 1 ? 0xedb88320u ^ c >> 1 : c >> 1;
    table[i] = c;
  }
  return table;
}

// CRC-32 (IEEE) of all bytes, those of the checksum itself taken as zero.
uint32_t checksum(const std::vector<uint8_t>& data) {
  static const std::array<uint32_t, 256> table = crc_table();
  uint32_t crc = ~0u;
  for (size_t i = 0; i < data.size(); i++) {
    uint8_t byte = i >= kCrcOffset && i < kCrcOffset + 4 ? 0 : data[i];
    crc = table[(crc ^ byte) & 0xff] ^ crc >> 8;
  }
  return ~crc;
}

template <class T>
T read(const std::vector<uint8_t>& data, uint64_t at) {
  T value;
  memcpy(&value, data.data() + at, sizeof value);
  return value;
}

bool is_utf8(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    auto byte = [&](size_t k) { return i + k < text.size() ? static_cast<uint8_t>(text[i + k]) : 0u; };
    uint32_t first = byte(0);
    size_t length = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : first >> 3 == 30 ? 4 : 0;
    if (!length) return false;
    uint32_t point = length == 1 ? first : first & (0x7fu >> length);
    for (size_t k = 1; k < length; k++) {
      if (byte(k) >> 6 != 2) return false;
      point = point << 6 | (byte(k) & 0x3f);
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (point < least[length] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return false;
    i += length;
  }
  return true;
}

std::string text_at(const std::vector<uint8_t>& data, uint64_t text, uint64_t bytes, uint32_t offset, uint64_t at) {
  if (offset >= bytes) fail(HNPU_ERROR_STREAM, "offset ", at, ": name at ", offset, ", the text has ", bytes, " bytes");
  std::string found = reinterpret_cast<const char*>(data.data() + text + offset);
  if (!is_utf8(found)) fail(HNPU_ERROR_STREAM, "offset ", at, ": the name is not UTF-8");
  return found;
}

void check_slots(const Step& step, const Program& program) {
  Access found[kMostAccesses];
  int n = accesses(step.code, found);
  for (int i = 0; i < n; i++) {
    const Access& a = found[i];
    if (a.memory != kDram) continue;
    if (a.slot >= program.slots.size())
      fail(HNPU_ERROR_RANGE, "slot ", a.slot, ", there are ", program.slots.size());
    if (static_cast<uint64_t>(a.high) > program.slots[a.slot].bytes)
      fail(HNPU_ERROR_RANGE, "reaches byte ", a.high, " of slot ", a.slot, " (", program.slots[a.slot].name,
           "), which has ", program.slots[a.slot].bytes);
  }
}

}  // namespace

std::string Program::name(size_t index) const {
  const uint8_t* code = steps[index].code;
  std::string text = say("instruction ", index, " at offset ", code - stream.data(), " (", to_text(code), ")");
  uint16_t tag = tag_of(code);
  return tag ? text + " of " + tags[tag] : text;
}

void load_program(Program& program, const void* stream, uint64_t bytes, const Spec& spec) {
  if (bytes < kHeader) fail(HNPU_ERROR_STREAM, "offset 0: ", bytes, " bytes are less than a header (", kHeader, ")");
  if (bytes > kMostBytes) fail(HNPU_ERROR_STREAM, "offset 0: ", bytes, " bytes are more than a stream may have");
  program.stream.assign(static_cast<const uint8_t*>(stream), static_cast<const uint8_t*>(stream) + bytes);
  const std::vector<uint8_t>& data = program.stream;
  if (memcmp(data.data(), "HNPU", 4)) fail(HNPU_ERROR_STREAM, "offset 0: not a command stream");
  if (read<uint32_t>(data, kCrcOffset) != checksum(data))
    fail(HNPU_ERROR_STREAM, "offset ", kCrcOffset, ": the checksum does not fit: the stream is damaged");
  if (read<uint16_t>(data, 4) != HNPU_ISA_VERSION)
    fail(HNPU_ERROR_VERSION, "offset 4: the stream is of version ", read<uint16_t>(data, 4), ", this driver of version ",
         HNPU_ISA_VERSION);
  bool reserved = read<uint32_t>(data, 12) != 0;
  for (int at = 72; at < kHeader; at += 4) reserved |= read<uint32_t>(data, at) != 0;
  if (read<uint16_t>(data, 6) != kHeader || reserved)
    fail(HNPU_ERROR_STREAM, "offset 6: the header is not of this version");
  uint64_t total = read<uint64_t>(data, 16), count = read<uint32_t>(data, 24), slots = read<uint32_t>(data, 28);
  uint64_t tags = read<uint32_t>(data, 32), text_bytes = read<uint32_t>(data, 36), code_bytes = read<uint64_t>(data, 40);
  if (slots > kMaxSlots || tags == 0 || tags > kMaxTags || count > kMaxInstructions)
    fail(HNPU_ERROR_STREAM, "offset 24: ", count, " instructions, ", slots, " slots, ", tags, " tags: refused");
  if (code_bytes > bytes || total != bytes ||
      total != kHeader + slots * kSlotBytes + tags * 4 + text_bytes + code_bytes)
    fail(HNPU_ERROR_STREAM, "offset 16: ", bytes, " bytes, which is not what the header's sections add up to");
  uint64_t at_tags = kHeader + slots * kSlotBytes, text = at_tags + tags * 4, code = text + text_bytes;
  if (text_bytes == 0 || text_bytes % 8 || data[code - 1])
    fail(HNPU_ERROR_STREAM, "offset ", text, ": the text is not NUL-terminated and padded to 8 bytes");

  for (int i = 0; i < HNPU_SCRATCHPADS; i++) {
    uint32_t need = read<uint32_t>(data, 48 + 4 * i);
    if (need > spec.scratchpad[i])
      fail(HNPU_ERROR_UNSUPPORTED, "the program needs ", need, " bytes of ", kScratchpadNames[i], ", ", spec.name,
           " has ", spec.scratchpad[i]);
  }
  if (read<uint32_t>(data, 68) > spec.events)
    fail(HNPU_ERROR_UNSUPPORTED, "the program needs ", read<uint32_t>(data, 68), " events, ", spec.name, " has ",
         spec.events);
  for (uint64_t i = 0; i < slots; i++) {
    uint64_t at = kHeader + i * kSlotBytes;
    uint32_t kind = read<uint32_t>(data, at + 12);
    if (kind > 3) fail(HNPU_ERROR_STREAM, "offset ", at, ": slot ", i, " is of unknown kind ", kind);
    uint64_t size = read<uint64_t>(data, at);
    if (size > spec.dram_bytes)
      fail(HNPU_ERROR_UNSUPPORTED, "offset ", at, ": slot ", i, " has ", size, " bytes, ", spec.name, " has ",
           spec.dram_bytes, " of DRAM");
    program.slots.push_back(
        {text_at(data, text, text_bytes, read<uint32_t>(data, at + 8), at), size, static_cast<SlotKind>(kind)});
  }
  for (uint64_t i = 0; i < tags; i++)
    program.tags.push_back(text_at(data, text, text_bytes, read<uint32_t>(data, at_tags + 4 * i), at_tags + 4 * i));
  if (!program.tags[0].empty()) fail(HNPU_ERROR_STREAM, "offset ", at_tags, ": tag 0 must be the empty name");

  program.steps.reserve(count);
  for (uint64_t at = code; at < bytes;) {
    const uint8_t* p = data.data() + at;
    uint64_t index = program.steps.size();
    const InstructionInfo* info = nullptr;
    try {
      info = &decode_head(p, bytes - at);
      if (index >= count) fail(HNPU_ERROR_STREAM, "the header says ", count, " instructions");
      if (tag_of(p) >= tags) fail(HNPU_ERROR_STREAM, "tag ", tag_of(p), ", there are ", tags);
      check(p, spec);
      Step step{p, static_cast<int8_t>(queue_of(p)), {}};
      check_slots(step, program);
      step.cost = cost(p, spec);
      program.steps.push_back(step);
    } catch (const Fault& f) {
      std::string text = info ? say(" (", to_text(p), ")") : "";
      fail(f.status, "instruction ", index, " at offset ", at, text, ": ", f.what());
    }
    at += info->size;
  }
  if (program.steps.size() != count)
    fail(HNPU_ERROR_STREAM, "offset 24: ", count, " instructions announced, there are ", program.steps.size());
}

}  // namespace hnpu
