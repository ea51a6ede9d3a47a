// Run a library that hetero_tvm exported, from C++17: header only, over hetero_tvm.h beside it.
//
//   hetero_tvm::Model model("out/model.so");
//   auto outputs = model({hetero_tvm::Array::from_npy("x.npy")});
//   const float* y = outputs[0].data<float>();
//
// Models whose inputs come back as outputs are called step by step (hetero_tvm_session.h):
//
//   hetero_tvm::Session session(model);      // the model must outlive it
//   auto outputs = session({x});             // inputs and outputs without the states
//   auto other = session.fork();
//
// Failures are hetero_tvm::Error.  Outputs are copies, which belong to the caller.
#ifndef HETERO_TVM_HPP_
#define HETERO_TVM_HPP_

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "hetero_tvm_session.h"

namespace hetero_tvm {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void check(int status) {
  if (status != 0) throw Error(hetero_tvm_error());
}

namespace detail {
template <typename T>
struct Name;
template <> struct Name<float> { static constexpr const char* value = "float32"; };
template <> struct Name<double> { static constexpr const char* value = "float64"; };
template <> struct Name<std::int64_t> { static constexpr const char* value = "int64"; };
template <> struct Name<std::int32_t> { static constexpr const char* value = "int32"; };
template <> struct Name<std::int8_t> { static constexpr const char* value = "int8"; };
template <> struct Name<std::uint8_t> { static constexpr const char* value = "uint8"; };
template <> struct Name<bool> { static constexpr const char* value = "bool"; };
}  // namespace detail

// A dense array that owns its memory.
class Array {
 public:
  // Zeros.
  Array(const std::string& dtype, const std::vector<std::int64_t>& shape) {
    check(hetero_tvm_alloc(&array_, dtype.c_str(), static_cast<int>(shape.size()), shape.data()));
  }
  Array(const Array& other) : Array(other.dtype(), other.shape()) {
    std::memcpy(array_.data, other.array_.data, static_cast<size_t>(other.size()) * hetero_tvm_itemsize(array_.dtype));
  }
  Array(Array&& other) noexcept : array_(std::exchange(other.array_, hetero_tvm_array{})) {}
  Array& operator=(Array other) noexcept {
    std::swap(array_, other.array_);
    return *this;
  }
  ~Array() { hetero_tvm_free(&array_); }

  static Array from_npy(const std::string& path) {
    Array made;
    check(hetero_tvm_read_npy(path.c_str(), &made.array_));
    return made;
  }

  std::string dtype() const { return array_.dtype; }
  std::vector<std::int64_t> shape() const { return {array_.shape, array_.shape + array_.rank}; }
  // Number of elements.
  std::int64_t size() const { return hetero_tvm_count(array_.shape, array_.rank); }

  // The elements; Error where they are of another type.
  template <typename T>
  T* data() {
    if (dtype() != detail::Name<T>::value) throw Error("elements are " + dtype() + ", not " + detail::Name<T>::value);
    return static_cast<T*>(array_.data);
  }
  template <typename T>
  const T* data() const {
    return const_cast<Array*>(this)->data<T>();
  }

  const hetero_tvm_array& raw() const { return array_; }

 private:
  Array() : array_{} {}
  hetero_tvm_array array_;
};

namespace detail {
inline Array copy(const hetero_tvm_array& found) {
  Array made(found.dtype, {found.shape, found.shape + found.rank});
  std::memcpy(made.raw().data, found.data, static_cast<size_t>(made.size()) * hetero_tvm_itemsize(found.dtype));
  return made;
}
}  // namespace detail

// Name, dtype and shape of an input or output; -1 for a dimension that is known only at run time, whose name is
// in `symbols` then ("" elsewhere), and whose smallest extent is in `least`.
struct Spec {
  std::string name, dtype;
  std::vector<std::int64_t> shape, least;
  std::vector<std::string> symbols;

  explicit Spec(const hetero_tvm_spec& one)
      : name(one.name),
        dtype(one.dtype),
        shape(one.shape, one.shape + one.rank),
        least(one.least, one.least + one.rank),
        symbols(one.symbol, one.symbol + one.rank) {}
};

// Its calls, and those of its sessions, run one after another, from whatever threads they come.
class Model {
 public:
  explicit Model(const std::string& path) : model_(hetero_tvm_open(path.c_str())) {
    if (!model_) throw Error(hetero_tvm_error());
  }

  std::string name() const { return model_->name; }
  std::vector<Spec> inputs() const { return specs(model_->input, model_->inputs); }
  std::vector<Spec> outputs() const { return specs(model_->output, model_->outputs); }

  // Run on inputs in the order of inputs(); gives all outputs.
  std::vector<Array> operator()(const std::vector<Array>& inputs) {
    std::vector<hetero_tvm_array> raw;
    for (const Array& input : inputs) raw.push_back(input.raw());
    const std::lock_guard<std::mutex> alone(*turn_);  // until the outputs are copied
    check(hetero_tvm_run(model_.get(), raw.data(), static_cast<int>(raw.size())));
    std::vector<Array> results;
    for (int i = 0; i < model_->outputs; ++i) {
      const hetero_tvm_array* found = hetero_tvm_output(model_.get(), i);
      if (!found) throw Error(name() + ": an output is missing");
      results.push_back(detail::copy(*found));
    }
    return results;
  }

 private:
  friend class Session;
  static std::vector<Spec> specs(const hetero_tvm_spec* first, int count) {
    std::vector<Spec> found;
    for (int i = 0; i < count; ++i) found.emplace_back(first[i]);
    return found;
  }
  struct Close {
    void operator()(hetero_tvm_model* model) const { hetero_tvm_close(model); }
  };
  std::unique_ptr<hetero_tvm_model, Close> model_;
  std::shared_ptr<std::mutex> turn_ = std::make_shared<std::mutex>();
};

// A model with what comes back from call to call; several of one model share its code and weights.
class Session {
 public:
  explicit Session(Model& model) : Session(hetero_tvm_session_open(model.model_.get()), model.turn_) {}

  // Inputs and outputs that are no states.
  std::vector<Spec> inputs() const { return specs(hetero_tvm_session_input); }
  std::vector<Spec> outputs() const { return specs(hetero_tvm_session_result); }

  // One step, on inputs in the order of inputs(); gives its outputs.
  std::vector<Array> operator()(const std::vector<Array>& inputs) {
    std::vector<hetero_tvm_array> raw;
    for (const Array& input : inputs) raw.push_back(input.raw());
    const std::lock_guard<std::mutex> alone(*turn_);
    check(hetero_tvm_session_run(session_.get(), raw.data(), static_cast<int>(raw.size())));
    std::vector<Array> results;
    for (int i = 0; const hetero_tvm_array* found = hetero_tvm_session_output(session_.get(), i); ++i)
      results.push_back(detail::copy(*found));
    return results;
  }

  std::int64_t length() const { return hetero_tvm_session_length(session_.get()); }
  void reset() { hetero_tvm_session_reset(session_.get()); }
  void rewind(std::int64_t elements) { check(hetero_tvm_session_rewind(session_.get(), elements)); }
  Session fork() const { return Session(hetero_tvm_session_fork(session_.get()), turn_); }

 private:
  Session(hetero_tvm_session* made, std::shared_ptr<std::mutex> turn) : session_(made), turn_(std::move(turn)) {
    if (!session_) throw Error(hetero_tvm_error());
  }
  template <typename Find>
  std::vector<Spec> specs(Find find) const {
    std::vector<Spec> found;
    for (int i = 0; const hetero_tvm_spec* one = find(session_.get(), i); ++i) found.emplace_back(*one);
    return found;
  }
  struct Close {
    void operator()(hetero_tvm_session* session) const { hetero_tvm_session_close(session); }
  };
  std::unique_ptr<hetero_tvm_session, Close> session_;
  std::shared_ptr<std::mutex> turn_;
};

}  // namespace hetero_tvm

#endif  // HETERO_TVM_HPP_
