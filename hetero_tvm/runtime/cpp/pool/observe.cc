// When the virtual machine calls which function: for profiles, off unless somebody asks.
//
// A hook in Python takes a microsecond or more for each call, and more the more arguments it is given: as long
// as a small kernel.  This one reads the clock.

#include <time.h>
#include <tvm/ffi/c_api.h>

#include <cstring>

#include "pool.h"

namespace {

// Followed by the function's name.
struct Mark {
  int64_t now_ns;  // CLOCK_MONOTONIC
  int32_t before, length;
};

char* marks = nullptr;
int64_t room = 0, written = 0;

int64_t Now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<int64_t>(time.tv_sec) * 1000000000 + time.tv_nsec;
}

}  // namespace

// The function "hetero_tvm_observe" of TVM's module, an instrument of the virtual machine:
// (function, its name, whether it is about to be called, its result, its arguments...).
HETERO_EXPORT int32_t __tvm_ffi_hetero_tvm_observe(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = 0;
  if (count < 3) return 0;
  Mark mark{Now(), args[2].v_int64 != 0, 0};
  const char* name = "";
  if (args[1].type_index == kTVMFFIRawStr) {
    name = args[1].v_c_str;
    mark.length = static_cast<int32_t>(strlen(name));
  } else if (args[1].type_index == kTVMFFISmallStr) {
    name = args[1].v_bytes;
    mark.length = static_cast<int32_t>(args[1].small_str_len);
  } else if (args[1].type_index == kTVMFFIStr) {
    const auto* text = reinterpret_cast<const TVMFFIByteArray*>(reinterpret_cast<const char*>(args[1].v_obj) +
                                                                sizeof(TVMFFIObject));
    name = text->data;
    mark.length = static_cast<int32_t>(text->size);
  }
  const int64_t size = static_cast<int64_t>(sizeof(mark)) + mark.length;
  if (!marks || written + size > room) return 0;
  char* at = marks + written;
  written += size;
  memcpy(at + sizeof(mark), name, mark.length);
  if (mark.before) mark.now_ns = Now();  // as late as can be
  memcpy(at, &mark, sizeof(mark));
  return 0;
}

// Writes two marks for each call from here on, in `capacity` bytes at most; null ends it.  Not while the library
// runs.  Returns the bytes that were written since the last call.
HETERO_EXPORT int64_t hetero_tvm_observe_calls(void* bytes, int64_t capacity) {
  const int64_t size = written;
  marks = static_cast<char*>(bytes);
  room = capacity;
  written = 0;
  return size;
}
