// The simulator as a driver library of its own: the names of hnpu.h, for HNPU_DRIVER and for Python.
// Not part of exported models, where these names would meet those of other models.
#define HNPU_API __attribute__((visibility("default")))
#include "simulator.h"

using hnpu::kSimulator;

extern "C" {
uint32_t hnpu_abi_version(void) { return kSimulator.abi_version(); }
hnpu_status hnpu_open(const char* config, hnpu_device** device) { return kSimulator.open(config, device); }
void hnpu_close(hnpu_device* device) { kSimulator.close(device); }
hnpu_status hnpu_capabilities(hnpu_device* device, hnpu_capabilities_t* c) {
  return kSimulator.capabilities(device, c);
}
hnpu_status hnpu_alloc(hnpu_device* device, uint64_t bytes, uint64_t* address) {
  return kSimulator.alloc(device, bytes, address);
}
hnpu_status hnpu_free(hnpu_device* device, uint64_t address) { return kSimulator.free(device, address); }
hnpu_status hnpu_copy_to_device(hnpu_device* device, uint64_t address, const void* source, uint64_t bytes) {
  return kSimulator.copy_to_device(device, address, source, bytes);
}
hnpu_status hnpu_copy_from_device(hnpu_device* device, void* target, uint64_t address, uint64_t bytes) {
  return kSimulator.copy_from_device(device, target, address, bytes);
}
hnpu_status hnpu_load(hnpu_device* device, const void* stream, uint64_t bytes, hnpu_program** program) {
  return kSimulator.load(device, stream, bytes, program);
}
void hnpu_unload(hnpu_device* device, hnpu_program* program) { kSimulator.unload(device, program); }
hnpu_status hnpu_submit(hnpu_device* device, hnpu_program* program, const hnpu_binding* slots, uint32_t count,
                        uint32_t flags) {
  return kSimulator.submit(device, program, slots, count, flags);
}
hnpu_status hnpu_wait(hnpu_device* device) { return kSimulator.wait(device); }
hnpu_status hnpu_read_counters(hnpu_device* device, hnpu_counters* counters) {
  return kSimulator.read_counters(device, counters);
}
hnpu_status hnpu_read_trace(hnpu_device* device, hnpu_trace_entry* entries, uint64_t capacity, uint64_t* count) {
  return kSimulator.read_trace(device, entries, capacity, count);
}
// For Python: what hnpu_driver() says in a model.
HNPU_API const hnpu_driver_table* hnpu_selected_driver(const char** error) { return hnpu_driver(error); }
const char* hnpu_last_error(void) { return kSimulator.last_error(); }
const char* hnpu_status_name(hnpu_status status) { return kSimulator.status_name(status); }
}
