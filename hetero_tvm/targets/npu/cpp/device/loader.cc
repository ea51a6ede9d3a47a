// The built-in simulator, or the vendor's library that HNPU_DRIVER names.
#include "hnpu_loader.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "simulator.h"

namespace {

struct Choice {
  hnpu_driver_table table{};
  bool good = false;
  std::string problem;
};

template <class F>
bool resolve(void* library, const char* name, F& function, Choice& choice) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (!function) choice.problem = std::string("it has no function ") + name;
  return function;
}

bool resolve_all(void* library, Choice& c) {
  hnpu_driver_table& t = c.table;
  if (!resolve(library, "hnpu_abi_version", t.abi_version, c)) return false;
  if (t.abi_version() != HNPU_ABI_VERSION) {
    c.problem = "it has version " + std::to_string(t.abi_version()) +
                " of the driver interface, this model needs version " + std::to_string(HNPU_ABI_VERSION);
    return false;
  }
  return resolve(library, "hnpu_open", t.open, c) && resolve(library, "hnpu_close", t.close, c) &&
         resolve(library, "hnpu_capabilities", t.capabilities, c) && resolve(library, "hnpu_alloc", t.alloc, c) &&
         resolve(library, "hnpu_free", t.free, c) && resolve(library, "hnpu_copy_to_device", t.copy_to_device, c) &&
         resolve(library, "hnpu_copy_from_device", t.copy_from_device, c) &&
         resolve(library, "hnpu_load", t.load, c) && resolve(library, "hnpu_unload", t.unload, c) &&
         resolve(library, "hnpu_submit", t.submit, c) && resolve(library, "hnpu_wait", t.wait, c) &&
         resolve(library, "hnpu_read_counters", t.read_counters, c) &&
         resolve(library, "hnpu_read_trace", t.read_trace, c) &&
         resolve(library, "hnpu_last_error", t.last_error, c) &&
         resolve(library, "hnpu_status_name", t.status_name, c);
}

Choice choose() {
  Choice choice;
  const char* path = std::getenv("HNPU_DRIVER");
  if (!path || !*path) {
    choice.table = hnpu::kSimulator;
    choice.good = true;
    return choice;
  }
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    choice.problem = dlerror();
  else
    choice.good = resolve_all(library, choice);
  if (!choice.good)
    choice.problem = std::string("the NPU driver HNPU_DRIVER=") + path + " cannot be used: " + choice.problem;
  return choice;
}

}  // namespace

extern "C" const hnpu_driver_table* hnpu_driver(const char** error) {
  static const Choice choice = choose();
  if (error) *error = choice.problem.c_str();
  return choice.good ? &choice.table : nullptr;
}
