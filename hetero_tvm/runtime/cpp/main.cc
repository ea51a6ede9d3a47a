/* Run an exported library from C++, with TVM's runtime library only (no Python, no compiler).
 *
 * Fills every input with a ramp (0 and 1 in turn for integers, which are fit for masks and indices), calls the model `repeats` times, and prints the sum of the first
 * output and the time of a call.
 *
 * Build and run (S is the site-packages folder of the Python where apache-tvm is installed; the
 * program needs nothing of it but libtvm_ffi.so and libtvm_runtime.so, 6 MB together):
 *
 *   g++ -std=c++17 -O2 main.cc -o main -I$S/tvm_ffi/include -L$S/tvm/lib -L$S/tvm_ffi/lib \
 *       -Wl,--no-as-needed -ltvm_runtime -ltvm_runtime_extra -ltvm_ffi -ldl \
 *       -Wl,-rpath,$S/tvm/lib:$S/tvm_ffi/lib
 *   HETERO_TVM_THREADS=2 ./main ./model.so f32:8x64 i64:1x128
 *
 * --no-as-needed matters: no symbol of libtvm_runtime.so is used directly, its functions are
 * found by name.
 */

#include <dlfcn.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
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

// Memory of an input; kernels expect 64-byte alignment.
struct AlignedMemory {
  void AllocData(DLTensor* t) { t->data = std::aligned_alloc(64, (ffi::GetDataSize(*t) + 63) / 64 * 64); }
  void FreeData(DLTensor* t) { std::free(t->data); }
};

// A damaged library must not be loaded at all; a sound one checks the CPU itself, before any kernel runs.
void CheckLibrary(const std::string& path) {
  char damage[512];
  if (hetero_tvm_verify(path.c_str(), damage, sizeof(damage)) != 0) throw std::runtime_error(damage);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  auto check = reinterpret_cast<int (*)(char*, size_t)>(dlsym(library, "hetero_tvm_check_cpu"));
  if (!check) throw std::runtime_error(path + " was not exported by hetero_tvm");
  char message[512];
  if (check(message, sizeof(message)) != 0) throw std::runtime_error(message);
}

// "f32:8x64" or "i64:1x128" -> a tensor filled with a ramp.
ffi::Tensor MakeInput(const std::string& text) {
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
  ffi::Tensor tensor = ffi::Tensor::FromNDAlloc(AlignedMemory(), ffi::Shape(sizes), dtype, DLDevice{kDLCPU, 0});
  for (int64_t i = 0; i < count; ++i) {
    if (is_float) static_cast<float*>(tensor.data_ptr())[i] = static_cast<float>(i) * 1e-3f;
    else static_cast<int64_t*>(tensor.data_ptr())[i] = i % 2;
  }
  return tensor;
}

int main(int argc, char** argv) try {
  if (argc < 2) throw std::runtime_error("usage: main ./model.so f32:8x64 i64:1x128 ...");
  CheckLibrary(argv[1]);

  ffi::Module library = ffi::Module::LoadFromFile(argv[1]);  // with a slash in it, as dlopen wants
  ffi::Module machine = library->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
  // Device, its number, memory (2: pooled).
  machine->GetFunction("vm_initialization").value()(static_cast<int>(kDLCPU), 0, 2);
  ffi::Function model = machine->GetFunction("main").value();

  std::vector<ffi::AnyView> args;
  std::vector<ffi::Tensor> inputs;
  for (int i = 2; i < argc; ++i) inputs.push_back(MakeInput(argv[i]));
  for (const ffi::Tensor& input : inputs) args.push_back(input);

  constexpr int repeats = 10;
  ffi::Any result;
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) model.CallPacked(args.data(), static_cast<int>(args.size()), &result);
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();

  // One output is a tensor, several are an array of them.
  ffi::Tensor first = result.as<ffi::Tensor>() ? result.cast<ffi::Tensor>()
                                               : result.cast<ffi::Array<ffi::Any>>()[0].cast<ffi::Tensor>();
  const DLTensor* t = first.GetDLTensorPtr();
  if (t->dtype.code != kDLFloat || t->dtype.bits != 32) throw std::runtime_error("the first output is not float32");
  const float* values = reinterpret_cast<const float*>(static_cast<const char*>(t->data) + t->byte_offset);
  const int64_t count = static_cast<int64_t>(ffi::GetDataSize(*t) / sizeof(float));
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += values[i];
  std::printf("%lld values, sum %.6g\n%.3f ms per call\n", static_cast<long long>(count), sum, ms / repeats);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
