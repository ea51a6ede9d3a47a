// Runs regions of a compiled model on the NPU through hnpu.h, whoever implements it.
//
// A library opens its device at the first call.  Programs, constants and buffers stay on the device;
// a call copies the inputs there, submits, waits, and copies the outputs back.  One lock: a device
// serves one call at a time.

#include "npu_region.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "device/hnpu_loader.h"

namespace {

struct Loaded {
  hnpu_program* program = nullptr;
  std::vector<hnpu_binding> slots;  // constants, workspace, inputs, outputs
  std::vector<hnpu_trace_entry> trace;
  hnpu_counters counters{};
  double call_seconds = 0;
  bool ran = false;
};

struct Model {
  std::mutex mutex;
  const hnpu_driver_table* driver = nullptr;
  hnpu_device* device = nullptr;
  hnpu_capabilities_t can{};
  std::vector<Loaded> regions;
  uint32_t flags = 0;
};

Model& model() {
  // Never destroyed: at exit the driver may be gone before us.
  static Model* instance = new Model;
  return *instance;
}

int32_t fail(const std::string& text) {
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", text.c_str());
  return -1;
}

std::string why(Model& m, const hetero_npu_region& region, const char* doing, hnpu_status status) {
  const char* detail = m.driver->last_error();
  return std::string("NPU, ") + region.name + ", " + doing + ": " + m.driver->status_name(status) +
         (detail && *detail ? std::string(": ") + detail : std::string());
}

// Fields of a stream's header (see the manual): its version, and the bytes that it needs of each scratchpad.
uint32_t little_endian(const unsigned char* at, int bytes) {
  uint32_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= static_cast<uint32_t>(at[i]) << 8 * i;
  return value;
}
constexpr int kVersionAt = 4, kNeedsAt = 48;
const char* const kScratchpads[HNPU_SCRATCHPADS] = {"L1", "L0A", "L0B", "L0C", "UB"};

// What the device lacks for this model, all of it; a driver may look no further than its own limits.
std::string too_small(const Model& m) {
  uint32_t version = m.can.isa_version;
  uint64_t needs[HNPU_SCRATCHPADS] = {};
  for (uint32_t r = 0; r < hetero_npu_region_count; ++r) {
    const unsigned char* stream = hetero_npu_regions[r].stream;
    if (little_endian(stream + kVersionAt, 2) != m.can.isa_version) version = little_endian(stream + kVersionAt, 2);
    for (int i = 0; i < HNPU_SCRATCHPADS; ++i) {
      needs[i] = std::max<uint64_t>(needs[i], little_endian(stream + kNeedsAt + 4 * i, 4));
    }
  }
  std::string text;
  auto add = [&](const std::string& problem) { text += (text.empty() ? "" : "; ") + problem; };
  if (version != m.can.isa_version) {
    add("its command streams have version " + std::to_string(version) + ", the device takes version " +
        std::to_string(m.can.isa_version));
  }
  for (int i = 0; i < HNPU_SCRATCHPADS; ++i) {
    if (needs[i] > m.can.scratchpad_bytes[i]) {
      add("it needs " + std::to_string(needs[i]) + " bytes of " + kScratchpads[i] + ", the device has " +
          std::to_string(m.can.scratchpad_bytes[i]));
    }
  }
  return text;
}

// Empty when all is well.
std::string open_device(Model& m) {
  if (m.device) return "";
  const char* error = nullptr;
  m.driver = hnpu_driver(&error);
  if (!m.driver) return error ? error : "the NPU driver cannot be loaded";
  hnpu_status status = m.driver->open(hetero_npu_config, &m.device);
  if (status != HNPU_OK) {
    m.device = nullptr;
    return std::string("NPU, opening the device: ") + m.driver->status_name(status) + ": " + m.driver->last_error();
  }
  status = m.driver->capabilities(m.device, &m.can);
  std::string problem = status == HNPU_OK ? too_small(m) : m.driver->last_error();
  if (!problem.empty()) {
    m.driver->close(m.device);
    m.device = nullptr;
    return "NPU, the device cannot run this model: " + problem;
  }
  m.regions.resize(hetero_npu_region_count);
  return "";
}

std::string load(Model& m, const hetero_npu_region& region, Loaded& loaded) {
  if (loaded.program) return "";
  auto& d = *m.driver;
  std::vector<hnpu_binding> slots;
  auto add = [&](uint64_t bytes) {
    hnpu_binding binding{0, bytes};
    hnpu_status status = d.alloc(m.device, bytes, &binding.address);
    if (status == HNPU_OK) slots.push_back(binding);
    return status;
  };
  auto release = [&] {
    for (auto& slot : slots) d.free(m.device, slot.address);
  };
  hnpu_status status = add(region.constant_bytes);
  if (status == HNPU_OK) status = add(region.workspace_bytes);
  for (uint32_t i = 0; i < region.inputs + region.outputs && status == HNPU_OK; ++i) {
    status = add(region.bytes[i]);
  }
  const char* doing = "allocating device memory";
  if (status == HNPU_OK) {
    doing = "copying the weights";
    status = d.copy_to_device(m.device, slots[0].address, region.constants, region.constant_bytes);
  }
  hnpu_program* program = nullptr;
  if (status == HNPU_OK) {
    doing = "loading the command stream";
    status = d.load(m.device, region.stream, region.stream_bytes, &program);
  }
  if (status != HNPU_OK) {
    std::string text = why(m, region, doing, status);
    release();
    return text;
  }
  loaded.slots = std::move(slots);
  loaded.program = program;
  return "";
}

const DLTensor* tensor(const TVMFFIAny& value) {
  if (value.type_index == kTVMFFITensor) {
    return reinterpret_cast<const DLTensor*>(reinterpret_cast<const char*>(value.v_obj) + sizeof(TVMFFIObject));
  }
  return value.type_index == kTVMFFIDLTensorPtr ? static_cast<const DLTensor*>(value.v_ptr) : nullptr;
}

uint64_t size_of(const DLTensor* t) {
  uint64_t bytes = (t->dtype.bits * t->dtype.lanes + 7) / 8;
  for (int i = 0; i < t->ndim; ++i) bytes *= static_cast<uint64_t>(t->shape[i]);
  return bytes;
}

}  // namespace

int32_t hetero_npu_call(uint32_t index, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  const hetero_npu_region& region = hetero_npu_regions[index];
  const uint32_t count = region.inputs + region.outputs;
  if (num_args != static_cast<int32_t>(count)) {
    return fail(std::string(region.name) + ": wrong number of arguments");
  }
  Model& m = model();
  std::lock_guard<std::mutex> guard(m.mutex);
  std::string error = open_device(m);
  if (!error.empty()) return fail(error);
  const auto start = std::chrono::steady_clock::now();
  Loaded& loaded = m.regions[index];
  error = load(m, region, loaded);
  if (!error.empty()) return fail(error);
  auto& d = *m.driver;
  std::vector<char*> host(count);
  for (uint32_t i = 0; i < count; ++i) {
    const DLTensor* t = tensor(args[i]);
    if (!t || size_of(t) != region.bytes[i]) {
      return fail(std::string(region.name) + ": argument " + std::to_string(i) + " is no tensor of " +
                  std::to_string(region.bytes[i]) + " bytes");
    }
    host[i] = static_cast<char*>(t->data) + t->byte_offset;
  }
  for (uint32_t i = 0; i < region.inputs; ++i) {
    hnpu_status status = d.copy_to_device(m.device, loaded.slots[2 + i].address, host[i], region.bytes[i]);
    if (status != HNPU_OK) return fail(why(m, region, "copying an input", status));
  }
  hnpu_status status = d.submit(m.device, loaded.program, loaded.slots.data(),
                                static_cast<uint32_t>(loaded.slots.size()), m.flags);
  if (status != HNPU_OK) return fail(why(m, region, "submitting", status));
  status = d.wait(m.device);
  if (status != HNPU_OK) return fail(why(m, region, "running", status));
  loaded.ran = d.read_counters(m.device, &loaded.counters) == HNPU_OK;
  loaded.trace.clear();
  if (m.flags & HNPU_TRACE) {
    uint64_t entries = 0;
    if (d.read_trace(m.device, nullptr, 0, &entries) == HNPU_OK) {
      loaded.trace.resize(entries);
      d.read_trace(m.device, loaded.trace.data(), entries, &entries);
    }
  }
  for (uint32_t i = region.inputs; i < count; ++i) {
    status = d.copy_from_device(m.device, host[i], loaded.slots[2 + i].address, region.bytes[i]);
    if (status != HNPU_OK) return fail(why(m, region, "copying an output", status));
  }
  loaded.call_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result->type_index = kTVMFFINone;
  result->zero_padding = 0;
  result->v_int64 = 0;
  return 0;
}

// --- for profilers: what the last calls did -----------------------------------------------------

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED uint32_t hetero_npu_profile_regions(void) { return hetero_npu_region_count; }

EXPORTED const hetero_npu_region* hetero_npu_profile_region(uint32_t index) {
  return index < hetero_npu_region_count ? &hetero_npu_regions[index] : nullptr;
}

EXPORTED const char* hetero_npu_profile_config(void) { return hetero_npu_config; }

// HNPU_TRACE, HNPU_TIMING_ONLY for the calls that follow.
EXPORTED void hetero_npu_profile_flags(uint32_t flags) {
  std::lock_guard<std::mutex> guard(model().mutex);
  model().flags = flags;
}

// 1 when the region has run.
EXPORTED int hetero_npu_profile_counters(uint32_t index, hnpu_counters* counters) {
  Model& m = model();
  std::lock_guard<std::mutex> guard(m.mutex);
  if (index >= m.regions.size() || !m.regions[index].ran) return 0;
  *counters = m.regions[index].counters;
  return 1;
}

// The number of regions that have run, and the sum over them.
EXPORTED uint32_t hetero_npu_profile_use(hetero_npu_use* use) {
  Model& m = model();
  std::lock_guard<std::mutex> guard(m.mutex);
  *use = {};
  uint32_t count = 0;
  for (const Loaded& region : m.regions) {
    if (!region.ran) continue;
    ++count;
    use->cycles += region.counters.cycles;
    use->call_seconds += region.call_seconds;
    use->joule += region.counters.energy_joule;
    use->macs += region.counters.macs;
    use->dram_bytes += region.counters.dram_read_bytes + region.counters.dram_write_bytes;
  }
  use->seconds = m.can.clock_hz > 0 ? use->cycles / m.can.clock_hz : 0;
  return count;
}

EXPORTED uint64_t hetero_npu_profile_trace(uint32_t index, const hnpu_trace_entry** entries) {
  Model& m = model();
  std::lock_guard<std::mutex> guard(m.mutex);
  if (index >= m.regions.size()) return 0;
  *entries = m.regions[index].trace.data();
  return m.regions[index].trace.size();
}
