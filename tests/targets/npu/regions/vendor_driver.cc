// A vendor's driver for tests: every function of hnpu.h, served by the simulator's library that the
// environment variable VENDOR_SIMULATOR names, counted, and counted out to standard error at exit.
//
// VENDOR_CONFIG: the device that is really there, instead of what the model asks for (a file).
// VENDOR_FAILS: a function that reports a failure of the hardware.
// Built with -DWITHOUT_WAIT it lacks hnpu_wait, with -DVERSION=n it has that version of the interface.
#define HNPU_API __attribute__((visibility("default")))
#include "hnpu.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>

#ifndef VERSION
#define VERSION HNPU_ABI_VERSION
#endif

namespace {

struct Counts {
  std::mutex mutex;
  std::map<std::string, int> calls;
  ~Counts() {
    for (const auto& [name, count] : calls) std::fprintf(stderr, "vendor: %s %d\n", name.c_str(), count);
  }
} counts;
thread_local bool failed = false;

void* simulator() {
  static void* library = dlopen(std::getenv("VENDOR_SIMULATOR"), RTLD_NOW | RTLD_LOCAL);
  return library;
}

template <class F, class... Args>
auto forward(F, const char* name, Args... args) {
  {
    std::lock_guard<std::mutex> guard(counts.mutex);
    counts.calls[name]++;
  }
  return reinterpret_cast<F>(dlsym(simulator(), name))(args...);
}

bool fails(const char* name) {
  const char* chosen = std::getenv("VENDOR_FAILS");
  return failed = chosen && !std::strcmp(chosen, name);
}

}  // namespace

#define FORWARD(function, ...) \
  (fails(#function) ? HNPU_ERROR_DRIVER : forward(&function, #function, __VA_ARGS__))

extern "C" {
uint32_t hnpu_abi_version(void) { return VERSION; }
hnpu_status hnpu_open(const char* config, hnpu_device** device) {
  std::string text = config;
  if (const char* file = std::getenv("VENDOR_CONFIG")) {
    std::ostringstream content;
    content << std::ifstream(file).rdbuf();
    text = content.str();
  }
  return FORWARD(hnpu_open, text.c_str(), device);
}
void hnpu_close(hnpu_device* d) { forward(&hnpu_close, "hnpu_close", d); }
hnpu_status hnpu_capabilities(hnpu_device* d, hnpu_capabilities_t* c) {
  hnpu_status status = FORWARD(hnpu_capabilities, d, c);
  if (std::getenv("VENDOR_ISA")) c->isa_version = 7;
  return status;
}
hnpu_status hnpu_alloc(hnpu_device* d, uint64_t n, uint64_t* a) { return FORWARD(hnpu_alloc, d, n, a); }
hnpu_status hnpu_free(hnpu_device* d, uint64_t a) { return FORWARD(hnpu_free, d, a); }
hnpu_status hnpu_copy_to_device(hnpu_device* d, uint64_t a, const void* p, uint64_t n) {
  return FORWARD(hnpu_copy_to_device, d, a, p, n);
}
hnpu_status hnpu_copy_from_device(hnpu_device* d, void* p, uint64_t a, uint64_t n) {
  return FORWARD(hnpu_copy_from_device, d, p, a, n);
}
hnpu_status hnpu_load(hnpu_device* d, const void* s, uint64_t n, hnpu_program** p) {
  return FORWARD(hnpu_load, d, s, n, p);
}
void hnpu_unload(hnpu_device* d, hnpu_program* p) { forward(&hnpu_unload, "hnpu_unload", d, p); }
hnpu_status hnpu_submit(hnpu_device* d, hnpu_program* p, const hnpu_binding* b, uint32_t n, uint32_t f) {
  return FORWARD(hnpu_submit, d, p, b, n, f);
}
#ifndef WITHOUT_WAIT
hnpu_status hnpu_wait(hnpu_device* d) { return FORWARD(hnpu_wait, d); }
#endif
hnpu_status hnpu_read_counters(hnpu_device* d, hnpu_counters* c) { return FORWARD(hnpu_read_counters, d, c); }
hnpu_status hnpu_read_trace(hnpu_device* d, hnpu_trace_entry* e, uint64_t n, uint64_t* c) {
  return FORWARD(hnpu_read_trace, d, e, n, c);
}
const char* hnpu_last_error(void) {
  return failed ? "the vendor's chip is on fire" : forward(&hnpu_last_error, "hnpu_last_error");
}
const char* hnpu_status_name(hnpu_status s) { return forward(&hnpu_status_name, "hnpu_status_name", s); }
}
