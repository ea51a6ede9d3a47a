/* Run a library for NVIDIA GPUs from C++, with TVM's runtime libraries only (no Python, no compiler).
 *
 * Chooses the machine code for the GPU that is there, puts the inputs on it, calls the model `repeats`
 * times on a stream of its own, and prints the sum of the first output and the time of a call.
 *
 * Build and run (S is the site-packages folder of the Python where apache-tvm is installed, CUDA the folder
 * of the CUDA toolkit or of the wheel nvidia-cuda-runtime, which has libcudart.so.13):
 *
 *   g++ -std=c++17 -O2 cuda.cc -o cuda -I$S/tvm_ffi/include -L$S/tvm/lib -L$S/tvm_ffi/lib \
 *       -Wl,--no-as-needed -ltvm_runtime -ltvm_runtime_extra -ltvm_ffi -ldl \
 *       -Wl,-rpath,$S/tvm/lib:$S/tvm_ffi/lib
 *   LD_LIBRARY_PATH=$CUDA/lib64 ./cuda ./model.so f32:8x64 i64:1x128
 *
 * libtvm_runtime_cuda.so is loaded when the program runs, so that a machine without a driver gets a message.
 */

#include <dlfcn.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "verify.h"

namespace ffi = tvm::ffi;

constexpr int kPooled = 2, kComputeVersion = 4;  // kinds of TVM's memory and device attributes

ffi::Function Global(const char* name) { return ffi::Function::GetGlobalRequired(name); }

// TVM's CUDA runtime needs the driver (libcuda.so.1) and libcudart.so.13.
void LoadCudaRuntime() {
  for (const char* name : {"libcuda.so.1", "libcudart.so.13", "libtvm_runtime_cuda.so"})
    if (!dlopen(name, RTLD_NOW | RTLD_GLOBAL))
      throw std::runtime_error(std::string(dlerror()) + "\nneeded: an NVIDIA driver (nvidia-smi must list a GPU), "
                               "and libcudart.so.13 and libtvm_runtime_cuda.so in LD_LIBRARY_PATH");
}

// A list of texts in the manifest: "archs", the architectures with machine code in the library, or "checks",
// what the numbers behind the results mean where they are not 0.
std::vector<std::string> Texts(const std::string& path, const std::string& name) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  auto manifest = reinterpret_cast<const char* (*)()>(dlsym(library, "hetero_tvm_manifest"));
  if (!manifest) throw std::runtime_error(path + " was not exported by hetero_tvm");
  const std::string text = manifest(), key = "\"" + name + "\":[";
  std::vector<std::string> found;
  size_t at = text.find(key);
  if (at == std::string::npos) return found;
  for (at += key.size(); at < text.size() && text[at] != ']'; ++at) {
    if (text[at] != '"') continue;
    std::string one;
    for (++at; at < text.size() && text[at] != '"'; ++at) {
      if (text[at] == '\\') ++at;
      one += text[at];
    }
    found.push_back(one);
  }
  return found;
}

ffi::Tensor ToHost(const ffi::Tensor& tensor, DLDevice gpu) {
  ffi::Tensor host = Global("runtime.TVMTensorAllocWithScope")(ffi::Shape(tensor.shape()), tensor.dtype(), DLDevice{kDLCPU, 0}, nullptr)
                         .cast<ffi::Tensor>();
  Global("runtime.TVMTensorCopyFromTo")(tensor, host);
  Global("runtime.Device_StreamSync")(gpu, 0);
  return host;
}

// Kernels clamp what would lead them out of a tensor; a number for each check follows the results.
void RefuseWrongIndices(const ffi::Any& result, const std::vector<std::string>& checks, DLDevice gpu) {
  if (checks.empty()) return;
  const auto all = result.cast<ffi::Array<ffi::Any>>();
  for (size_t i = 0; i < checks.size(); ++i) {
    const ffi::Tensor flag = ToHost(all[all.size() - checks.size() + i].cast<ffi::Tensor>(), gpu);
    if (*static_cast<const int32_t*>(flag.data_ptr())) throw std::runtime_error(checks[i]);
  }
}

// The best of them for the GPU: code runs on later minor versions of its major version, sm_90a on 9.0 only.
std::string Choose(const std::vector<std::string>& archs, int device) {
  std::string version = Global("runtime.GetDeviceAttr")(static_cast<int>(kDLCUDA), device, kComputeVersion)
                            .cast<ffi::String>();
  version.erase(version.find('.'), 1);
  const int here = std::stoi(version);
  std::string best, all;
  int most = -1;
  for (const std::string& arch : archs) {
    all += " " + arch;
    const int built = std::stoi(arch.substr(3));
    const bool only = arch.back() == 'a';
    const bool runs = only ? built == here : built / 10 == here / 10 && built <= here;
    if (runs && 2 * built + only > most) {
      most = 2 * built + only;
      best = arch;
    }
  }
  if (best.empty()) throw std::runtime_error("the library has machine code for" + all + "; this GPU is sm_" + version);
  return best;
}

// "f32:8x64" or "i64:1x128" -> a tensor on the GPU filled with a ramp.
ffi::Tensor MakeInput(const std::string& text, DLDevice gpu) {
  const bool is_float = text.rfind("f32:", 0) == 0;
  if (!is_float && text.rfind("i64:", 0) != 0) throw std::runtime_error("inputs are written f32:8x64 or i64:1x128");
  std::vector<int64_t> sizes;
  int64_t count = 1;
  for (size_t at = 4; at < text.size(); ++at) {
    size_t used = 0;
    sizes.push_back(std::stoll(text.substr(at), &used));
    count *= sizes.back();
    at += used;
  }
  const DLDataType dtype{static_cast<uint8_t>(is_float ? kDLFloat : kDLInt), static_cast<uint8_t>(is_float ? 32 : 64), 1};
  const ffi::Function allocate = Global("runtime.TVMTensorAllocWithScope"), copy = Global("runtime.TVMTensorCopyFromTo");
  ffi::Tensor host = allocate(ffi::Shape(sizes), dtype, DLDevice{kDLCPU, 0}, nullptr).cast<ffi::Tensor>();
  for (int64_t i = 0; i < count; ++i) {
    if (is_float) static_cast<float*>(host.data_ptr())[i] = static_cast<float>(i) * 1e-3f;
    else static_cast<int64_t*>(host.data_ptr())[i] = i % 2;
  }
  ffi::Tensor device = allocate(ffi::Shape(sizes), dtype, gpu, nullptr).cast<ffi::Tensor>();
  copy(host, device);
  Global("runtime.Device_StreamSync")(gpu, 0);
  return device;
}

int main(int argc, char** argv) try {
  if (argc < 2) throw std::runtime_error("usage: cuda ./model.so f32:8x64 i64:1x128 ...");
  char damage[512];
  if (hetero_tvm_verify(argv[1], damage, sizeof(damage)) != 0) throw std::runtime_error(damage);
  LoadCudaRuntime();
  const DLDevice gpu{kDLCUDA, 0};
  const std::string arch = Choose(Texts(argv[1], "archs"), gpu.device_id);

  ffi::Module library = ffi::Module::LoadFromFile(argv[1]);  // with a slash in it, as dlopen wants
  ffi::Module machine = library->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
  // The GPU for kernels and the CPU for what decides about them, each with pooled memory.
  machine->GetFunction("vm_initialization")
      .value()(static_cast<int>(kDLCUDA), gpu.device_id, kPooled, static_cast<int>(kDLCPU), 0, kPooled);
  // "main_<arch>" runs as CUDA graphs, "main_<arch>_eager" kernel after kernel.
  ffi::Function model = machine->GetFunction("main_" + arch).value();

  std::vector<ffi::AnyView> args;
  std::vector<ffi::Tensor> inputs;
  for (int i = 2; i < argc; ++i) inputs.push_back(MakeInput(argv[i], gpu));
  for (const ffi::Tensor& input : inputs) args.push_back(input);

  // A stream of yours: TVMFFIEnvSetStream(kDLCUDA, device, stream, nullptr); here the default one.
  const ffi::Function synchronize = Global("runtime.Device_StreamSync");
  constexpr int repeats = 10;
  ffi::Any result;
  model.CallPacked(args.data(), static_cast<int>(args.size()), &result);  // captures the graphs
  synchronize(gpu, 0);
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) model.CallPacked(args.data(), static_cast<int>(args.size()), &result);
  synchronize(gpu, 0);
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();

  RefuseWrongIndices(result, Texts(argv[1], "checks"), gpu);
  // One output is a tensor, several are an array of them.
  ffi::Tensor first = result.as<ffi::Tensor>() ? result.cast<ffi::Tensor>()
                                               : result.cast<ffi::Array<ffi::Any>>()[0].cast<ffi::Tensor>();
  if (first.dtype().code != kDLFloat || first.dtype().bits != 32) throw std::runtime_error("the first output is not float32");
  const ffi::Tensor host = ToHost(first, gpu);
  const int64_t count = static_cast<int64_t>(ffi::GetDataSize(*host.GetDLTensorPtr()) / sizeof(float));
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<const float*>(host.data_ptr())[i];
  std::printf("%s: %lld values, sum %.6g\n%.3f ms per call\n", arch.c_str(), static_cast<long long>(count), sum, ms / repeats);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
