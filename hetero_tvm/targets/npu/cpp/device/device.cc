// hnpu.h for the simulator: handles, and exceptions turned into status codes.
#include <algorithm>
#include <memory>
#include <new>
#include <set>

#include "engine.h"
#include "fault.h"
#include "hnpu.h"
#include "order.h"
#include "simulator.h"

struct hnpu_program {
  hnpu::Program program;
};

struct hnpu_device {
  hnpu::Spec spec;
  hnpu::Dram dram;
  std::set<hnpu_program*> programs;
  bool submitted = false;
  hnpu_status outcome = HNPU_OK;
  std::string problem;
  hnpu::Result result;
  explicit hnpu_device(const hnpu::Spec& s) : spec(s), dram(s.dram_bytes, s.alignment) {}
};

namespace hnpu {
namespace {

thread_local std::string last_error;

template <class F>
hnpu_status guarded(F f) {
  try {
    f();
    return HNPU_OK;
  } catch (const Fault& fault) {
    last_error = fault.what();
    return fault.status;
  } catch (const std::bad_alloc&) {
    last_error = "no host memory left";
    return HNPU_ERROR_MEMORY;
  } catch (const std::exception& error) {
    last_error = error.what();
    return HNPU_ERROR_DRIVER;
  }
}

void present(const void* pointer, const char* what) {
  if (!pointer) fail(HNPU_ERROR_ARGUMENT, what, " is null");
}

uint32_t abi_version() { return HNPU_ABI_VERSION; }

hnpu_status open(const char* config, hnpu_device** device) {
  if (device) *device = nullptr;
  return guarded([&] {
    present(config, "config");
    present(device, "device");
    *device = new hnpu_device(parse_spec(config));
  });
}

void close(hnpu_device* device) {
  if (!device) return;
  for (hnpu_program* program : device->programs) delete program;
  delete device;
}

hnpu_status capabilities(hnpu_device* device, hnpu_capabilities_t* c) {
  return guarded([&] {
    present(device, "device");
    present(c, "capabilities");
    const Spec& s = device->spec;
    *c = {};
    c->isa_version = HNPU_ISA_VERSION;
    c->matrix_block[0] = s.block_m;
    c->matrix_block[1] = s.block_n;
    c->matrix_block[2] = s.block_k;
    c->vector_lanes = s.vector_lanes;
    c->events = s.events;
    c->alignment = s.alignment;
    for (int i = 0; i < HNPU_SCRATCHPADS; i++) c->scratchpad_bytes[i] = s.scratchpad[i];
    c->dram_bytes = s.dram_bytes;
    c->clock_hz = s.clock_hz;
    c->dram_bytes_per_cycle = s.dram_bytes_per_cycle;
  });
}

hnpu_status alloc(hnpu_device* device, uint64_t bytes, uint64_t* address) {
  return guarded([&] {
    present(device, "device");
    present(address, "address");
    *address = device->dram.allocate(bytes);
  });
}

hnpu_status release(hnpu_device* device, uint64_t address) {
  return guarded([&] {
    present(device, "device");
    device->dram.release(address);
  });
}

hnpu_status copy_to_device(hnpu_device* device, uint64_t address, const void* source, uint64_t bytes) {
  return guarded([&] {
    present(device, "device");
    device->dram.copy_in(address, source, bytes);
  });
}

hnpu_status copy_from_device(hnpu_device* device, void* target, uint64_t address, uint64_t bytes) {
  return guarded([&] {
    present(device, "device");
    device->dram.copy_out(target, address, bytes);
  });
}

// Addresses for slots that share no memory.
std::vector<int64_t> apart(const Program& program) {
  std::vector<int64_t> bases;
  int64_t next = 0;
  for (const SlotInfo& slot : program.slots) {
    bases.push_back(next);
    next += static_cast<int64_t>(slot.bytes);
  }
  return bases;
}

// Whether bindings share memory, so that the check of hnpu_load does not hold for them.
bool meet(const Program& program, const hnpu_binding* bindings) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (size_t i = 0; i < program.slots.size(); i++)
    if (program.slots[i].bytes)
      ranges.emplace_back(bindings[i].address, bindings[i].address + program.slots[i].bytes);
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); i++)
    if (ranges[i].first < ranges[i - 1].second) return true;
  return false;
}

hnpu_status load(hnpu_device* device, const void* stream, uint64_t bytes, hnpu_program** program) {
  if (program) *program = nullptr;
  return guarded([&] {
    present(device, "device");
    present(stream, "stream");
    present(program, "program");
    auto fresh = std::make_unique<hnpu_program>();
    load_program(fresh->program, stream, bytes, device->spec);
    check_order(fresh->program, apart(fresh->program));
    device->programs.insert(fresh.get());
    *program = fresh.release();
  });
}

void unload(hnpu_device* device, hnpu_program* program) {
  if (device && device->programs.erase(program)) delete program;
}

void bind_slots(hnpu_device& device, const Program& program, const hnpu_binding* bindings, Machine& machine) {
  for (size_t i = 0; i < program.slots.size(); i++) {
    const SlotInfo& info = program.slots[i];
    Slot slot;
    slot.bytes = static_cast<int64_t>(info.bytes);
    if (bindings) {
      if (bindings[i].bytes < info.bytes)
        fail(HNPU_ERROR_ARGUMENT, "slot ", i, " (", info.name, ") needs ", info.bytes, " bytes, bound are ",
             bindings[i].bytes);
      if (info.bytes) {
        auto [start, allocation] = device.dram.find(bindings[i].address, info.bytes);
        slot.offset = static_cast<int64_t>(bindings[i].address - start);
        slot.allocation = allocation;
        slot.data = allocation->data() + slot.offset;
        if (slot.offset % device.spec.alignment)
          fail(HNPU_ERROR_ALIGNMENT, "slot ", i, " (", info.name, ") is bound to ", bindings[i].address,
               ", not a multiple of ", device.spec.alignment);
      }
    }
    machine.slots.push_back(slot);
  }
  // Contents of outputs and scratch do not survive from one run to the next: a program that relies on
  // them is wrong.  Inputs that share their memory keep theirs.
  auto undefined = [&](size_t i) {
    return program.slots[i].kind == SlotKind::k_output || program.slots[i].kind == SlotKind::k_scratch;
  };
  std::vector<Slot*> kept;
  for (size_t i = 0; i < program.slots.size(); i++) {
    Slot& slot = machine.slots[i];
    if (slot.allocation && !undefined(i) && slot.allocation->is_written(slot.offset, slot.bytes)) kept.push_back(&slot);
  }
  for (size_t i = 0; i < program.slots.size(); i++) {
    Slot& slot = machine.slots[i];
    if (slot.allocation && undefined(i)) slot.allocation->set_written(slot.offset, slot.bytes, false);
  }
  for (Slot* slot : kept) slot->allocation->set_written(slot->offset, slot->bytes, true);
}

hnpu_status submit(hnpu_device* device, hnpu_program* program, const hnpu_binding* slots, uint32_t count,
                   uint32_t flags) {
  return guarded([&] {
    present(device, "device");
    if (!device->programs.count(program)) fail(HNPU_ERROR_ARGUMENT, "the program is not loaded on this device");
    if (device->submitted) fail(HNPU_ERROR_ARGUMENT, "a program is under way: call hnpu_wait first");
    if (flags & ~uint32_t{HNPU_TIMING_ONLY | HNPU_TRACE}) fail(HNPU_ERROR_ARGUMENT, "unknown flags ", flags);
    const Program& p = program->program;
    bool timing = flags & HNPU_TIMING_ONLY;
    if (!slots && !timing && !p.slots.empty()) fail(HNPU_ERROR_ARGUMENT, "slots is null");
    if (slots && count != p.slots.size())
      fail(HNPU_ERROR_ARGUMENT, "the program has ", p.slots.size(), " slots, bound are ", count);
    Machine machine(device->spec, !timing);
    bind_slots(*device, p, timing ? nullptr : slots, machine);
    device->result = {};
    device->submitted = true;
    device->outcome = guarded([&] {
      if (!timing && meet(p, slots)) {
        std::vector<int64_t> bases;
        for (size_t i = 0; i < p.slots.size(); i++) bases.push_back(static_cast<int64_t>(slots[i].address));
        check_order(p, bases);
      }
      run_program(p, machine, flags & HNPU_TRACE, device->result);
    });
    device->problem = device->outcome == HNPU_OK ? "" : last_error;
  });
}

hnpu_status wait(hnpu_device* device) {
  return guarded([&] {
    present(device, "device");
    if (!device->submitted) fail(HNPU_ERROR_ARGUMENT, "nothing was submitted");
    device->submitted = false;
    if (device->outcome != HNPU_OK) throw Fault(device->outcome, device->problem);
  });
}

hnpu_status read_counters(hnpu_device* device, hnpu_counters* counters) {
  return guarded([&] {
    present(device, "device");
    present(counters, "counters");
    *counters = device->result.counters;
  });
}

hnpu_status read_trace(hnpu_device* device, hnpu_trace_entry* entries, uint64_t capacity, uint64_t* count) {
  return guarded([&] {
    present(device, "device");
    present(count, "count");
    const auto& trace = device->result.trace;
    *count = trace.size();
    if (entries) std::copy_n(trace.begin(), std::min<uint64_t>(capacity, trace.size()), entries);
  });
}

const char* error_text() { return last_error.c_str(); }

const char* status_name(hnpu_status status) {
  static const char* const names[] = {"ok", "bad argument", "wrong version", "malformed stream", "unsupported",
                                      "out of memory", "out of range", "misaligned", "uninitialized read",
                                      "data race", "deadlock", "driver failure"};
  auto index = static_cast<unsigned>(status);
  return index < sizeof names / sizeof *names ? names[index] : "unknown status";
}

}  // namespace

const hnpu_driver_table kSimulator = {abi_version, open,   close,  capabilities,  alloc,      release,
                                      copy_to_device, copy_from_device, load, unload, submit, wait,
                                      read_counters, read_trace, error_text, status_name};

}  // namespace hnpu
