#include "spec.h"

#include <cmath>
#include <locale>
#include <map>
#include <sstream>

#include "fault.h"

namespace hnpu {
namespace {

using Values = std::map<std::string, std::string>;

Values split(const char* config) {
  Values values;
  std::istringstream lines(config);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.empty()) continue;
    size_t equals = line.find('=');
    if (equals == std::string::npos)
      fail(HNPU_ERROR_ARGUMENT, "device configuration: '", line, "' is not key=value");
    if (!values.emplace(line.substr(0, equals), line.substr(equals + 1)).second)
      fail(HNPU_ERROR_ARGUMENT, "device configuration: ", line.substr(0, equals), " is given twice");
  }
  return values;
}

double take(Values& values, const char* key, double least, double greatest) {
  auto found = values.find(key);
  if (found == values.end()) fail(HNPU_ERROR_ARGUMENT, "device configuration: ", key, " is missing");
  std::istringstream text(found->second);
  text.imbue(std::locale::classic());  // a point, whatever the program's locale
  double value = 0;
  bool number = text >> value && text.peek() == std::istringstream::traits_type::eof() && std::isfinite(value);
  if (!number || value < least || value > greatest)
    fail(HNPU_ERROR_ARGUMENT, "device configuration: ", key, "=", found->second, " is out of range");
  values.erase(found);
  return value;
}

uint32_t whole(Values& values, const char* key, uint32_t least, uint32_t greatest, uint32_t multiple = 1) {
  double value = take(values, key, least, greatest);
  if (value != std::floor(value) || static_cast<uint32_t>(value) % multiple)
    fail(HNPU_ERROR_ARGUMENT, "device configuration: ", key, " must be a multiple of ", multiple);
  return static_cast<uint32_t>(value);
}

}  // namespace

Spec parse_spec(const char* config) {
  Values v = split(config);
  Spec s{};
  s.name = v["name"];
  v.erase("name");
  s.block_m = whole(v, "block_m", 1, 256);
  s.block_n = whole(v, "block_n", 1, 256);
  s.block_k = whole(v, "block_k", 1, 256);
  s.vector_lanes = whole(v, "vector_lanes", 8, 4096);
  const char* sizes[] = {"l1_kib", "l0a_kib", "l0b_kib", "l0c_kib", "ub_kib"};
  for (int i = 0; i < HNPU_SCRATCHPADS; i++)
    s.scratchpad[i] = uint64_t{1024} * whole(v, sizes[i], 1, i ? 16384 : 65536);
  s.l1_to_l0a = whole(v, "l1_to_l0a", 32, 16384, 32);
  s.l1_to_l0b = whole(v, "l1_to_l0b", 32, 16384, 32);
  s.l0c_to_ub = whole(v, "l0c_to_ub", 32, 16384, 32);
  s.ub_bytes_per_cycle = whole(v, "ub_bytes_per_cycle", 32, 65536, 32);
  s.clock_hz = 1e9 * take(v, "clock_ghz", 1e-9, 100);
  s.dram_bytes_per_cycle = take(v, "dram_bytes_per_cycle", 1e-9, 65536);
  s.dram_latency = whole(v, "dram_latency", 0, 100000);
  s.issue_cycles = whole(v, "issue_cycles", 0, 1000);
  s.transcendental_divisor = whole(v, "transcendental_divisor", 1, 64);
  s.dma_outstanding = whole(v, "dma_outstanding", 1, 256);
  s.events = whole(v, "events", 1, 256);
  s.alignment = whole(v, "alignment", 4, 4096);
  if (s.alignment & (s.alignment - 1))
    fail(HNPU_ERROR_ARGUMENT, "device configuration: alignment must be a power of two");
  s.dram_bytes = uint64_t{1024 * 1024} * whole(v, "dram_mib", 1, 1u << 20);
  struct {
    const char* key;
    double* value;
  } costs[] = {
      {"energy_mac_f16", &s.energy.mac_f16},
      {"energy_mac_i8", &s.energy.mac_i8},
      {"energy_vector_element", &s.energy.vector_element},
      {"energy_vector_transcendental", &s.energy.vector_transcendental},
      {"energy_l0_byte", &s.energy.l0_byte},
      {"energy_l1_byte", &s.energy.l1_byte},
      {"energy_ub_byte", &s.energy.ub_byte},
      {"energy_dram_byte", &s.energy.dram_byte},
      {"energy_instruction", &s.energy.instruction},
      {"energy_static_per_cycle", &s.energy.static_per_cycle},
  };
  for (auto& cost : costs) *cost.value = take(v, cost.key, 0, 1e12);
  if (!v.empty())
    fail(HNPU_ERROR_ARGUMENT, "device configuration: unknown key ", v.begin()->first);
  return s;
}

}  // namespace hnpu
