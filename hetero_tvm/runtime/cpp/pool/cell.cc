// What the libraries of a process share, forks, and the functions that a library exports.

#include <dlfcn.h>
#include <link.h>
#include <sched.h>
#include <tvm/ffi/c_api.h>

#include <cstring>
#include <new>
#include <type_traits>

#include "pool.h"

namespace hetero_tvm {
namespace {

std::atomic<Cell*> known{nullptr};
std::atomic<void*> kept{nullptr};
const char library = 0;

// Functions of libtvm_ffi.so, found by name: a library can also be opened where that is not loaded.
struct Ffi {
  decltype(&TVMFFIFunctionGetGlobal) get_global;
  decltype(&TVMFFIFunctionSetGlobal) set_global;
  decltype(&TVMFFIErrorMoveFromRaised) take;
  decltype(&TVMFFIErrorSetRaised) leave;
  decltype(&TVMFFIErrorSetRaisedFromCStr) leave_text;
  decltype(&TVMFFIObjectDecRef) drop;
  bool found;

  Ffi() {
    void* handle = dlopen("libtvm_ffi.so", RTLD_LAZY | RTLD_NOLOAD);  // whoever has loaded it, and how
    if (!handle) handle = RTLD_DEFAULT;
    auto find = [&](auto* function, const char* name) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(handle, name));
      return *function != nullptr;
    };
    found = find(&get_global, "TVMFFIFunctionGetGlobal") && find(&set_global, "TVMFFIFunctionSetGlobal") &&
            find(&take, "TVMFFIErrorMoveFromRaised") && find(&leave, "TVMFFIErrorSetRaised") &&
            find(&leave_text, "TVMFFIErrorSetRaisedFromCStr") && find(&drop, "TVMFFIObjectDecRef");
  }
};

const Ffi& TheFfi() {
  static const Ffi ffi;
  return ffi;
}

// The table of global functions is the one that every library of a process can reach, and that outlives them
// all.  An entry has to be a function object; this one is no function to call, but carries a pointer.
struct Entry {
  TVMFFIObject object;
  TVMFFIFunctionCell function;  // empty
  Cell* cell;
};
constexpr char kName[] = "hetero_tvm.thread_pool." HETERO_POOL_ABI;

Cell* Shared() {
  const Ffi& ffi = TheFfi();
  if (!ffi.found) return nullptr;
  const TVMFFIByteArray name{kName, sizeof(kName) - 1};
  auto look = [&]() -> Cell* {
    TVMFFIObjectHandle found = nullptr;
    if (ffi.get_global(&name, &found) != 0 || !found) return nullptr;
    return static_cast<Entry*>(found)->cell;  // the reference is kept: the entry lives as long as the process
  };
  if (Cell* cell = look()) return cell;
  Entry* entry = new Entry();
  entry->object.combined_ref_count = (uint64_t{1} << 32) | 1;
  entry->object.type_index = kTVMFFIFunction;
  entry->cell = new Cell();
  if (pthread_key_create(&entry->cell->caller, nullptr) == 0 && ffi.set_global(&name, entry, 0) == 0) {
    return entry->cell;
  }
  void* error = TakeError();  // another library was quicker
  DropError(error);
  pthread_key_delete(entry->cell->caller);
  delete entry->cell;
  delete entry;
  return look();
}

// A forked child has the memory of the pool, but not its threads.
void AfterForkInChild() {
  if (Cell* cell = known.load(std::memory_order_relaxed)) cell->pool.store(nullptr, std::memory_order_relaxed);
}

__attribute__((constructor)) void Loaded() { pthread_atfork(nullptr, nullptr, AfterForkInChild); }

}  // namespace

const void* ThisLibrary() { return &library; }

Cell* FindCell() {
  Cell* cell = known.load(std::memory_order_acquire);
  if (cell) return cell;
  const SignalsWait wait;
  cell = Shared();
  Cell* own = nullptr;
  if (!cell) {  // without TVM's table: a pool for this library alone
    cell = own = new Cell();
    pthread_key_create(&own->caller, nullptr);
  }
  Cell* before = nullptr;
  if (known.compare_exchange_strong(before, cell, std::memory_order_acq_rel)) return cell;
  if (own) {
    pthread_key_delete(own->caller);
    delete own;
  }
  return before;
}

Pool* FindPool(Cell* cell) {
  Pool* pool = cell->pool.load(std::memory_order_acquire);
  if (pool) return pool;
  const SignalsWait wait;
  Pool* made = new Pool();
  ReadLimits(made);
  if (cell->pool.compare_exchange_strong(pool, made, std::memory_order_acq_rel)) return made;
  delete made;
  return pool;
}

bool KeepLoaded() {
  if (kept.load(std::memory_order_relaxed)) return true;
  Dl_info info;
  link_map* map = nullptr;
  if (!dladdr1(&library, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) || !map) return true;  // static
  if (!*map->l_name) return true;  // the program itself
  void* handle = dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD);
  kept.store(handle, std::memory_order_relaxed);
  return handle != nullptr;
}

void LetGo() {
  if (void* handle = kept.exchange(nullptr)) dlclose(handle);
}

void* TakeError() {
  void* error = nullptr;
  if (TheFfi().found) TheFfi().take(&error);
  return error;
}

void LeaveError(void* error) {
  if (!error) return;
  TheFfi().leave(error);
  DropError(error);
}

void DropError(void* error) {
  if (error) TheFfi().drop(error);
}

void LeaveText(const char* kind, const char* text) {
  if (TheFfi().found) TheFfi().leave_text(kind, text);
}

}  // namespace hetero_tvm

using hetero_tvm::Cell;

HETERO_EXPORT int hetero_tvm_parallel_launch(FTVMParallelLambda lambda, void* data, int tasks) {
  return hetero_tvm::Launch(lambda, data, tasks);
}

HETERO_EXPORT int hetero_tvm_set_threads(const hetero_tvm::Limits* limits) {
  Cell* cell = hetero_tvm::FindCell();
  return pthread_setspecific(cell->caller, limits);
}

// The function "hetero_tvm_call" of TVM's module: (function, address of Limits, arguments of the function...).
HETERO_EXPORT int32_t __tvm_ffi_hetero_tvm_call(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  Cell* cell = hetero_tvm::FindCell();
  const auto* limits = reinterpret_cast<const hetero_tvm::Limits*>(args[1].v_int64);
  void* before = pthread_getspecific(cell->caller);
  if (!(reinterpret_cast<uintptr_t>(before) & 1)) pthread_setspecific(cell->caller, limits);
  cpu_set_t mask, one;
  bool pinned = limits && limits->pinned && sched_getaffinity(0, sizeof(mask), &mask) == 0;
  if (pinned) {
    CPU_ZERO(&one);
    CPU_SET(limits->core[0], &one);
    pinned = sched_setaffinity(0, sizeof(one), &one) == 0;
  }
  const auto* function = reinterpret_cast<const TVMFFIFunctionCell*>(reinterpret_cast<const char*>(args[0].v_obj) +
                                                                     sizeof(TVMFFIObject));
  const int32_t status = function->safe_call(args[0].v_obj, args + 2, count - 2, result);
  if (pinned) sched_setaffinity(0, sizeof(mask), &mask);
  pthread_setspecific(cell->caller, before);
  return status;
}

// The function "hetero_tvm_release" of TVM's module: before the library is unloaded, end the workers that run
// its code.  Where nobody calls it the code stays.
HETERO_EXPORT int32_t __tvm_ffi_hetero_tvm_release(void*, const TVMFFIAny*, int32_t, TVMFFIAny* result) {
  hetero_tvm::EndWorkers(hetero_tvm::FindCell());
  result->type_index = kTVMFFINone;
  result->zero_padding = 0;
  result->v_int64 = 0;
  return 0;
}
