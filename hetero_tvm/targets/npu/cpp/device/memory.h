// Memories of the device, and which of their bytes have ever been written.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "region.h"
#include "spec.h"

namespace hnpu {

// One byte per byte: 1 once written.
class Written {
 public:
  void reset(uint64_t bytes) { map_.assign(bytes, 0); }
  void set(int64_t at, int64_t bytes, uint8_t value = 1) { memset(map_.data() + at, value, bytes); }
  bool all(int64_t at, int64_t bytes) const { return !memchr(map_.data() + at, 0, bytes); }

 private:
  std::vector<uint8_t> map_;
};

class Allocation {
 public:
  explicit Allocation(uint64_t bytes);
  uint64_t bytes() const { return bytes_; }
  uint8_t* data() { return data_.get(); }
  bool is_written(int64_t at, int64_t bytes) const;
  void set_written(int64_t at, int64_t bytes, bool written);

 private:
  enum class State { none, some, full };
  uint64_t bytes_;
  std::unique_ptr<uint8_t, void (*)(void*)> data_;
  State state_ = State::none;
  Written written_;  // for State::some only
};

// Device addresses to host memory.
class Dram {
 public:
  Dram(uint64_t capacity, uint64_t alignment);
  uint64_t allocate(uint64_t bytes);
  void release(uint64_t address);
  void copy_in(uint64_t address, const void* source, uint64_t bytes);
  void copy_out(void* target, uint64_t address, uint64_t bytes);
  // The allocation that holds all of [address, address + bytes) and its first address.
  std::pair<uint64_t, Allocation*> find(uint64_t address, uint64_t bytes);

 private:
  uint64_t capacity_, alignment_, used_ = 0, next_;
  std::map<uint64_t, Allocation> allocations_;
};

// What a program sees while it runs.
struct Slot {
  int64_t bytes = 0;
  uint8_t* data = nullptr;  // null in timing mode
  Allocation* allocation = nullptr;
  int64_t offset = 0;  // in the allocation
};

struct Machine {
  const Spec& spec;
  std::vector<uint8_t> scratch[HNPU_SCRATCHPADS];
  Written written[HNPU_SCRATCHPADS];
  std::vector<Slot> slots;
  bool numbers;

  Machine(const Spec& s, bool with_numbers);
  uint8_t* at(uint8_t memory, uint64_t address) { return scratch[memory].data() + address; }
  // Throws Fault when a read byte was never written; marks what is written.
  void track(const Access& access);
};

// The semantics, one per group of instructions.
void execute(const uint8_t* code, Machine& machine);
void execute_copy(const Load&, Machine&);
void execute_copy(const Store&, Machine&);
void execute_copy(const Move&, Machine&);
void execute_copy(const Im2col&, Machine&);
void execute_copy(const Gather&, Machine&);
void execute_matrix(const Mmad&, Machine&);
void execute_matrix(const MoveOut&, Machine&);
void execute_vector(const Vunary&, Machine&);
void execute_vector(const Vbinary&, Machine&);
void execute_vector(const Vternary&, Machine&);
void execute_vector(const Vreduce&, Machine&);

}  // namespace hnpu
