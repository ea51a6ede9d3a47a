// The thread pool under the kernels of exported libraries: one per process, however many libraries there are.
//
// Each exported library contains this code.  What the libraries of a process share lies on the heap and is
// found through a table of libtvm_ffi.so (cell.cc); each library launches with its own copy of the code, and a
// worker runs the copy of the library that started it, which stays loaded until the worker has ended.
// All libraries of a process must therefore agree on the structures below: whoever changes them, or the
// protocol of Worker::state, raises HETERO_POOL_ABI, and libraries of the two kinds get a pool each.
#ifndef HETERO_TVM_RUNTIME_POOL_H_
#define HETERO_TVM_RUNTIME_POOL_H_

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cstdint>

#define HETERO_POOL_ABI "1"
#define HETERO_EXPORT extern "C" __attribute__((visibility("default"), used))

extern "C" {
// As in tvm/runtime/c_backend_api.h.
typedef struct {
  void* sync_handle;
  int32_t num_task;
} TVMParallelGroupEnv;
typedef int (*FTVMParallelLambda)(int task_id, TVMParallelGroupEnv* penv, void* cdata);
}

namespace hetero_tvm {

constexpr int kMostThreads = 256;  // of one launch
constexpr int kMostCores = 1024;   // ids of cores that workers can be pinned to

// How many threads a caller wants, and where.
struct Limits {
  int32_t threads;      // of a launch, the caller included; 0: what the process may use; -n: that, and n at most
  int32_t pinned;       // number of cores that follow: none, or one per thread
  const int32_t* core;  // the caller's comes first
};

struct Job;

// A thread of the pool.  `state` is a generation times 8 and one of the phases:
//
//   Idle      nobody's; the thread polls                         -> Reserved by a caller, Asleep by the thread
//   Asleep    nobody's; the thread waits on the futex `state`    -> Reserved by a caller
//   Reserved  a caller's, who writes `job` and `share`           -> Assigned by that caller (or Quit)
//   Assigned  the thread may take the job                        -> Taken by the thread, Idle by the caller (revoked)
//   Taken     the thread works on the job                        -> Idle by the thread, Waited by the caller
//   Waited    as Taken; the caller waits on the futex `state`    -> Idle by the thread, which wakes the caller
//   Quit      the thread shall end                               (nobody else changes it any more)
//   Absent    there is no thread                                 -> Idle by who starts one, holding Pool::growing
//
// Every arrow is one compare-and-exchange of the whole word (Reserved -> Assigned is a store: nobody else
// changes Reserved), and the generation rises with each reservation.  What follows:
//   * A worker belongs to one caller at a time: only one exchange can leave Idle or Asleep.
//   * `job` and `share` are written in Reserved and read in Taken; the release of Assigned and the acquire of
//     Taken order the two.
//   * A job lies on its caller's stack.  A worker touches it in Taken and Waited only, and the caller returns
//     when, for each worker it has reserved, the exchange Assigned -> Idle has succeeded, or the word is no
//     longer Taken or Waited of its own generation.  Leaving Taken is a release and that look an acquire, so
//     that the caller sees all that the worker has written.
//   * Nobody waits for a worker that has not begun: a thread that has lost its core delays no caller, unless
//     in the middle of a task.
//   * No wake-up is lost.  The thread sleeps on the word Asleep of its generation, which only it can have
//     written; a caller that leaves Asleep wakes it.  A caller sleeps on Waited of its generation, which only
//     it can have written; the thread that leaves Waited wakes it.
enum Phase : uint32_t { kAbsent, kIdle, kAsleep, kReserved, kAssigned, kTaken, kWaited, kQuit };
constexpr uint32_t kPhases = 8;

struct alignas(128) Worker {  // two cache lines: processors fetch them in pairs
  std::atomic<uint32_t> state{kAbsent};
  int32_t share;
  Job* job;
  pthread_t thread;
  const void* owner = nullptr;  // the library whose code the thread runs; guarded by Pool::growing
  int32_t core = -1;  // that the thread is pinned to, or -1; guarded by Pool::growing
  std::atomic<int32_t> thread_id{0};  // 0: not known yet
  std::atomic<int32_t> seen_on{-1};   // the core where the thread was when it last looked
};

struct Pool {
  int32_t limit;                       // threads that this process may use, when nobody says how many
  int32_t pinned;                      // number of entries in `core`, by $HETERO_TVM_PIN
  int32_t core[kMostThreads];          // their cores
  std::atomic<int32_t> disturbed{0};   // launches to come in which shares are cut fine
  std::atomic<uint64_t> moved_ns{0};   // when a worker was last moved off its caller's core
  std::atomic<uint32_t> growing{0};    // 1: somebody starts or ends threads
  std::atomic<uint32_t> refused{0};    // launches to come that start no thread
  Worker workers[kMostThreads - 1];
  std::atomic<Worker*> pinned_worker[kMostCores] = {};  // by core
};

// What is left of the pool when it is looked for: the one thing that all libraries know.
struct Cell {
  pthread_key_t caller;      // per thread: Limits* of its launches; bit 0: inside a launch
  std::atomic<Pool*> pool;   // made at the first parallel launch; a forked child begins with none
};

// Signals wait while this lives: what is made once takes locks and memory, and a handler may launch, too.
struct SignalsWait {
  sigset_t before;
  SignalsWait() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
  }
  ~SignalsWait() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
  SignalsWait(const SignalsWait&) = delete;
};

// pool.cc
int Launch(FTVMParallelLambda lambda, void* data, int tasks);  // as TVMBackendParallelLaunch
void EndWorkers(Cell* cell);  // those that run this library's code

// trace.cc
int LaunchOrTrace(FTVMParallelLambda lambda, void* data, int tasks);  // as Launch

// cell.cc
Cell* FindCell();        // never null
Pool* FindPool(Cell*);   // never null
bool KeepLoaded();       // keep this library's code loaded, as long as a worker runs it
void LetGo();            // undo KeepLoaded
const void* ThisLibrary();

// Errors that a kernel has left in its thread: take it from there (may be null), and leave it to a thread.
void* TakeError();
void LeaveError(void* error);
void DropError(void* error);
void LeaveText(const char* kind, const char* text);

// limits.cc
int UsableCores(const char* proc, const char* root);  // affinity mask and control groups; "/proc", ""
double CpuQuota(const char* proc, const char* root);  // in cores; 0: none
int ParseCores(const char* text, int32_t* cores, int most);  // "2,4-7" -> count; -1: not a list
const char* EnvironmentProblem();  // what is wrong with HETERO_TVM_THREADS or HETERO_TVM_PIN; null: nothing
void ReadLimits(Pool* pool);

}  // namespace hetero_tvm

#endif  // HETERO_TVM_RUNTIME_POOL_H_
