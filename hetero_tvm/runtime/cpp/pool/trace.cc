// When and in which thread tasks run: for profiles, off unless somebody asks.
//
// A launch that is traced wraps its lambda; the pool, which other libraries share, knows nothing of it.

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "pool.h"

namespace hetero_tvm {
namespace {

struct Span {
  int64_t start_ns, end_ns;  // CLOCK_MONOTONIC
  int32_t launch, task, thread, tasks;
};

struct Trace {
  std::atomic<Span*> spans{nullptr};
  std::atomic<int64_t> capacity{0}, count{0};
  std::atomic<int32_t> launches{0};
};
Trace trace;

struct Traced {
  FTVMParallelLambda lambda;
  void* data;
  int32_t launch;
};

int64_t Now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<int64_t>(time.tv_sec) * 1000000000 + time.tv_nsec;
}

// Asked for once: a system call is as long as a small task.
int32_t ThisThread() {
  static thread_local int32_t id = 0;
  if (!id) id = static_cast<int32_t>(syscall(SYS_gettid));
  return id;
}

int RunTraced(int task, TVMParallelGroupEnv* environment, void* data) {
  const Traced* traced = static_cast<Traced*>(data);
  const int64_t start = Now();
  const int status = traced->lambda(task, environment, traced->data);
  const int64_t end = Now();
  const int64_t at = trace.count.fetch_add(1, std::memory_order_relaxed);
  Span* spans = trace.spans.load(std::memory_order_acquire);
  if (spans && at < trace.capacity.load(std::memory_order_relaxed)) {
    spans[at] = Span{start, end, traced->launch, task, ThisThread(), environment->num_task};
  }
  return status;
}

}  // namespace

int LaunchOrTrace(FTVMParallelLambda lambda, void* data, int tasks) {
  if (!trace.spans.load(std::memory_order_relaxed)) return Launch(lambda, data, tasks);
  Traced traced{lambda, data, trace.launches.fetch_add(1, std::memory_order_relaxed)};
  return Launch(RunTraced, &traced, tasks);  // every task has ended when this returns
}

}  // namespace hetero_tvm

// Writes a span for each task from here on, `capacity` at most; null ends it.  Not while kernels of this library
// run.  Returns the number of tasks since the last call, which may be more than were written.
HETERO_EXPORT int64_t hetero_tvm_trace_tasks(void* spans, int64_t capacity) {
  using hetero_tvm::trace;
  trace.capacity.store(capacity, std::memory_order_relaxed);
  trace.launches.store(0, std::memory_order_relaxed);
  const int64_t count = trace.count.exchange(0, std::memory_order_relaxed);
  trace.spans.store(static_cast<hetero_tvm::Span*>(spans), std::memory_order_release);
  return count;
}
