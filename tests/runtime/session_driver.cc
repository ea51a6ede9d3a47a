// Sessions by commands from stdin: each line is one of
//   run OUT IN...   a step on .npy files; its outputs' float32 or int64 values go to OUT.0, OUT.1, ...
//   fork | use N | rewind N | reset | length
// What fails prints "error: ..." and goes on.

#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "hetero_tvm.hpp"

using hetero_tvm::Array;

int main(int, char** argv) try {
  hetero_tvm::Model model(argv[1]);
  std::vector<hetero_tvm::Session> sessions;
  sessions.emplace_back(model);
  size_t current = 0;
  for (const auto& spec : sessions[0].inputs()) std::cout << spec.name << ' ';
  std::cout << "-> ";
  for (const auto& spec : sessions[0].outputs()) std::cout << spec.name << ' ';
  std::cout << '\n';
  for (std::string line; std::getline(std::cin, line);) try {
      std::istringstream words(line);
      std::string command, out;
      long long number = 0;
      words >> command;
      hetero_tvm::Session& session = sessions[current];
      if (command == "run") {
        words >> out;
        std::vector<Array> inputs;
        for (std::string path; words >> path;) inputs.push_back(Array::from_npy(path));
        const std::vector<Array> outputs = session(inputs);
        for (size_t i = 0; i < outputs.size(); ++i) {
          std::ofstream file(out + "." + std::to_string(i), std::ios::binary);
          const size_t bytes = static_cast<size_t>(outputs[i].size()) * hetero_tvm_itemsize(outputs[i].dtype().c_str());
          file.write(static_cast<const char*>(outputs[i].raw().data), static_cast<std::streamsize>(bytes));
        }
      } else if (command == "fork") {
        sessions.push_back(session.fork());
      } else if (command == "reset") {
        session.reset();
      } else if (command == "length") {
        std::cout << session.length() << '\n';
      } else if (words >> number) {
        if (command == "use") current = static_cast<size_t>(number);
        if (command == "rewind") session.rewind(number);
      }
    } catch (const hetero_tvm::Error& error) {
      std::cout << "error: " << error.what() << '\n';
    }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 1;
}
