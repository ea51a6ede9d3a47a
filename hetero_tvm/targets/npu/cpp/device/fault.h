// One way to fail: an exception with the driver's status, turned into a return code at the interface.
#pragma once
#include <stdexcept>
#include <string>

#include "hnpu.h"

namespace hnpu {

struct Fault : std::runtime_error {
  hnpu_status status;
  Fault(hnpu_status s, const std::string& text) : std::runtime_error(text), status(s) {}
};

inline void append(std::string&) {}
template <class... Rest>
void append(std::string& out, const char* text, const Rest&... rest);
template <class... Rest>
void append(std::string& out, const std::string& text, const Rest&... rest);
template <class Number, class... Rest>
void append(std::string& out, Number number, const Rest&... rest) {
  out += std::to_string(number);
  append(out, rest...);
}
template <class... Rest>
void append(std::string& out, const char* text, const Rest&... rest) {
  out += text;
  append(out, rest...);
}
template <class... Rest>
void append(std::string& out, const std::string& text, const Rest&... rest) {
  out += text;
  append(out, rest...);
}

// Texts and integers, one after the other.
template <class... Parts>
std::string say(const Parts&... parts) {
  std::string out;
  append(out, parts...);
  return out;
}

template <class... Parts>
[[noreturn]] void fail(hnpu_status status, const Parts&... parts) {
  throw Fault(status, say(parts...));
}

}  // namespace hnpu
