/* Run a library that hetero_tvm exported, from C (C11) or C++: header only.
 *
 *   hetero_tvm_model* model = hetero_tvm_open("out/model.so");
 *   if (!model) die(hetero_tvm_error());
 *   hetero_tvm_array x;
 *   if (hetero_tvm_read_npy("x.npy", &x) || hetero_tvm_run(model, &x, 1)) die(hetero_tvm_error());
 *   const hetero_tvm_array* y = hetero_tvm_output(model, 0);
 *   hetero_tvm_close(model);
 *
 * It needs libtvm_ffi.so and libtvm_runtime.so of the apache-tvm and apache-tvm-ffi wheels, 6 MB together, and
 * nothing else: see cmake/ for a CMake package, example/ for a whole project.  Link with -Wl,--no-as-needed
 * -ltvm_runtime -ltvm_ffi -ldl: no symbol of the runtime is used directly, its functions are found by name.
 *
 * Opening checks that the file is what was exported (HETERO_TVM_VERIFY=0 leaves it out) and that this CPU has all
 * it needs.  A model runs one call at a time, and keeps its outputs until the next: a call beside one that runs is
 * refused.  Open it once for each thread that runs it: all share the code and the process's one pool of threads
 * (HETERO_TVM_THREADS, HETERO_TVM_PIN).  Functions give 0 for success, or say in
 * hetero_tvm_error() what was wrong, for the thread that called.
 */
#ifndef HETERO_TVM_H_
#define HETERO_TVM_H_

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <tvm/ffi/c_api.h>

#include "../verify.h"

#define HETERO_TVM_MAX_RANK 8
#define HETERO_TVM_MAX_NAME 128
#define HETERO_TVM_MAX_SYMBOL 64

/* An input or output of a model, as its manifest says.  A dimension of -1 is known only at run time: `symbol` is
 * its name there (dimensions of one name are equal), and `least` the smallest extent that it may have. */
typedef struct {
  char name[HETERO_TVM_MAX_NAME];
  char dtype[16]; /* NumPy's name: float32, int64, ... */
  int rank;
  int64_t shape[HETERO_TVM_MAX_RANK], least[HETERO_TVM_MAX_RANK];
  char symbol[HETERO_TVM_MAX_RANK][HETERO_TVM_MAX_SYMBOL];
} hetero_tvm_spec;

/* A dense array.  `data` is aligned to 64 bytes where hetero_tvm_alloc has made it; others are copied. */
typedef struct {
  void* data;
  char dtype[16];
  int rank;
  int64_t shape[HETERO_TVM_MAX_RANK];
} hetero_tvm_array;

typedef struct hetero_tvm_model {
  char* name;
  int inputs, outputs;
  hetero_tvm_spec *input, *output;
  TVMFFIAny library, machine, result;
  TVMFFIObjectHandle main;
  hetero_tvm_array* results;
  const char* manifest; /* JSON, of the library */
  int running;          /* whether a thread is in it */
} hetero_tvm_model;

#ifdef __cplusplus
#define HETERO_TVM_THREAD thread_local
#else
#define HETERO_TVM_THREAD _Thread_local
#endif
static HETERO_TVM_THREAD char hetero_tvm_message[1024];

/* Sentence on the last failure in this thread. */
static inline const char* hetero_tvm_error(void) { return hetero_tvm_message; }

static inline int hetero_tvm_fail(const char* where, const char* what) {
  snprintf(hetero_tvm_message, sizeof hetero_tvm_message, "%.400s%s%.600s", where ? where : "", where ? ": " : "", what);
  return 1;
}

/* Arrays ------------------------------------------------------------------------------------------------- */

/* Bytes of an element; 0: no dtype that is known. */
static inline size_t hetero_tvm_itemsize(const char* dtype) {
  static const struct { const char* name; size_t size; } known[] = {
      {"float32", 4}, {"float64", 8}, {"float16", 2}, {"bfloat16", 2}, {"int64", 8}, {"int32", 4}, {"int16", 2},
      {"int8", 1}, {"uint64", 8}, {"uint32", 4}, {"uint16", 2}, {"uint8", 1}, {"bool", 1}};
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
    if (strcmp(known[i].name, dtype) == 0) return known[i].size;
  return 0;
}

/* Number of elements; -1: a dimension is open, or there are too many elements to count. */
static inline int64_t hetero_tvm_count(const int64_t* shape, int rank) {
  int64_t count = 1;
  for (int i = 0; i < rank; ++i)
    if (shape[i] < 0 || __builtin_mul_overflow(count, shape[i], &count)) return -1;
  return count;
}

/* Give `array` a dtype, a shape and memory of its own (hetero_tvm_free), which is not written to. */
static inline int hetero_tvm_reserve(hetero_tvm_array* array, const char* dtype, int rank, const int64_t* shape) {
  memset(array, 0, sizeof *array);
  const size_t item = hetero_tvm_itemsize(dtype);
  const int64_t count = rank < 0 || rank > HETERO_TVM_MAX_RANK ? -1 : hetero_tvm_count(shape, rank);
  size_t bytes = 0;
  if (!item) return hetero_tvm_fail(dtype, "no dtype that is known");
  if (count < 0 || __builtin_mul_overflow((size_t)count, item, &bytes) || bytes > SIZE_MAX / 2)
    return hetero_tvm_fail(dtype, "a shape of at most 8 known dimensions is needed");
  array->data = aligned_alloc(64, (bytes / 64 + 1) * 64);
  if (!array->data) return hetero_tvm_fail(dtype, "out of memory");
  snprintf(array->dtype, sizeof array->dtype, "%s", dtype);
  array->rank = rank;
  if (rank) memcpy(array->shape, shape, sizeof *shape * (size_t)rank);
  return 0;
}

/* Fill `array` with zeros of a dtype and shape, in memory of its own (hetero_tvm_free). */
static inline int hetero_tvm_alloc(hetero_tvm_array* array, const char* dtype, int rank, const int64_t* shape) {
  if (hetero_tvm_reserve(array, dtype, rank, shape)) return 1;
  const size_t bytes = (size_t)hetero_tvm_count(shape, rank) * hetero_tvm_itemsize(dtype);
  memset(array->data, 0, (bytes / 64 + 1) * 64);
  return 0;
}

static inline void hetero_tvm_free(hetero_tvm_array* array) {
  free(array->data);
  array->data = NULL;
}

/* Read a file that numpy.save wrote: version 1 to 3, row-major, little-endian, without Python objects. */
static inline int hetero_tvm_read_npy(const char* path, hetero_tvm_array* array) {
  memset(array, 0, sizeof *array);
  static const struct { const char *code, *name; } codes[] = {
      {"<f4", "float32"}, {"<f8", "float64"}, {"<f2", "float16"}, {"<i8", "int64"},  {"<i4", "int32"},
      {"<i2", "int16"},   {"|i1", "int8"},    {"<u8", "uint64"},  {"<u4", "uint32"}, {"<u2", "uint16"},
      {"|u1", "uint8"},   {"|b1", "bool"}};
  unsigned char head[12];
  char *header = NULL, *at;
  const char *why = NULL, *dtype = NULL;
  int64_t shape[HETERO_TVM_MAX_RANK];
  int rank = 0;
  FILE* file = fopen(path, "rb");
  if (!file) return hetero_tvm_fail(path, strerror(errno));
  if (fread(head, 1, 10, file) != 10 || memcmp(head, "\x93NUMPY", 6) != 0 || head[6] < 1 || head[6] > 3) {
    why = "no .npy file";
  } else {
    size_t size = head[8] | (size_t)head[9] << 8;
    if (head[6] > 1) {
      if (fread(head + 10, 1, 2, file) != 2) why = "cut off";
      size |= (size_t)head[10] << 16 | (size_t)head[11] << 24;
    }
    if (!why && size > (1 << 20)) why = "no .npy file";
    if (!why && !(header = (char*)calloc(1, size + 1))) why = "out of memory";
    if (!why && fread(header, 1, size, file) != size) why = "cut off";
    if (!why) {
      for (size_t i = 0; i < sizeof codes / sizeof *codes; ++i) {
        char wanted[24];
        snprintf(wanted, sizeof wanted, "'descr': '%s'", codes[i].code);
        if (strstr(header, wanted)) dtype = codes[i].name;
      }
      if (!dtype) why = "a dtype that is not known, or big-endian";
      else if (!strstr(header, "'fortran_order': False")) why = "not row-major: save numpy.ascontiguousarray(x)";
      else if (!(at = strstr(header, "'shape': ("))) why = "no .npy file";
      else
        for (at += 10; *at && *at != ')'; ++at) {
          if (*at < '0' || *at > '9') continue;
          if (rank == HETERO_TVM_MAX_RANK) { why = "more than 8 dimensions"; break; }
          shape[rank++] = strtoll(at, &at, 10);
          --at;
        }
    }
  }
  if (why ? hetero_tvm_fail(path, why) : hetero_tvm_alloc(array, dtype, rank, shape)) {
    free(header);
    fclose(file);
    return 1;
  }
  const size_t bytes = (size_t)hetero_tvm_count(shape, rank) * hetero_tvm_itemsize(dtype);
  if (fread(array->data, 1, bytes, file) != bytes) {
    hetero_tvm_free(array);
    why = "cut off";
  }
  free(header);
  fclose(file);
  return why ? hetero_tvm_fail(path, why) : 0;
}

/* TVM's functions ---------------------------------------------------------------------------------------- */

static inline void hetero_tvm_drop(TVMFFIAny* any) {
  if (any->type_index >= kTVMFFIStaticObjectBegin && any->v_obj) TVMFFIObjectDecRef(any->v_obj);
  memset(any, 0, sizeof *any);
}

/* Keep the message of an error that TVM has left in this thread. */
static inline int hetero_tvm_raised(const char* where) {
  TVMFFIObjectHandle error = NULL;
  TVMFFIErrorMoveFromRaised(&error);
  if (!error) return hetero_tvm_fail(where, "failed");
  const TVMFFIErrorCell* cell = (const TVMFFIErrorCell*)((const char*)error + sizeof(TVMFFIObject));
  char text[900];
  snprintf(text, sizeof text, "%.*s", (int)(cell->message.size < 800 ? cell->message.size : 800), cell->message.data);
  TVMFFIObjectDecRef(error);
  return hetero_tvm_fail(where, text);
}

static inline int hetero_tvm_global(const char* name, TVMFFIObjectHandle* function) {
  TVMFFIByteArray key;
  key.data = name;
  key.size = strlen(name);
  *function = NULL;
  if (TVMFFIFunctionGetGlobal(&key, function) != 0) return hetero_tvm_raised(name);
  return *function ? 0 : hetero_tvm_fail(name, "TVM's runtime has no such function: link -ltvm_runtime");
}

static inline TVMFFIAny hetero_tvm_int(int64_t value) {
  TVMFFIAny any;
  memset(&any, 0, sizeof any);
  any.type_index = kTVMFFIInt;
  any.v_int64 = value;
  return any;
}

static inline TVMFFIAny hetero_tvm_text(const char* text) {
  TVMFFIAny any;
  memset(&any, 0, sizeof any);
  any.type_index = kTVMFFIRawStr;
  any.v_c_str = text;
  return any;
}

/* Call a global function by name. */
static inline int hetero_tvm_invoke(const char* name, const TVMFFIAny* args, int count, TVMFFIAny* result) {
  TVMFFIObjectHandle function;
  memset(result, 0, sizeof *result);
  if (hetero_tvm_global(name, &function)) return 1;
  const int status = TVMFFIFunctionCall(function, (TVMFFIAny*)args, count, result);
  TVMFFIObjectDecRef(function);
  return status ? hetero_tvm_raised(name) : 0;
}

/* A function of a module. */
static inline int hetero_tvm_member(TVMFFIAny module, const char* name, int imports, TVMFFIObjectHandle* function) {
  TVMFFIAny args[3], found;
  args[0] = module;
  args[1] = hetero_tvm_text(name);
  args[2] = hetero_tvm_int(imports);
  args[2].type_index = kTVMFFIBool;
  *function = NULL;
  if (hetero_tvm_invoke("ffi.ModuleGetFunction", args, 3, &found)) return 1;
  if (found.type_index != kTVMFFIFunction) return hetero_tvm_fail(name, "the library has no such function");
  *function = found.v_obj;
  return 0;
}

/* The manifest ------------------------------------------------------------------------------------------- */

/* Position behind the text `key` at or after `at`, before `end`; NULL: it is not there. */
static inline const char* hetero_tvm_behind(const char* at, const char* end, const char* key) {
  const char* found = at ? strstr(at, key) : NULL;
  return found && (!end || found < end) ? found + strlen(key) : NULL;
}

/* Copies a JSON text without its quotes; what is escaped beyond \" \\ and \/ stays as it is written. */
static inline const char* hetero_tvm_copy(const char* at, char* out, size_t size) {
  size_t used = 0;
  for (; *at && *at != '"'; ++at) {
    if (*at == '\\' && at[1] && strchr("\"\\/", at[1])) ++at;
    if (used + 1 < size) out[used++] = *at;
  }
  if (size) out[used] = '\0';
  return at;
}

/* Smallest extent of the dimensions of a name; 1 where the manifest says none. */
static inline int64_t hetero_tvm_least(const char* json, const char* symbol) {
  const char* at = hetero_tvm_behind(json, NULL, "\"signature\":{");
  at = hetero_tvm_behind(at, NULL, "\"symbols\":[");
  const char* end = at ? strchr(at, ']') : NULL;
  while (end && (at = hetero_tvm_behind(at, end, "\"name\":\""))) {
    char name[HETERO_TVM_MAX_SYMBOL];
    at = hetero_tvm_copy(at, name, sizeof name);
    const char* low = hetero_tvm_behind(at, end, "\"low\":");
    if (low && strcmp(name, symbol) == 0) return strtoll(low, NULL, 10);
  }
  return 1;
}

/* Reads the specs of the array `key` of the signature, as our manifests are written: compact, keys in order. */
static inline hetero_tvm_spec* hetero_tvm_specs(const char* json, const char* key, int* count) {
  const char* at = hetero_tvm_behind(json, NULL, "\"signature\":{");
  at = hetero_tvm_behind(at, NULL, key);
  *count = 0;
  int room = 4;
  hetero_tvm_spec* specs = (hetero_tvm_spec*)calloc((size_t)room, sizeof *specs);
  while (at && specs && *at == '{') {
    if (*count == room) {
      hetero_tvm_spec* larger = (hetero_tvm_spec*)realloc(specs, sizeof *specs * (size_t)(room *= 2));
      if (!larger) { free(specs); return NULL; }
      specs = larger;
    }
    hetero_tvm_spec* spec = &specs[(*count)++];
    memset(spec, 0, sizeof *spec);
    if (!(at = hetero_tvm_behind(at, NULL, "\"name\":\""))) break;
    at = hetero_tvm_copy(at, spec->name, sizeof spec->name);
    if (!(at = hetero_tvm_behind(at, NULL, "\"shape\":["))) break;
    while (*at && *at != ']') {
      if (spec->rank == HETERO_TVM_MAX_RANK) { free(specs); return NULL; }
      if (*at == '"') { /* a dimension with a name */
        char* symbol = spec->symbol[spec->rank];
        at = hetero_tvm_copy(at + 1, symbol, HETERO_TVM_MAX_SYMBOL);
        if (*at) ++at;
        spec->least[spec->rank] = hetero_tvm_least(json, symbol);
        spec->shape[spec->rank++] = -1;
      } else {
        char* end;
        spec->least[spec->rank] = strtoll(at, &end, 10);
        spec->shape[spec->rank] = spec->least[spec->rank];
        ++spec->rank;
        if (end == at) { free(specs); return NULL; }
        at = end;
      }
      if (*at == ',') ++at;
    }
    if (!(at = hetero_tvm_behind(at, NULL, "\"dtype\":\""))) break;
    at = hetero_tvm_copy(at, spec->dtype, sizeof spec->dtype);
    at = *at && at[1] == '}' ? at + 2 : NULL;
    if (at && *at == ',') ++at;
  }
  return specs;
}

/* Models ------------------------------------------------------------------------------------------------- */

static inline void hetero_tvm_close(hetero_tvm_model* model) {
  if (!model) return;
  hetero_tvm_drop(&model->result);
  if (model->main) TVMFFIObjectDecRef(model->main);
  hetero_tvm_drop(&model->machine);
  hetero_tvm_drop(&model->library);
  free(model->results);
  free(model->input);
  free(model->output);
  free(model->name);
  free(model);
}

/* TVM's runtime warns ("Scope Loaded:") of every function that it loads.  From here on what is written to stderr
 * waits in memory; gives its file, -1 where that cannot be had.  `kept` is stderr. */
static inline int hetero_tvm_hush(int* kept) {
  fflush(stderr);
  *kept = -1;
  int file = memfd_create("stderr", MFD_CLOEXEC);
  if (file < 0) return -1;
  *kept = fcntl(2, F_DUPFD_CLOEXEC, 3);
  if (*kept >= 0 && dup2(file, 2) == 2) return file;
  if (*kept >= 0) close(*kept);
  close(file);
  return -1;
}

/* Let stderr be what it was, and write there all that waited but those warnings. */
static inline void hetero_tvm_speak(int file, int kept) {
  char line[1024];
  if (file < 0) return;
  fflush(stderr);
  dup2(kept, 2);
  close(kept);
  FILE* stream = lseek(file, 0, SEEK_SET) == 0 ? fdopen(file, "r") : NULL;
  while (stream && fgets(line, sizeof line, stream))
    if (!strstr(line, "Scope Loaded:")) fputs(line, stderr);
  if (stream)
    fclose(stream);
  else
    close(file);
}

static inline int hetero_tvm_load_machine(hetero_tvm_model* model, const char* path) {
  TVMFFIObjectHandle function;
  TVMFFIAny name = hetero_tvm_text(path);
  if (hetero_tvm_invoke("ffi.ModuleLoadFromFile", &name, 1, &model->library)) return 1;
  if (hetero_tvm_member(model->library, "vm_load_executable", 0, &function)) return 1;
  int status = TVMFFIFunctionCall(function, NULL, 0, &model->machine);
  TVMFFIObjectDecRef(function);
  return status ? hetero_tvm_raised(path) : 0;
}

static inline int hetero_tvm_start(hetero_tvm_model* model, const char* path) {
  TVMFFIAny args[3], ignored;
  TVMFFIObjectHandle function;
  char message[512], here[4096];
  if (!strchr(path, '/')) {  /* dlopen would look for a bare name among the system's libraries */
    snprintf(here, sizeof here, "./%s", path);
    path = here;
  }
  if (hetero_tvm_verify(path, message, sizeof message) != 0) return hetero_tvm_fail(NULL, message);
  void* file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!file) return hetero_tvm_fail(NULL, dlerror());
  int (*check)(char*, size_t) = NULL;
  const char* (*manifest)(void) = NULL;
  *(void**)&check = dlsym(file, "hetero_tvm_check_cpu");
  *(void**)&manifest = dlsym(file, "hetero_tvm_manifest");
  if (!check || !manifest) return hetero_tvm_fail(path, "not exported by hetero_tvm");
  if (check(message, sizeof message) != 0) return hetero_tvm_fail(path, message);
  const char* json = model->manifest = manifest();
  const char* name = hetero_tvm_behind(json, NULL, "\"name\":\"");
  model->input = hetero_tvm_specs(json, "\"inputs\":[", &model->inputs);
  model->output = hetero_tvm_specs(json, "\"outputs\":[", &model->outputs);
  model->name = (char*)calloc(1, HETERO_TVM_MAX_NAME);
  model->results = (hetero_tvm_array*)calloc((size_t)model->outputs + 1, sizeof *model->results);
  if (!model->input || !model->output || !model->name || !model->results)
    return hetero_tvm_fail(path, "its manifest cannot be read");
  if (name) hetero_tvm_copy(name, model->name, HETERO_TVM_MAX_NAME);
  int kept, held = hetero_tvm_hush(&kept);
  int status = hetero_tvm_load_machine(model, path);
  hetero_tvm_speak(held, kept);
  if (status) return status;
  if (hetero_tvm_member(model->machine, "vm_initialization", 0, &function)) return 1;
  args[0] = hetero_tvm_int(kDLCPU);
  args[1] = hetero_tvm_int(0);
  args[2] = hetero_tvm_int(2); /* pooled memory */
  memset(&ignored, 0, sizeof ignored);
  status = TVMFFIFunctionCall(function, args, 3, &ignored);
  hetero_tvm_drop(&ignored);
  TVMFFIObjectDecRef(function);
  if (status) return hetero_tvm_raised(path);
  return hetero_tvm_member(model->machine, "main", 0, &model->main);
}

/* Open an exported library, by the path of its file.  NULL: see hetero_tvm_error(). */
static inline hetero_tvm_model* hetero_tvm_open(const char* path) {
  hetero_tvm_model* model = (hetero_tvm_model*)calloc(1, sizeof *model);
  if (!model) {
    hetero_tvm_fail(path, "out of memory");
    return NULL;
  }
  if (hetero_tvm_start(model, path) == 0) return model;
  hetero_tvm_close(model);
  return NULL;
}

static inline void hetero_tvm_release(DLManagedTensorVersioned* self) {
  free(self->manager_ctx);
  free(self);
}

/* A tensor of the runtime over, or with a copy of, an array. */
static inline int hetero_tvm_tensor(const hetero_tvm_array* array, TVMFFIAny* tensor) {
  const size_t item = hetero_tvm_itemsize(array->dtype);
  const int64_t count = hetero_tvm_count(array->shape, array->rank);
  DLManagedTensorVersioned* managed = (DLManagedTensorVersioned*)calloc(1, sizeof *managed);
  const size_t sizes = sizeof(int64_t) * 2 * HETERO_TVM_MAX_RANK, bytes = (size_t)count * item;
  const int aligned = (uintptr_t)array->data % 64 == 0;
  char* memory = (char*)aligned_alloc(64, sizes + (aligned ? 0 : (bytes / 64 + 1) * 64)); /* sizes: 128 bytes */
  if (!managed || !memory) {
    free(managed);
    free(memory);
    return hetero_tvm_fail(NULL, "out of memory");
  }
  int64_t* shape = (int64_t*)memory;
  int64_t stride = 1;
  for (int i = array->rank - 1; i >= 0; --i) {
    shape[i] = array->shape[i];
    shape[HETERO_TVM_MAX_RANK + i] = stride;
    stride *= array->shape[i];
  }
  if (!aligned) memcpy(memory + sizes, array->data, bytes);
  managed->version.major = DLPACK_MAJOR_VERSION;
  managed->version.minor = DLPACK_MINOR_VERSION;
  managed->manager_ctx = memory;
  managed->deleter = hetero_tvm_release;
  DLTensor* t = &managed->dl_tensor;
  t->data = aligned ? array->data : memory + sizes;
  t->device.device_type = kDLCPU;
  t->ndim = array->rank;
  t->dtype.code = (uint8_t)(strncmp(array->dtype, "bf", 2) == 0   ? kDLBfloat
                            : strncmp(array->dtype, "f", 1) == 0  ? kDLFloat
                            : strncmp(array->dtype, "u", 1) == 0  ? kDLUInt
                            : strcmp(array->dtype, "bool") == 0   ? kDLBool
                                                                  : kDLInt);
  t->dtype.bits = (uint8_t)(8 * item);
  t->dtype.lanes = 1;
  t->shape = shape;
  t->strides = shape + HETERO_TVM_MAX_RANK;
  TVMFFIObjectHandle handle = NULL;
  if (TVMFFITensorFromDLPackVersioned(managed, 64, 1, &handle) != 0) {
    hetero_tvm_release(managed);
    return hetero_tvm_raised("input");
  }
  memset(tensor, 0, sizeof *tensor);
  tensor->type_index = kTVMFFITensor;
  tensor->v_obj = (TVMFFIObject*)handle;
  return 0;
}

/* Check one input; names all that is wrong with it. */
static inline int hetero_tvm_check_input(const hetero_tvm_spec* spec, const hetero_tvm_array* array) {
  if (array->rank < 0 || array->rank > HETERO_TVM_MAX_RANK)
    return hetero_tvm_fail(spec->name, "has no number of dimensions from 0 to 8");
  int wrong = array->rank != spec->rank || strncmp(array->dtype, spec->dtype, sizeof array->dtype) != 0;
  for (int i = 0; i < spec->rank && !wrong; ++i) wrong = spec->shape[i] >= 0 && spec->shape[i] != array->shape[i];
  if (!wrong) {
    const int64_t count = hetero_tvm_count(array->shape, array->rank);
    const size_t item = hetero_tvm_itemsize(spec->dtype);
    if (count < 0 || (item && (uint64_t)count > PTRDIFF_MAX / item))
      return hetero_tvm_fail(spec->name, "has a dimension below 0, or more elements than memory");
    return array->data ? 0 : hetero_tvm_fail(spec->name, "has no data");
  }
  char text[512];
  int used = snprintf(text, sizeof text, "given %.*s[", (int)sizeof array->dtype, array->dtype);
  for (int i = 0; i < array->rank; ++i)
    used += snprintf(text + used, sizeof text - (size_t)used, "%s%lld", i ? "," : "", (long long)array->shape[i]);
  used += snprintf(text + used, sizeof text - (size_t)used, "], the model takes %s[", spec->dtype);
  for (int i = 0; i < spec->rank; ++i) {
    const size_t left = sizeof text - (size_t)used;
    if (spec->shape[i] < 0) used += snprintf(text + used, left, "%s%.24s", i ? "," : "", spec->symbol[i]);
    else used += snprintf(text + used, left, "%s%lld", i ? "," : "", (long long)spec->shape[i]);
  }
  snprintf(text + used, sizeof text - (size_t)used, "]");
  return hetero_tvm_fail(spec->name, text);
}

/* Check that dimensions of one name are equal, of input `index` beside itself and those before it. */
static inline int hetero_tvm_check_equal(const hetero_tvm_spec* specs, const hetero_tvm_array* arrays, int index) {
  const hetero_tvm_spec* spec = &specs[index];
  for (int i = 0; i < spec->rank; ++i)
    for (int other = 0; spec->shape[i] < 0 && other <= index; ++other)
      for (int j = 0; j < specs[other].rank; ++j) {
        const long long one = arrays[index].shape[i], two = arrays[other].shape[j];
        if (one == two || specs[other].shape[j] >= 0 || strcmp(spec->symbol[i], specs[other].symbol[j])) continue;
        if (strlen(spec->symbol[i]) == HETERO_TVM_MAX_SYMBOL - 1) continue; /* cut off: it may be another one */
        char text[384];
        snprintf(text, sizeof text, "dimension %d (%s) is %lld, and dimension %d of %s is %lld: they must be equal", i,
                 spec->symbol[i], one, j, specs[other].name, two);
        return hetero_tvm_fail(spec->name, text);
      }
  return 0;
}

/* Describe the output of a number, which `value` is, in `out`. */
static inline int hetero_tvm_take(const hetero_tvm_model* model, TVMFFIAny value, int index, hetero_tvm_array* out) {
  if (value.type_index != kTVMFFITensor) return hetero_tvm_fail(model->name, "an output is no tensor");
  const DLTensor* t = (const DLTensor*)((const char*)value.v_obj + sizeof(TVMFFIObject));
  if (t->ndim > HETERO_TVM_MAX_RANK) return hetero_tvm_fail(model->name, "an output has more than 8 dimensions");
  memcpy(out->dtype, model->output[index].dtype, sizeof out->dtype);
  out->data = (char*)t->data + t->byte_offset;
  out->rank = t->ndim;
  for (int i = 0; i < t->ndim; ++i) out->shape[i] = t->shape[i];
  return 0;
}

/* Begin a call, unless one runs: its registers and outputs would be written over. */
static inline int hetero_tvm_enter(hetero_tvm_model* model) {
  if (!__atomic_exchange_n(&model->running, 1, __ATOMIC_ACQUIRE)) return 0;
  return hetero_tvm_fail(model->name, "it runs in another thread: open it once for each thread that runs it");
}

static inline void hetero_tvm_leave(hetero_tvm_model* model) { __atomic_store_n(&model->running, 0, __ATOMIC_RELEASE); }

/* Run a model that no other thread is in. */
static inline int hetero_tvm_run_alone(hetero_tvm_model* model, const hetero_tvm_array* inputs, int count) {
  if (count != model->inputs) {
    char text[96];
    snprintf(text, sizeof text, "given %d inputs, the model takes %d", count, model->inputs);
    return hetero_tvm_fail(model->name, text);
  }
  for (int i = 0; i < count; ++i)
    if (hetero_tvm_check_input(&model->input[i], &inputs[i]) || hetero_tvm_check_equal(model->input, inputs, i))
      return 1;
  hetero_tvm_drop(&model->result);
  TVMFFIAny* args = (TVMFFIAny*)calloc((size_t)count + 1, sizeof *args);
  int made = 0, status = args ? 0 : hetero_tvm_fail(model->name, "out of memory");
  while (!status && made < count) {
    status = hetero_tvm_tensor(&inputs[made], &args[made]);
    made += !status;
  }
  if (!status && TVMFFIFunctionCall(model->main, args, count, &model->result) != 0)
    status = hetero_tvm_raised(model->name);
  for (int i = 0; i < made; ++i) hetero_tvm_drop(&args[i]);
  free(args);
  for (int i = 0; !status && i < model->outputs; ++i) {
    TVMFFIAny value = model->result, pick[2], item;
    if (value.type_index != kTVMFFIArray) {
      status = hetero_tvm_take(model, value, i, &model->results[i]);
      break;
    }
    pick[0] = value;
    pick[1] = hetero_tvm_int(i);
    status = hetero_tvm_invoke("ffi.ArrayGetItem", pick, 2, &item);
    if (!status) status = hetero_tvm_take(model, item, i, &model->results[i]);
    hetero_tvm_drop(&item); /* the array keeps it */
  }
  return status;
}

/* Run the model on `count` inputs in the order of its manifest.  Outputs stay until the next run or close. */
static inline int hetero_tvm_run(hetero_tvm_model* model, const hetero_tvm_array* inputs, int count) {
  if (hetero_tvm_enter(model)) return 1;
  const int status = hetero_tvm_run_alone(model, inputs, count);
  hetero_tvm_leave(model);
  return status;
}

/* An output of the last run; NULL: there is none of this number, or nothing has run. */
static inline const hetero_tvm_array* hetero_tvm_output(const hetero_tvm_model* model, int index) {
  return index >= 0 && index < model->outputs && model->results[index].data ? &model->results[index] : NULL;
}

#endif /* HETERO_TVM_H_ */
