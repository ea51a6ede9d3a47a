// Run an exported library: run model.so [input.npy ...]
//
// Inputs that are not given are made up, by what the manifest says of them: ones for masks, small whole numbers
// for indices, a wave for everything else, each of the smallest shape that the model takes.  Prints each output's
// shape, smallest, largest and mean value, and the time of a call.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "hetero_tvm.hpp"

using hetero_tvm::Array;
using hetero_tvm::Spec;

Array make_up(const Spec& spec) {
  Array made(spec.dtype, spec.least);  // of dimensions that are known only at run time the smallest
  const bool mask = spec.name.find("mask") != std::string::npos;
  for (std::int64_t i = 0; i < made.size(); ++i) {
    if (spec.dtype == "float32") made.data<float>()[i] = mask ? 1.0f : std::sin(0.1f * static_cast<float>(i));
    if (spec.dtype == "float64") made.data<double>()[i] = mask ? 1.0 : std::sin(0.1 * static_cast<double>(i));
    if (spec.dtype == "int64") made.data<std::int64_t>()[i] = mask ? 1 : i % 2;
    if (spec.dtype == "int32") made.data<std::int32_t>()[i] = mask ? 1 : static_cast<std::int32_t>(i % 2);
    if (spec.dtype == "bool") made.data<bool>()[i] = true;
  }
  return made;
}

int main(int argc, char** argv) try {
  if (argc < 2) throw hetero_tvm::Error("usage: run ./model.so [input.npy ...]");
  hetero_tvm::Model model(argv[1]);
  const int most = static_cast<int>(model.inputs().size());
  if (argc - 2 > most)
    throw hetero_tvm::Error(std::to_string(argc - 2) + " files, and the model takes " + std::to_string(most));
  std::vector<Array> inputs;
  int given = 2;
  for (const Spec& spec : model.inputs()) {
    inputs.push_back(given < argc ? Array::from_npy(argv[given]) : make_up(spec));
    ++given;
  }
  const std::vector<Array> outputs = model(inputs);
  std::array<double, 11> spent;  // milliseconds; the middle one is told: others may take the cores for a while
  for (double& one : spent) {
    const auto start = std::chrono::steady_clock::now();
    model(inputs);
    one = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }
  std::sort(spent.begin(), spent.end());
  const std::vector<Spec> specs = model.outputs();
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::printf("%s: %s[", specs[i].name.c_str(), outputs[i].dtype().c_str());
    for (size_t d = 0; d < outputs[i].shape().size(); ++d)
      std::printf("%s%lld", d ? "," : "", static_cast<long long>(outputs[i].shape()[d]));
    std::printf("]");
    if (outputs[i].dtype() == "float32" && outputs[i].size() > 0) {
      const float* values = outputs[i].data<float>();
      double low = values[0], high = values[0], sum = 0;
      for (std::int64_t k = 0; k < outputs[i].size(); ++k) {
        low = std::fmin(low, values[k]);
        high = std::fmax(high, values[k]);
        sum += values[k];
      }
      std::printf(" from %.6g to %.6g, mean %.6g", low, high, sum / static_cast<double>(outputs[i].size()));
    }
    std::printf("\n");
  }
  std::printf("%s: %.3f ms per call\n", model.name().c_str(), spent[spent.size() / 2]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
