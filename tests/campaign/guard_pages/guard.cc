// Memory of TVM's runtime between pages that nobody may touch; preloaded into a process.
//
// Every block ends at such a page (GUARD_AT=end) or begins behind one (GUARD_AT=start): a kernel that reads or
// writes beyond an input, an output or the arena is stopped there and then.  The bytes between a block and the
// page, which alignment leaves over, are watched for writes, and all bytes have a value of the caller's choice
// before they are written: what differs with it has been read where nothing was.
//
// GUARD_LOG names the file that reports are appended to, GUARD_ALIGNMENT the alignment of blocks at an end.

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <map>
#include <mutex>

extern "C" void __libc_free(void*);
extern "C" void* __libc_memalign(size_t, size_t);

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kRegion = size_t{1} << 42;

struct Block {
  uintptr_t begin, size, pages, room;
  unsigned char fill;
};

uintptr_t region = 0, next = 0;
long guarded = 0;
unsigned char fill = 0xff;
bool at_end = true;
size_t alignment_of_blocks = 16;  // what manifests promise kernels of a CPU
uintptr_t runtime_begin = 0;
std::mutex& lock() {
  static std::mutex* it = new std::mutex;
  return *it;
}
std::map<uintptr_t, Block>& blocks() {
  static auto* it = new std::map<uintptr_t, Block>;
  return *it;
}

void report(const char* text) {
  const char* path = getenv("GUARD_LOG");
  int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0644) : 2;
  if (file < 0) return;
  (void)!write(file, text, strlen(text));
  if (path) close(file);
}

size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

bool of_the_runtime(void* caller) {
  Dl_info info;
  if (!dladdr(caller, &info) || !info.dli_fname) return false;
  if (runtime_begin) return reinterpret_cast<uintptr_t>(info.dli_fbase) == runtime_begin;
  if (!strstr(info.dli_fname, "libtvm_runtime.so")) return false;
  runtime_begin = reinterpret_cast<uintptr_t>(info.dli_fbase);
  return true;
}

void stopped(int number, siginfo_t* info, void* context) {
  auto* where = static_cast<ucontext_t*>(context);
  uintptr_t at = reinterpret_cast<uintptr_t>(info->si_addr);
  const char* what = where->uc_mcontext.gregs[REG_ERR] & 2 ? "write" : "read";
  Dl_info symbol{};
  dladdr(reinterpret_cast<void*>(where->uc_mcontext.gregs[REG_RIP]), &symbol);
  char text[1024];
  const Block* near = nullptr;
  for (auto& [_, block] : blocks()) {
    if (at + kPage * 16 >= block.begin && at < block.begin + block.size + kPage * 16) {
      intptr_t best = near ? llabs(intptr_t(at - near->begin)) : INTPTR_MAX;
      if (llabs(intptr_t(at - block.begin)) < best) near = &block;
    }
  }
  if (number == SIGSEGV && info->si_code == SI_KERNEL) {
    snprintf(text, sizeof text, "guard: an access that must be aligned and is not, in %s of %s\n",
             symbol.dli_sname ? symbol.dli_sname : "?",
             symbol.dli_fname ? symbol.dli_fname : "code compiled in memory");
  } else if (near) {
    snprintf(text, sizeof text, "guard: %s at %+ld of a block of %zu bytes in %s of %s\n", what,
             long(at - near->begin), size_t(near->size), symbol.dli_sname ? symbol.dli_sname : "?",
             symbol.dli_fname ? symbol.dli_fname : "code compiled in memory");
  } else {
    snprintf(text, sizeof text, "guard: signal %d, %s at %p in %s of %s\n", number, what, info->si_addr,
             symbol.dli_sname ? symbol.dli_sname : "?", symbol.dli_fname ? symbol.dli_fname : "?");
  }
  report(text);
  signal(number, SIG_DFL);
}

__attribute__((constructor)) void begin() {
  const char* place = getenv("GUARD_AT");
  at_end = !place || strcmp(place, "start");
  if (const char* wanted = getenv("GUARD_ALIGNMENT")) alignment_of_blocks = strtoul(wanted, nullptr, 10);
}

}  // namespace

extern "C" {

// Bytes of every block from now on, before anything is written there.
void guard_fill(int value) { fill = static_cast<unsigned char>(value); }

// Report faults of this process; called late, since others set handlers as well.
void guard_watch() {
  static char stack[1 << 16];
  stack_t other{stack, 0, sizeof stack};
  sigaltstack(&other, nullptr);
  struct sigaction action{};
  action.sa_sigaction = stopped;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
}

// Blocks that were guarded so far.
long guard_count() { return guarded; }

int posix_memalign(void** result, size_t alignment, size_t size) {
  if (!of_the_runtime(__builtin_return_address(0))) {
    *result = __libc_memalign(alignment, size);
    return *result ? 0 : 12;
  }
  std::lock_guard<std::mutex> hold(lock());
  if (!region) {
    void* memory = mmap(nullptr, kRegion, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return 12;
    region = next = reinterpret_cast<uintptr_t>(memory);
  }
  size_t room = up(size ? size : 1, kPage);
  uintptr_t pages = next + kPage;
  next = pages + room + kPage;
  if (next > region + kRegion) return 12;
  void* memory = reinterpret_cast<void*>(pages);
  if (mprotect(memory, room, PROT_READ | PROT_WRITE)) return 12;
  memset(memory, fill, room);
  uintptr_t at = at_end ? pages + room - up(size, alignment_of_blocks) : pages;
  blocks()[at] = Block{at, size, pages, room, fill};
  ++guarded;
  *result = reinterpret_cast<void*>(at);
  return 0;
}

void free(void* pointer) {
  uintptr_t at = reinterpret_cast<uintptr_t>(pointer);
  if (!region || at < region || at >= region + kRegion) return __libc_free(pointer);
  std::lock_guard<std::mutex> hold(lock());
  auto found = blocks().find(at);
  if (found == blocks().end()) {
    report("guard: freed twice, or never allocated\n");
    return;
  }
  Block block = found->second;
  blocks().erase(found);
  const unsigned char* bytes = reinterpret_cast<const unsigned char*>(block.pages);
  for (size_t n = 0; n < block.room; ++n) {
    uintptr_t place = block.pages + n;
    if (place >= block.begin && place < block.begin + block.size) {
      n = block.begin + block.size - block.pages - 1;
    } else if (bytes[n] != block.fill) {
      char text[256];
      snprintf(text, sizeof text, "guard: written at %+ld of a block of %zu bytes\n",
               long(place - block.begin), size_t(block.size));
      report(text);
      break;
    }
  }
  mmap(reinterpret_cast<void*>(block.pages), block.room, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

}  // extern "C"
