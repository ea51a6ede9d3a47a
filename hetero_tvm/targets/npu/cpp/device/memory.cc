#include "memory.h"

#include <cstdlib>

#include "fault.h"
#include "instruction.h"

namespace hnpu {

Allocation::Allocation(uint64_t bytes)
    : bytes_(bytes), data_(static_cast<uint8_t*>(std::calloc(bytes, 1)), std::free) {
  if (!data_) fail(HNPU_ERROR_MEMORY, "no host memory for ", bytes, " bytes of device memory");
}

bool Allocation::is_written(int64_t at, int64_t bytes) const {
  return state_ == State::full || (state_ == State::some && written_.all(at, bytes));
}

void Allocation::set_written(int64_t at, int64_t bytes, bool written) {
  State extreme = written ? State::full : State::none;
  if (state_ == extreme || bytes == 0) return;
  if (static_cast<uint64_t>(bytes) == bytes_) {
    state_ = extreme;
    return;
  }
  if (state_ != State::some) {
    written_.reset(bytes_);
    if (state_ == State::full) written_.set(0, static_cast<int64_t>(bytes_));
    state_ = State::some;
  }
  written_.set(at, bytes, written);
}

Dram::Dram(uint64_t capacity, uint64_t alignment)
    : capacity_(capacity), alignment_(alignment < 64 ? 64 : alignment), next_(1 << 20) {}

uint64_t Dram::allocate(uint64_t bytes) {
  if (bytes == 0) fail(HNPU_ERROR_ARGUMENT, "hnpu_alloc: 0 bytes");
  if (bytes > capacity_ - used_)
    fail(HNPU_ERROR_MEMORY, "no device memory for ", bytes, " bytes: ", used_, " of ", capacity_, " are taken");
  uint64_t address = next_;
  // A gap behind every allocation: an address past its end is never another's.
  next_ += (bytes + alignment_ - 1) / alignment_ * alignment_ + alignment_;
  used_ += bytes;
  allocations_.emplace(address, Allocation(bytes));
  return address;
}

void Dram::release(uint64_t address) {
  auto found = allocations_.find(address);
  if (found == allocations_.end())
    fail(HNPU_ERROR_ARGUMENT, "hnpu_free: no allocation begins at ", address);
  used_ -= found->second.bytes();
  allocations_.erase(found);
}

std::pair<uint64_t, Allocation*> Dram::find(uint64_t address, uint64_t bytes) {
  auto next = allocations_.upper_bound(address);
  if (next != allocations_.begin()) {
    auto& [start, allocation] = *std::prev(next);
    uint64_t offset = address - start;
    if (offset <= allocation.bytes() && bytes <= allocation.bytes() - offset) return {start, &allocation};
  }
  fail(HNPU_ERROR_RANGE, bytes, " bytes at device address ", address, " are not within one allocation");
}

void Dram::copy_in(uint64_t address, const void* source, uint64_t bytes) {
  if (!bytes) return;
  if (!source) fail(HNPU_ERROR_ARGUMENT, "hnpu_copy_to_device: source is null");
  auto [start, allocation] = find(address, bytes);
  memcpy(allocation->data() + (address - start), source, bytes);
  allocation->set_written(static_cast<int64_t>(address - start), static_cast<int64_t>(bytes), true);
}

void Dram::copy_out(void* target, uint64_t address, uint64_t bytes) {
  if (!bytes) return;
  if (!target) fail(HNPU_ERROR_ARGUMENT, "hnpu_copy_from_device: target is null");
  auto [start, allocation] = find(address, bytes);
  if (!allocation->is_written(static_cast<int64_t>(address - start), static_cast<int64_t>(bytes)))
    fail(HNPU_ERROR_UNINITIALIZED, bytes, " bytes at device address ", address, " were read, but not all were written");
  memcpy(target, allocation->data() + (address - start), bytes);
}

Machine::Machine(const Spec& s, bool with_numbers) : spec(s), numbers(with_numbers) {
  for (int i = 0; i < HNPU_SCRATCHPADS; i++) {
    if (numbers) scratch[i].assign(spec.scratchpad[i], 0);
    written[i].reset(spec.scratchpad[i]);
  }
}

void Machine::track(const Access& access) {
  if (access.memory == kDram) {
    Slot& slot = slots[access.slot];
    if (!slot.allocation) return;
    each_run(access, [&](int64_t at, int64_t bytes) {
      if (access.write)
        slot.allocation->set_written(slot.offset + at, bytes, true);
      else if (!slot.allocation->is_written(slot.offset + at, bytes))
        fail(HNPU_ERROR_UNINITIALIZED, "reads bytes ", at, " to ", at + bytes, " of slot ", access.slot,
             ", which nothing has written");
    });
    return;
  }
  Written& map = written[access.memory];
  each_run(access, [&](int64_t at, int64_t bytes) {
    if (access.write)
      map.set(at, bytes);
    else if (!map.all(at, bytes))
      fail(HNPU_ERROR_UNINITIALIZED, "reads bytes ", at, " to ", at + bytes, " of ",
           kScratchpadNames[access.memory], ", which nothing has written");
  });
}

void execute(const uint8_t* code, Machine& m) {
  switch (code[0]) {
    case Load::kOpcode: return execute_copy(Load(code), m);
    case Store::kOpcode: return execute_copy(Store(code), m);
    case Move::kOpcode: return execute_copy(Move(code), m);
    case Im2col::kOpcode: return execute_copy(Im2col(code), m);
    case Gather::kOpcode: return execute_copy(Gather(code), m);
    case Mmad::kOpcode: return execute_matrix(Mmad(code), m);
    case MoveOut::kOpcode: return execute_matrix(MoveOut(code), m);
    case Vunary::kOpcode: return execute_vector(Vunary(code), m);
    case Vbinary::kOpcode: return execute_vector(Vbinary(code), m);
    case Vternary::kOpcode: return execute_vector(Vternary(code), m);
    case Vreduce::kOpcode: return execute_vector(Vreduce(code), m);
    default: return;
  }
}

}  // namespace hnpu
