// Stand-in for libcuda.so.1 and libcudart.so.13, for machines without an NVIDIA driver.
//
// TVM's CUDA module cannot even be created without these two libraries; that alone would make a GPU
// a requirement for building.  This file offers the entry points that TVM calls.  By default it is a
// driver without devices: everything that needs one fails with CUDA's own error code.
//
// With HETERO_TVM_CUDA_EMULATE=1 there is one device whose memory is host memory and whose kernels are
// host code: an image that starts with "HTVMEMU1" holds a shared object made by targets/cuda/emulator.py from the
// generated CUDA C++.  Stream capture records launches and copies, so that CUDA graphs replay them.  A
// kernel that fails leaves the context broken, as on a GPU: every later call returns its error.
//
// Streams are synchronous, unless HETERO_TVM_CUDA_EMULATE_LATE=1: work of non-blocking streams is then
// done as late as events and synchronisation allow, so that a missing wait shows as wrong numbers.
// HETERO_TVM_CUDA_EMULATE_NO_CAPTURE=1 makes a device that cannot capture graphs.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

// Two libraries are made of this file; `inline` variables are one and the same in both.
namespace standin {
constexpr int kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kInvalidImage = 200, kNotFound = 500, kNotReady = 600;
constexpr int kNoDevice = 100, kTooMuchShared = 1, kLaunchFailure = 719, kNoCapture = 900;

bool is_set(const char* variable) {
  const char* text = getenv(variable);
  return text && *text && strcmp(text, "0");
}
bool emulating() { return is_set("HETERO_TVM_CUDA_EMULATE"); }
int capability() {  // 80 for sm_80
  const char* text = getenv("HETERO_TVM_CUDA_EMULATE_ARCH");
  return text && *text ? atoi(text) : 80;
}
// What was made on the emulated device can still be freed when the emulation is switched off.
inline bool g_used = false;
inline int g_broken = kSuccess;  // the error of a kernel that failed
int need_device() {
  g_used = g_used || emulating();
  return g_used ? g_broken : kNoDevice;
}

using Entry = int (*)(void** args, const int* dims, int shared_bytes);
struct Function {
  Entry entry;
  std::vector<int> sizes;  // bytes of each argument
  int shared_limit = 48 << 10;
};
struct Module {
  void* library;
  std::map<std::string, Function> functions;
};
using Work = std::function<void()>;
struct Graph {
  std::vector<Work> works;
};
struct Stream {
  Graph* capturing = nullptr;
  bool blocking = true;
  std::deque<Work> queue;  // only of non-blocking streams, and only when work is done late
};
struct Mark {  // what recording an event leaves in a stream
  Stream* stream = nullptr;
  bool done = true;
  std::chrono::steady_clock::time_point at;
};
struct Event {
  std::shared_ptr<Mark> mark = std::make_shared<Mark>();
};
inline std::recursive_mutex g_mutex;  // one thread at a time works on the device
using Lock = std::lock_guard<std::recursive_mutex>;
inline Stream g_default;
inline std::set<Stream*> g_streams;
inline std::map<uintptr_t, size_t> g_pinned;
inline int g_last_error = kSuccess;

Stream* stream_of(void* handle) { return handle ? static_cast<Stream*>(handle) : &g_default; }
void submit(void* handle, Work work) {
  Lock lock(g_mutex);
  Stream* stream = stream_of(handle);
  if (Graph* graph = stream->capturing) {
    graph->works.push_back(std::move(work));
  } else if (!stream->blocking && is_set("HETERO_TVM_CUDA_EMULATE_LATE")) {
    stream->queue.push_back(std::move(work));
  } else {
    work();
  }
}
void drain(Stream* stream, const Mark* until = nullptr) {
  Lock lock(g_mutex);
  while (!stream->queue.empty() && !(until && until->done)) {
    Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    work();
  }
}
void drain_all() {
  Lock lock(g_mutex);
  for (Stream* stream : g_streams) drain(stream);
}
bool pinned(const void* address) {
  Lock lock(g_mutex);
  auto place = g_pinned.upper_bound(reinterpret_cast<uintptr_t>(address));
  if (place == g_pinned.begin()) return false;
  --place;
  return reinterpret_cast<uintptr_t>(address) < place->first + place->second;
}
int shared_optin() { return capability() == 86 || capability() == 89 ? 99 << 10 : capability() >= 90 ? 227 << 10 : 163 << 10; }
int attribute(int which) {
  switch (which) {
    case 1: return 1024;                  // threads per block
    case 2: case 3: return 1024;          // block dimensions
    case 4: return 64;
    case 5: return 2147483647;            // grid dimensions
    case 6: case 7: return 65535;
    case 8: return 48 << 10;              // shared memory per block
    case 10: return 32;                   // warp size
    case 12: case 82: return 65536;       // registers per block, per multiprocessor
    case 13: return 1000000;              // clock rate, kHz
    case 16: return 1;                    // multiprocessors
    case 38: return 40 << 20;             // L2
    case 75: return capability() / 10;
    case 76: return capability() % 10;
    case 97: return shared_optin();
    default: return 0;
  }
}
const char* message(int code) {
  switch (code) {
    case kSuccess: return "no error";
    case kInvalidValue: return "invalid argument";
    case kOutOfMemory: return "out of memory";
    case kNoDevice: return "no CUDA-capable device is detected (no NVIDIA driver is installed)";
    case kInvalidImage: return "device kernel image is invalid (emulation runs kernels built for emulation only)";
    case kNotFound: return "named symbol not found";
    case kLaunchFailure: return "unspecified launch failure";
    case kNoCapture: return "operation not permitted when stream is capturing";
    default: return "unknown error";
  }
}
const char* name_of(int code) {
  switch (code) {
    case kSuccess: return "cudaSuccess";
    case kInvalidValue: return "cudaErrorInvalidValue";
    case kOutOfMemory: return "cudaErrorMemoryAllocation";
    case kNoDevice: return "cudaErrorNoDevice";
    case kInvalidImage: return "cudaErrorInvalidKernelImage";
    case kLaunchFailure: return "cudaErrorLaunchFailure";
    case kNoCapture: return "cudaErrorStreamCaptureUnsupported";
    default: return "cudaErrorUnknown";
  }
}
}  // namespace standin
using namespace standin;

#define API extern "C" __attribute__((visibility("default")))

// --- driver ---------------------------------------------------------------------------------------
API int cuGetErrorName(int code, const char** text) { *text = name_of(code); return kSuccess; }
API int cuGetErrorString(int code, const char** text) { *text = message(code); return kSuccess; }
API int cuDeviceGetName(char* name, int length, int) {
  snprintf(name, length, "CPU emulation of sm_%d", capability());
  return need_device();
}
API int cuModuleLoadData(void** out, const void* image) {
  if (int code = need_device()) return code;
  const char* bytes = static_cast<const char*>(image);
  if (memcmp(bytes, "HTVMEMU1", 8)) return kInvalidImage;
  uint64_t length;
  memcpy(&length, bytes + 8, 8);
  int file = memfd_create("hetero_tvm_emulated", 0);
  if (file < 0) return kOutOfMemory;
  for (uint64_t done = 0; done < length;) {
    ssize_t wrote = write(file, bytes + 16 + done, length - done);
    if (wrote <= 0) { close(file); return kOutOfMemory; }
    done += wrote;
  }
  std::string path = "/proc/self/fd/" + std::to_string(file);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) fprintf(stderr, "hetero_tvm: %s\n", dlerror());
  // The file stays open: the loader knows libraries by path, and the number would be used again.
  if (!library) return kInvalidImage;
  *out = new Module{library, {}};
  return kSuccess;
}
API int cuModuleUnload(void*) { return kSuccess; }
API int cuModuleGetFunction(void** out, void* module, const char* name) {
  Module* owner = static_cast<Module*>(module);
  auto entry = reinterpret_cast<Entry>(dlsym(owner->library, (std::string("emulated_") + name).c_str()));
  auto sizes = static_cast<const int*>(dlsym(owner->library, (std::string("sizes_") + name).c_str()));
  if (!entry || !sizes) return kNotFound;
  Function& function = owner->functions[name];
  function.entry = entry;
  function.sizes.assign(sizes + 1, sizes + 1 + sizes[0]);
  *out = &function;
  return kSuccess;
}
API int cuFuncSetAttribute(void* function, int which, int value) {
  if (which != 8) return kSuccess;  // dynamic shared memory
  if (value > shared_optin()) return kTooMuchShared;
  static_cast<Function*>(function)->shared_limit = value;
  return kSuccess;
}
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};
API int cuLaunchKernelEx(const LaunchConfig* config, void* handle, void** args, void**) {
  if (int code = need_device()) return code;
  auto* function = static_cast<Function*>(handle);
  unsigned threads = config->block[0] * config->block[1] * config->block[2];
  if (!threads || threads > 1024 || config->block[2] > 64 || config->grid[1] > 65535 ||
      config->grid[2] > 65535 || static_cast<int>(config->shared_bytes) > function->shared_limit)
    return kInvalidValue;
  std::vector<std::string> values;  // a graph replays the launch when the caller's copies are gone
  for (size_t i = 0; i < function->sizes.size(); ++i)
    values.emplace_back(static_cast<const char*>(args[i]), function->sizes[i]);
  std::vector<int> dims = {int(config->grid[0]), int(config->grid[1]), int(config->grid[2]),
                           int(config->block[0]), int(config->block[1]), int(config->block[2])};
  int shared = config->shared_bytes;
  g_last_error = kSuccess;
  submit(config->stream, [=]() mutable {
    std::vector<void*> pointers;
    for (auto& value : values) pointers.push_back(&value[0]);
    if (!g_broken) g_broken = g_last_error = function->entry(pointers.data(), dims.data(), shared);
  });
  return g_last_error;
}
API int cuTensorMapEncodeTiled() { return kInvalidValue; }

// --- run time -------------------------------------------------------------------------------------
API const char* cudaGetErrorName(int code) { return name_of(code); }
API const char* cudaGetErrorString(int code) { return message(code); }
API int cudaGetLastError() { int code = g_last_error; g_last_error = kSuccess; return code; }
API int cudaPeekAtLastError() { return g_last_error; }
API int cudaGetDeviceCount(int* count) {
  *count = emulating() ? 1 : 0;
  return *count ? kSuccess : kNoDevice;
}
API int cudaGetDevice(int* device) { *device = 0; return need_device(); }
API int cudaSetDevice(int device) { return device ? 101 : need_device(); }
API int cudaDeviceGetAttribute(int* value, int which, int) { *value = attribute(which); return need_device(); }
struct PropertiesHead {
  char name[256], uuid[16], luid[8];
  unsigned node_mask;
  size_t total, shared;
  int registers, warp;
  size_t pitch;
  int threads;
};
API int cudaGetDeviceProperties(PropertiesHead* p, int) {
  memset(p, 0, sizeof *p);
  p->total = size_t(4) << 30;
  p->shared = 48 << 10;
  p->registers = 65536, p->warp = 32, p->threads = 1024;
  return need_device();
}
API int cudaMemGetInfo(size_t* available, size_t* total) {
  *available = *total = size_t(4) << 30;
  return need_device();
}
API int cudaMalloc(void** pointer, size_t size) {
  if (int code = need_device()) return code;
  // As on a device: 256-byte alignment, and nobody may count on zeros.
  if (posix_memalign(pointer, 256, size ? size : 1)) return kOutOfMemory;
  memset(*pointer, 0xFF, size);
  return kSuccess;
}
API int cudaFree(void* pointer) {
  drain_all();
  free(pointer);
  return kSuccess;
}
API int cudaMallocHost(void** pointer, size_t size) {
  Lock lock(g_mutex);
  int code = cudaMalloc(pointer, size);
  if (!code) g_pinned[reinterpret_cast<uintptr_t>(*pointer)] = size;
  return code;
}
API int cudaFreeHost(void* pointer) {
  Lock lock(g_mutex);
  g_pinned.erase(reinterpret_cast<uintptr_t>(pointer));
  return cudaFree(pointer);
}
API int cudaMemcpyAsync(void* to, const void* from, size_t size, int kind, void* stream) {
  if (kind == 1 && !pinned(from)) {  // pageable memory is read before the call returns
    auto copy = std::make_shared<std::string>(static_cast<const char*>(from), size);
    submit(stream, [=] { memcpy(to, copy->data(), size); });
    return need_device();
  }
  submit(stream, [=] { memmove(to, from, size); });
  if (kind == 2 && !pinned(to)) drain(stream_of(stream));  // and written before it returns
  return need_device();
}
API int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, void* stream) {
  return cudaMemcpyAsync(to, from, size, 3, stream);
}
API int cudaStreamCreateWithFlags(void** stream, unsigned flags) {
  auto* made = new Stream;
  made->blocking = !(flags & 1);
  Lock lock(g_mutex);
  g_streams.insert(made);
  *stream = made;
  return need_device();
}
API int cudaStreamCreate(void** stream) { return cudaStreamCreateWithFlags(stream, 0); }
API int cudaStreamDestroy(void* handle) {
  Lock lock(g_mutex);
  Stream* stream = static_cast<Stream*>(handle);
  drain(stream);
  g_streams.erase(stream);
  delete stream;
  return kSuccess;
}
API int cudaStreamSynchronize(void* stream) {
  drain(stream_of(stream));
  return need_device();
}
API int cudaDeviceSynchronize() {
  drain_all();
  return need_device();
}
API int cudaStreamWaitEvent(void* stream, void* event, unsigned) {
  auto mark = static_cast<Event*>(event)->mark;
  submit(stream, [mark] {
    if (!mark->done) drain(mark->stream, mark.get());
  });
  return kSuccess;
}
API int cudaStreamBeginCapture(void* stream, int) {
  if (is_set("HETERO_TVM_CUDA_EMULATE_NO_CAPTURE")) return kNoCapture;
  stream_of(stream)->capturing = new Graph;
  return need_device();
}
API int cudaStreamEndCapture(void* stream, void** graph) {
  *graph = stream_of(stream)->capturing;
  stream_of(stream)->capturing = nullptr;
  return *graph ? kSuccess : kInvalidValue;
}
API int cudaGraphInstantiate(void** executable, void* graph, unsigned long long) {
  *executable = new Graph(*static_cast<Graph*>(graph));
  return kSuccess;
}
API int cudaGraphLaunch(void* executable, void* stream) {
  for (auto& work : static_cast<Graph*>(executable)->works) submit(stream, work);
  return kSuccess;
}
API int cudaGraphDestroy(void* graph) { delete static_cast<Graph*>(graph); return kSuccess; }
API int cudaGraphExecDestroy(void* graph) { delete static_cast<Graph*>(graph); return kSuccess; }
API int cudaEventCreate(void** event) { *event = new Event; return need_device(); }
API int cudaEventCreateWithFlags(void** event, unsigned) { return cudaEventCreate(event); }
API int cudaEventDestroy(void* event) { delete static_cast<Event*>(event); return kSuccess; }
API int cudaEventRecord(void* event, void* stream) {
  auto mark = std::make_shared<Mark>();
  mark->stream = stream_of(stream);
  mark->done = false;
  static_cast<Event*>(event)->mark = mark;
  submit(stream, [mark] {
    mark->done = true;
    mark->at = std::chrono::steady_clock::now();
  });
  return need_device();
}
API int cudaEventSynchronize(void* event) {
  auto mark = static_cast<Event*>(event)->mark;
  if (!mark->done) drain(mark->stream, mark.get());
  return need_device();
}
API int cudaEventQuery(void* event) { return static_cast<Event*>(event)->mark->done ? kSuccess : kNotReady; }
API int cudaEventElapsedTime(float* milliseconds, void* begin, void* end) {
  auto span = static_cast<Event*>(end)->mark->at - static_cast<Event*>(begin)->mark->at;
  *milliseconds = std::chrono::duration<float, std::milli>(span).count();
  return need_device();
}
