// The large constants of an exported library: in a segment of the file, read into memory once.
//
// The virtual machine would copy constants three times when it loads a library.  It therefore holds
// stand-ins, with the number of a constant as their value, and every entry function begins with a call of
// `hetero_tvm_constants` on all of them.  The first call reads the segment and gives the stand-ins their
// values and shapes; later ones compare pointers.  Constants that follow from fewer numbers by a small matrix
// (filters that Winograd's method transforms) are computed meanwhile, from pages of the file.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

namespace {

// Parts of the stable ABI of tvm_ffi and DLPack: no header of theirs is needed to link a library.
struct Object {
  uint64_t references;  // strong ones in the lower half
  int32_t type;
  uint32_t padding;
  void (*deleter)(void* self, int flags);
};

struct Tensor {
  void* data;
  int32_t device[2];
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct Any {
  int32_t type;
  uint32_t padding;
  void* value;
};

constexpr int32_t kTensor = 70;
constexpr int kWholly = 3;  // flags of a deleter: the object and its memory
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPiece = size_t{8} << 20;

// Where the segment lies, from this very field; written when the library has been linked.
struct __attribute__((packed)) Place {
  char magic[16];
  uint64_t distance, size;
};
__attribute__((section(".hetero_at"), used, aligned(8))) volatile const Place kPlace = {
    {'h', 'e', 't', 'e', 'r', 'o', '_', 't', 'v', 'm', '-', 'd', 'a', 't', 'a', 0}, 0, 0};

// The segment begins with this, `count` entries, all extents and a table of expansions, then come values.  The
// first `direct` bytes are in memory as they are in the file; there, what is expanded follows, and here, what
// it is computed from.
struct Head {
  uint64_t count, memory, direct, expanded, expansions;
};

struct Entry {
  uint64_t offset, size, extents;  // bytes from the start
};

// float32 [outer, rows, inner] is a matrix, float64 [rows, terms], times the middle axis of [outer, terms, inner].
struct Expansion {
  uint64_t offset, matrix, plain, outer, rows, terms, inner;
};

constexpr size_t kRun = 256;

// Sums in float64, term by term: the bits that `host/expanded.py` computes.
__attribute__((optimize("O3"))) void Expand(const Expansion& one, const char* file, char* memory) {
  const double* matrix = reinterpret_cast<const double*>(file + one.matrix);
  const float* plain = reinterpret_cast<const float*>(file + one.plain);
  float* result = reinterpret_cast<float*>(memory + one.offset);
  for (uint64_t o = 0; o < one.outer; ++o) {
    for (uint64_t first = 0; first < one.inner; first += kRun) {
      const uint64_t run = std::min<uint64_t>(kRun, one.inner - first);
      for (uint64_t r = 0; r < one.rows; ++r) {
        double total[kRun] = {};
        for (uint64_t t = 0; t < one.terms; ++t) {
          const double factor = matrix[r * one.terms + t];
          const float* from = plain + (o * one.terms + t) * one.inner + first;
          if (factor == 0) continue;
          for (uint64_t i = 0; i < run; ++i) total[i] += factor * from[i];
        }
        float* to = result + (o * one.rows + r) * one.inner + first;
        for (uint64_t i = 0; i < run; ++i) to[i] = static_cast<float>(total[i]);
      }
    }
  }
}

struct Replaced {
  Object* object;
  void* data;
  std::vector<int64_t> shape, strides;
};

class Constants {
 public:
  ~Constants() {
    // Unloaded: stand-ins that nobody else holds any more go with their own memory.  At the end of the
    // process others may hold them, and run: then all stays as it is.
    bool alone = true;
    for (Replaced& one : replaced_) alone &= (__atomic_load_n(&one.object->references, __ATOMIC_ACQUIRE) & 0xffffffffu) == 1;
    if (!alone) return;
    for (Replaced& one : replaced_) {
      Tensor* tensor = TensorOf(one.object);
      tensor->data = one.data;
      std::copy(one.shape.begin(), one.shape.end(), tensor->shape);
      if (tensor->strides) std::copy(one.strides.begin(), one.strides.end(), tensor->strides);
      one.object->deleter(one.object, kWholly);
    }
    if (mapped_) munmap(mapped_, reserved_);
  }

  bool Holds(const Tensor* tensor) const {
    const char* data = static_cast<const char*>(__atomic_load_n(&tensor->data, __ATOMIC_ACQUIRE));
    const char* start = __atomic_load_n(&start_, __ATOMIC_ACQUIRE);
    return start && data >= start && data < start + size_;
  }

  // Functions share some of their constants: that one of them is there tells nothing of the others.
  bool HoldsAll(const Any* arguments, int32_t count) const {
    return std::all_of(arguments, arguments + count, [this](const Any& one) { return Holds(TensorOf(one.value)); });
  }

  const char* Give(const Any* arguments, int32_t count) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!start_) {
      if (const char* problem = Read()) return problem;
    }
    Head head;
    std::memcpy(&head, start_, sizeof head);
    for (int32_t at = 0; at < count; ++at) {
      if (Holds(TensorOf(arguments[at].value))) continue;
      uint64_t number[2];
      std::memcpy(number, TensorOf(arguments[at].value)->data, sizeof number);
      if (number[1] >= head.count) return "the constants of this library are damaged; export it again";
      Replace(static_cast<Object*>(arguments[at].value), number[1]);
    }
    return nullptr;
  }

  static Tensor* TensorOf(void* object) {
    return reinterpret_cast<Tensor*>(static_cast<char*>(object) + sizeof(Object));
  }

 private:
  const char* Read() {
    char* file = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(&kPlace) + kPlace.distance);
    Head head;
    std::memcpy(&head, file, sizeof head);
    const size_t size = head.memory;
    reserved_ = size + kHugePage;
    void* memory = mmap(nullptr, reserved_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return "there is not enough memory for the constants of this library";
    mapped_ = memory;
    char* start = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory) + kHugePage - 1) & ~(kHugePage - 1));
    const char* wish = std::getenv("HETERO_TVM_HUGE_PAGES");
#ifdef MADV_HUGEPAGE
    if (size >= kHugePage && !(wish && std::strcmp(wish, "0") == 0)) madvise(start, size, MADV_HUGEPAGE);
#endif
    for (size_t at = 0; at < head.direct; at += kPiece) {
      const size_t piece = std::min(kPiece, static_cast<size_t>(head.direct) - at);
      std::memcpy(start + at, file + at, piece);
      madvise(file + at, piece, MADV_DONTNEED);  // pages of the file: read again if anybody wants them
    }
    for (uint64_t n = 0; n < head.expanded; ++n) {
      Expansion one;
      std::memcpy(&one, file + head.expansions + n * sizeof one, sizeof one);
      Expand(one, file, start);
    }
    if (kPlace.size > head.direct) {
      const size_t from = head.direct & ~(kPiece - 1);  // a multiple of any page
      madvise(file + from, kPlace.size - from, MADV_DONTNEED);
    }
    size_ = size;
    __atomic_store_n(&start_, start, __ATOMIC_RELEASE);
    return nullptr;
  }

  void Replace(Object* object, uint64_t number) {
    Tensor* tensor = TensorOf(object);
    Entry entry;
    std::memcpy(&entry, start_ + sizeof(Head) + number * sizeof entry, sizeof entry);
    Replaced old{object, tensor->data, {tensor->shape, tensor->shape + tensor->ndim}, {}};
    if (tensor->strides) old.strides.assign(tensor->strides, tensor->strides + tensor->ndim);
    std::memcpy(tensor->shape, start_ + entry.extents, tensor->ndim * sizeof(int64_t));
    int64_t stride = 1;
    for (int32_t axis = tensor->ndim; tensor->strides && axis-- > 0;) {
      tensor->strides[axis] = stride;
      stride *= tensor->shape[axis];
    }
    __atomic_fetch_add(&object->references, 1, __ATOMIC_RELAXED);
    replaced_.push_back(std::move(old));
    __atomic_store_n(&tensor->data, static_cast<void*>(start_ + entry.offset), __ATOMIC_RELEASE);
  }

  std::mutex mutex_;
  char* start_ = nullptr;
  size_t size_ = 0;  // of what is in memory; written before start_
  void* mapped_ = nullptr;
  size_t reserved_ = 0;
  std::vector<Replaced> replaced_;
};

Constants constants;

}  // namespace

extern "C" __attribute__((weak)) void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message);

extern "C" __attribute__((visibility("default"), used)) int32_t __tvm_ffi_hetero_tvm_constants(
    void*, const Any* arguments, int32_t count, Any* result) {
  result->type = 0;
  result->padding = 0;
  result->value = nullptr;
  const char* problem = nullptr;
  if (count < 1 || arguments[0].type != kTensor) {
    problem = "the constants of this library are damaged; export it again";
  } else if (!constants.HoldsAll(arguments, count)) {
    problem = constants.Give(arguments, count);
  }
  if (!problem) return 0;
  if (TVMFFIErrorSetRaisedFromCStr) TVMFFIErrorSetRaisedFromCStr("RuntimeError", problem);
  return -1;
}
