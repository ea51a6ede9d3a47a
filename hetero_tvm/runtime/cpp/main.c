/* Run an exported library from plain C, with TVM's runtime library only (no Python, no C++).
 *
 * Fills every input with a ramp (0, 1/1000, 2/1000, ... for floats; 0 and 1 in turn for integers, which
 * are fit for masks and indices), calls the model once and prints the sum of the first output.
 *
 * Build and run (S is the site-packages folder of the Python where apache-tvm is installed; the
 * program needs nothing of it but libtvm_ffi.so and libtvm_runtime.so, 6 MB together):
 *
 *   gcc -std=c11 -O2 main.c -o main -I$S/tvm_ffi/include -L$S/tvm/lib -L$S/tvm_ffi/lib \
 *       -Wl,--no-as-needed -ltvm_runtime -ltvm_runtime_extra -ltvm_ffi -ldl \
 *       -Wl,-rpath,$S/tvm/lib:$S/tvm_ffi/lib
 *   HETERO_TVM_THREADS=2 ./main ./model.so f32:8x64 i64:1x128
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

#include "verify.h"

#define MAX_INPUTS 16
#define MAX_RANK 8

static void fail(const char* what) {
  fprintf(stderr, "error: %s\n", what);
  exit(1);
}

/* Every call of the FFI returns 0, or leaves an error object in the thread. */
static void check(int status, const char* what) {
  if (status == 0) return;
  TVMFFIObjectHandle error = NULL;
  TVMFFIErrorMoveFromRaised(&error);
  TVMFFIErrorCell* cell = (TVMFFIErrorCell*)((char*)error + sizeof(TVMFFIObject));
  fprintf(stderr, "error: %s: %.*s\n", what, (int)cell->message.size, cell->message.data);
  exit(1);
}

static TVMFFIAny any_int(int64_t value) {
  TVMFFIAny any = {0};
  any.type_index = kTVMFFIInt;
  any.v_int64 = value;
  return any;
}

static TVMFFIAny any_string(const char* text) {
  TVMFFIAny any = {0};
  any.type_index = kTVMFFIRawStr;
  any.v_c_str = text;
  return any;
}

static TVMFFIAny call(TVMFFIObjectHandle function, const TVMFFIAny* args, int count) {
  TVMFFIAny result = {0};
  check(TVMFFIFunctionCall(function, (TVMFFIAny*)args, count, &result), "call");
  return result;
}

static TVMFFIObjectHandle global_function(const char* name) {
  TVMFFIByteArray key = {name, strlen(name)};
  TVMFFIObjectHandle function = NULL;
  check(TVMFFIFunctionGetGlobal(&key, &function), name);
  if (!function) fail(name);
  return function;
}

static TVMFFIObjectHandle member(TVMFFIAny module, const char* name) {
  TVMFFIAny args[3] = {module, any_string(name), any_int(0)};
  args[2].type_index = kTVMFFIBool;
  TVMFFIAny function = call(global_function("ffi.ModuleGetFunction"), args, 3);
  if (function.type_index != kTVMFFIFunction) fail(name);
  return function.v_obj;
}

/* The library checks the CPU itself: ask before any of its kernels runs. */
static void check_cpu(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) fail(dlerror());
  int (*check_function)(char*, size_t) = (int (*)(char*, size_t))dlsym(library, "hetero_tvm_check_cpu");
  char message[512];
  if (!check_function) fail("not exported by hetero_tvm");
  if (check_function(message, sizeof(message)) != 0) fail(message);
}

static void release(DLManagedTensorVersioned* self) {
  free(self->dl_tensor.data);
  free(self->dl_tensor.shape);
  free(self);
}

/* "f32:8x64" or "i64:1x128" -> a tensor that owns its memory; kernels expect 64-byte alignment. */
static TVMFFIAny make_input(const char* text) {
  DLManagedTensorVersioned* managed = calloc(1, sizeof(*managed));
  int64_t* sizes = calloc(2 * MAX_RANK, sizeof(*sizes));
  int64_t count = 1;
  int rank = 0;
  int is_float = strncmp(text, "f32:", 4) == 0;
  if (!managed || !sizes) fail("out of memory");
  if (!is_float && strncmp(text, "i64:", 4) != 0) fail("inputs are written f32:8x64 or i64:1x128");
  for (const char* at = text + 4; *at && rank < MAX_RANK; ++rank) {
    char* end;
    sizes[rank] = strtoll(at, &end, 10);
    count *= sizes[rank];
    if (end == at) fail("inputs are written f32:8x64 or i64:1x128");
    at = *end == 'x' ? end + 1 : end;
  }
  int64_t stride = 1;
  for (int i = rank - 1; i >= 0; --i) {
    sizes[MAX_RANK + i] = stride;
    stride *= sizes[i];
  }
  size_t bytes = (size_t)count * (is_float ? 4 : 8);
  void* data = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (!data) fail("out of memory");
  for (int64_t i = 0; i < count; ++i) {
    if (is_float) ((float*)data)[i] = (float)i * 1e-3f;
    else ((int64_t*)data)[i] = i % 2;
  }
  managed->version.major = DLPACK_MAJOR_VERSION;
  managed->version.minor = DLPACK_MINOR_VERSION;
  managed->deleter = release;
  managed->dl_tensor.data = data;
  managed->dl_tensor.device.device_type = kDLCPU;
  managed->dl_tensor.ndim = rank;
  managed->dl_tensor.dtype.code = is_float ? kDLFloat : kDLInt;
  managed->dl_tensor.dtype.bits = is_float ? 32 : 64;
  managed->dl_tensor.dtype.lanes = 1;
  managed->dl_tensor.shape = sizes;
  managed->dl_tensor.strides = sizes + MAX_RANK;
  TVMFFIAny any = {0};
  TVMFFIObjectHandle tensor = NULL;
  check(TVMFFITensorFromDLPackVersioned(managed, 64, 1, &tensor), "input");
  any.type_index = kTVMFFITensor;
  any.v_obj = (TVMFFIObject*)tensor;
  return any;
}

int main(int argc, char** argv) {
  TVMFFIAny inputs[MAX_INPUTS];
  if (argc < 2 || argc - 2 > MAX_INPUTS) fail("usage: main ./model.so f32:8x64 i64:1x128 ...");
  char damage[512];
  if (hetero_tvm_verify(argv[1], damage, sizeof(damage)) != 0) fail(damage);
  check_cpu(argv[1]);

  TVMFFIAny path[1] = {any_string(argv[1])}; /* with a slash in it, as dlopen wants */
  TVMFFIAny library = call(global_function("ffi.ModuleLoadFromFile"), path, 1);
  TVMFFIAny machine = call(member(library, "vm_load_executable"), NULL, 0);
  TVMFFIAny setup[3] = {any_int(kDLCPU), any_int(0), any_int(2)}; /* device, its number, pooled memory */
  call(member(machine, "vm_initialization"), setup, 3);

  for (int i = 2; i < argc; ++i) inputs[i - 2] = make_input(argv[i]);
  TVMFFIAny output = call(member(machine, "main"), inputs, argc - 2);
  if (output.type_index == kTVMFFIArray) { /* several outputs: take the first */
    TVMFFIAny pick[2] = {output, any_int(0)};
    output = call(global_function("ffi.ArrayGetItem"), pick, 2);
  }
  if (output.type_index != kTVMFFITensor) fail("the first output is not a tensor");

  const DLTensor* tensor = (const DLTensor*)((char*)output.v_obj + sizeof(TVMFFIObject));
  const float* values = (const float*)((const char*)tensor->data + tensor->byte_offset);
  int64_t count = 1;
  double sum = 0;
  for (int i = 0; i < tensor->ndim; ++i) count *= tensor->shape[i];
  if (tensor->dtype.code != kDLFloat || tensor->dtype.bits != 32) fail("the first output is not float32");
  for (int64_t i = 0; i < count; ++i) sum += values[i];
  printf("%lld values, sum %.6g\n", (long long)count, sum);
  return 0;
}
