// Launches and workers: see pool.h for the protocol between them.

#include "pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <exception>
#include <new>

namespace hetero_tvm {
namespace {

// A worker that has nothing to do polls this long, about the time between the launches of a model.
constexpr uint64_t kIdleSpin_ns = 60000;
// A caller polls this long for the last task of another, then gives its core away: perhaps to that worker.
constexpr uint64_t kWaitSpin_ns = 40000;
// A worker that was polling, and has not come after this long, has lost its core.
constexpr uint64_t kLate_ns = 25000;
// Workers are not moved to other cores more often than this.
constexpr uint64_t kMove_ns = 500000;
// Where threads lose their cores, shares are cut into this many tasks, for this many launches.
constexpr int kTasksPerShare = 8;
constexpr int kDisturbedLaunches = 64;
// The system has refused a thread: this many launches do not ask again.
constexpr uint32_t kRefusedLaunches = 1000;

uint64_t Now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
}

inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

void FutexWait(std::atomic<uint32_t>* word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

// Polls until `done()` or the time is over; returns whether it is done.
template <typename Done>
bool Spin(uint64_t ns, Done done) {
  const uint64_t start = Now();
  do {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      Pause();
    }
  } while (Now() - start < ns);
  return done();
}

}  // namespace

// Tasks of one participant; others help when they have finished theirs.
struct alignas(64) Share {
  std::atomic<int32_t> next{0};
  int32_t end = 0;
};

struct Job {
  FTVMParallelLambda lambda;
  void* data;
  int32_t tasks;
  int32_t shares;
  std::atomic<int32_t> status{0};
  void* error = nullptr;
  Share* share;
};

namespace {

// Whatever a task throws stays an error of its kernel.
int RunTask(FTVMParallelLambda lambda, int task, int tasks, void* data) {
  TVMParallelGroupEnv environment{nullptr, tasks};
  try {
    return lambda(task, &environment, data);
  } catch (const std::exception& error) {
    LeaveText("RuntimeError", error.what());
  } catch (...) {
    LeaveText("RuntimeError", "a kernel threw an exception of an unknown type");
  }
  return -1;
}

// A task is claimed by one fetch_add, so that it runs once.  Each begins with its own share, in order: rows
// that a thread has written lie in its cache.
void Work(Job* job, int own) {
  for (int turn = 0; turn < job->shares; ++turn) {
    const int at = own + turn < job->shares ? own + turn : own + turn - job->shares;
    Share* share = &job->share[at];
    while (share->next.load(std::memory_order_relaxed) < share->end) {
      const int task = share->next.fetch_add(1, std::memory_order_relaxed);
      if (task >= share->end) break;
      if (job->status.load(std::memory_order_relaxed) != 0) return;
      const int status = RunTask(job->lambda, task, job->tasks, job->data);
      if (status == 0) continue;
      int fine = 0;
      void* error = TakeError();
      if (job->status.compare_exchange_strong(fine, status)) {
        job->error = error;  // read by the caller when all have left
      } else {
        DropError(error);
      }
      return;
    }
  }
}

// The value of Cell::caller in this thread.
uintptr_t Caller(Cell* cell) { return reinterpret_cast<uintptr_t>(pthread_getspecific(cell->caller)); }

void SetCaller(Cell* cell, uintptr_t value) { pthread_setspecific(cell->caller, reinterpret_cast<void*>(value)); }

struct Start {
  Cell* cell;
  Worker* worker;
};

void* WorkerMain(void* argument) {
  const Start start = *static_cast<Start*>(argument);
  delete static_cast<Start*>(argument);
  Worker* worker = start.worker;
  SetCaller(start.cell, 1);  // what a task launches runs in the task
  worker->thread_id.store(static_cast<int32_t>(syscall(SYS_gettid)), std::memory_order_relaxed);
  for (;;) {
    uint32_t state = worker->state.load(std::memory_order_acquire);
    switch (state % kPhases) {
      case kAssigned:
        if (worker->state.compare_exchange_strong(state, state - kAssigned + kTaken, std::memory_order_acq_rel)) {
          const uint32_t idle = state - kAssigned + kIdle;
          worker->seen_on.store(sched_getcpu(), std::memory_order_relaxed);
          Work(worker->job, worker->share);
          if (worker->state.exchange(idle, std::memory_order_acq_rel) % kPhases == kWaited) FutexWake(&worker->state);
        }
        break;
      case kIdle: {
        const bool changed = Spin(kIdleSpin_ns, [&] {
          worker->seen_on.store(sched_getcpu(), std::memory_order_relaxed);
          return worker->state.load(std::memory_order_relaxed) != state;
        });
        const uint32_t asleep = state - kIdle + kAsleep;
        if (changed || !worker->state.compare_exchange_strong(state, asleep, std::memory_order_acq_rel)) break;
        do {
          FutexWait(&worker->state, asleep);
        } while (worker->state.load(std::memory_order_acquire) == asleep);
        break;
      }
      case kQuit:
        return nullptr;
      default:  // Reserved: the caller is about to write the job, or has lost its core
        if (!Spin(kIdleSpin_ns, [&] { return worker->state.load(std::memory_order_relaxed) != state; })) {
          sched_yield();
        }
    }
  }
}

// One at a time starts or ends threads; nobody waits for that but who must.
bool TryGrow(Pool* pool) { return pool->growing.exchange(1, std::memory_order_acquire) == 0; }
void EndGrow(Pool* pool) { pool->growing.store(0, std::memory_order_release); }

bool IsAbsent(const Worker* worker) { return worker->state.load(std::memory_order_relaxed) % kPhases == kAbsent; }

// Starts a thread for an absent worker.  The caller holds Pool::growing.
bool StartThread(Cell* cell, Pool* pool, Worker* worker, int core) {
  if (!KeepLoaded()) return false;
  Start* start = new (std::nothrow) Start{cell, worker};
  if (!start) return false;
  worker->core = core;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  cpu_set_t mask, other;
  CPU_ZERO(&mask);
  if (core >= 0) {
    CPU_SET(core, &mask);
  } else {
    // A caller that is kept on few cores must not confine the threads that others will use too.
    sched_getaffinity(0, sizeof(mask), &mask);
    if (sched_getaffinity(getpid(), sizeof(other), &other) == 0) CPU_OR(&mask, &mask, &other);
  }
  pthread_attr_setaffinity_np(&attributes, sizeof(mask), &mask);
  int failed = pthread_create(&worker->thread, &attributes, WorkerMain, start);
  if (failed == EINVAL) failed = pthread_create(&worker->thread, nullptr, WorkerMain, start);  // the core is not ours
  pthread_attr_destroy(&attributes);
  if (failed) {
    delete start;
    pool->refused.store(kRefusedLaunches, std::memory_order_relaxed);
    return false;
  }
  pthread_setname_np(worker->thread, "hetero_tvm");
  worker->owner = ThisLibrary();
  const uint32_t absent = worker->state.load(std::memory_order_relaxed);
  worker->state.store(absent - kAbsent + kIdle, std::memory_order_release);
  return true;
}

// Starts the absent ones of the first `wanted` workers, or the one that is pinned to `core`.
void Grow(Cell* cell, Pool* pool, int wanted, int core) {
  if (const uint32_t refused = pool->refused.load(std::memory_order_relaxed)) {
    pool->refused.store(refused - 1, std::memory_order_relaxed);
    return;
  }
  const SignalsWait wait;  // the threads inherit this: signals are for the program's own
  if (!TryGrow(pool)) return;
  if (core >= 0) {
    Worker* worker = pool->pinned_worker[core].load(std::memory_order_relaxed);
    if (!worker && (worker = new (std::nothrow) Worker)) {
      pool->pinned_worker[core].store(worker, std::memory_order_release);
    }
    if (worker && IsAbsent(worker)) StartThread(cell, pool, worker, core);
  } else {
    for (int i = 0; i < wanted; ++i) {
      Worker* worker = &pool->workers[i];
      if (IsAbsent(worker) && !StartThread(cell, pool, worker, -1)) break;
    }
  }
  EndGrow(pool);
}

// Makes a free worker the caller's; `state` is what its word is then, `slept` whether it must be woken.
bool Reserve(Worker* worker, uint32_t* state, bool* slept) {
  uint32_t seen = worker->state.load(std::memory_order_relaxed);
  while (seen % kPhases == kIdle || seen % kPhases == kAsleep) {
    const uint32_t reserved = seen - seen % kPhases + kPhases + kReserved;
    if (worker->state.compare_exchange_weak(seen, reserved, std::memory_order_acq_rel)) {
      *state = reserved;
      *slept = seen % kPhases == kAsleep;
      return true;
    }
  }
  return false;
}

struct Helper {
  Worker* worker;
  uint32_t state;
  bool slept;
};

// Reserves up to `wanted` workers, the same ones for the same shares where they are free.
int FindHelpers(Cell* cell, Pool* pool, int wanted, const int32_t* cores, Helper* helpers) {
  int found = 0;
  auto reserve = [&](Worker* worker) {
    Helper* helper = &helpers[found];
    if (Reserve(worker, &helper->state, &helper->slept)) {
      helper->worker = worker;
      ++found;
    }
  };
  if (cores) {
    for (int i = 1; i <= wanted; ++i) {
      const int core = cores[i];
      if (core < 0 || core >= kMostCores) continue;
      Worker* worker = pool->pinned_worker[core].load(std::memory_order_acquire);
      if (!worker || IsAbsent(worker)) {
        Grow(cell, pool, 0, core);
        worker = pool->pinned_worker[core].load(std::memory_order_acquire);
      }
      if (worker) reserve(worker);
    }
    return found;
  }
  // Several callers share what the process may use; one that asks for more gets it.
  const int most = wanted > pool->limit - 1 ? wanted : pool->limit - 1;
  bool grown = false;
  for (int at = 0; at < most && found < wanted; ++at) {
    Worker* worker = &pool->workers[at];
    if (!grown && IsAbsent(worker)) {
      const int exist = at + wanted - found;
      Grow(cell, pool, exist < most ? exist : most, -1);
      grown = true;
    }
    reserve(worker);
  }
  return found;
}

// A worker that is kept from working by its own caller, on the same core, goes to another one.  The scheduler
// would leave the two together for long.  Its mask is as before afterwards.
void MoveAway(Pool* pool, const Worker* worker) {
  const int here = sched_getcpu();
  if (here < 0 || here != worker->seen_on.load(std::memory_order_relaxed)) return;
  const uint64_t now = Now();
  uint64_t before = pool->moved_ns.load(std::memory_order_relaxed);
  if (now - before < kMove_ns || !pool->moved_ns.compare_exchange_strong(before, now)) return;
  // The worker may no longer be this caller's.  Its thread does not end meanwhile: that needs the same lock.
  if (!TryGrow(pool)) return;
  const int thread = worker->thread_id.load(std::memory_order_relaxed);
  cpu_set_t mask;
  if (thread != 0 && worker->core < 0 && sched_getaffinity(thread, sizeof(mask), &mask) == 0 &&
      CPU_ISSET(here, &mask) && CPU_COUNT(&mask) > 1) {
    CPU_CLR(here, &mask);
    if (sched_setaffinity(thread, sizeof(mask), &mask) == 0) {
      CPU_SET(here, &mask);
      sched_setaffinity(thread, sizeof(mask), &mask);
    }
  }
  EndGrow(pool);
}

// Ends a job for one worker: it has not begun (false), or it has left.  `late` says that it kept the caller.
bool Finish(Pool* pool, Helper* helper, bool* late) {
  std::atomic<uint32_t>* word = &helper->worker->state;
  const uint32_t generation = helper->state - kReserved;
  uint32_t seen = generation + kAssigned;
  if (word->compare_exchange_strong(seen, generation + kIdle, std::memory_order_acq_rel)) return false;
  auto left = [&] {
    const uint32_t now = word->load(std::memory_order_acquire);
    return now != generation + kTaken && now != generation + kWaited;
  };
  if (left() || Spin(kWaitSpin_ns, left)) return true;
  *late = true;
  MoveAway(pool, helper->worker);
  while (!left()) {
    seen = generation + kTaken;
    if (word->compare_exchange_strong(seen, generation + kWaited, std::memory_order_acq_rel) ||
        seen == generation + kWaited) {
      FutexWait(word, generation + kWaited);
    }
  }
  return true;
}

int LaunchWith(Pool* pool, Helper* helpers, int count, FTVMParallelLambda lambda, void* data, int tasks) {
  const int disturbed = pool->disturbed.load(std::memory_order_relaxed);
  Job job;
  job.lambda = lambda;
  job.data = data;
  job.shares = count + 1;
  job.tasks = tasks > 0 ? tasks : disturbed > 0 ? job.shares * kTasksPerShare : job.shares;
  job.share = static_cast<Share*>(__builtin_alloca_with_align(sizeof(Share) * job.shares, 8 * alignof(Share)));
  for (int i = 0; i < job.shares; ++i) {
    Share* share = new (&job.share[i]) Share;
    share->next.store(static_cast<int32_t>(int64_t{job.tasks} * i / job.shares), std::memory_order_relaxed);
    share->end = static_cast<int32_t>(int64_t{job.tasks} * (i + 1) / job.shares);
  }
  const uint64_t start = Now();
  for (int i = 0; i < count; ++i) {
    Worker* worker = helpers[i].worker;
    worker->job = &job;
    worker->share = i + 1;
    worker->state.store(helpers[i].state - kReserved + kAssigned, std::memory_order_release);
  }
  for (int i = 0; i < count; ++i) {
    if (helpers[i].slept) FutexWake(&helpers[i].worker->state);
  }
  Work(&job, 0);
  bool late = false;
  for (int i = 0; i < count; ++i) {
    if (!Finish(pool, &helpers[i], &late) && !helpers[i].slept && Now() - start > kLate_ns) {
      late = true;
      MoveAway(pool, helpers[i].worker);
    }
  }
  // Counts of several callers may mix: it is a matter of speed alone.
  if (late) {
    pool->disturbed.store(kDisturbedLaunches, std::memory_order_relaxed);
  } else if (disturbed > 0) {
    pool->disturbed.store(disturbed - 1, std::memory_order_relaxed);
  }
  const int status = job.status.load(std::memory_order_acquire);
  if (status != 0) LeaveError(job.error);
  return status;
}

}  // namespace

int Launch(FTVMParallelLambda lambda, void* data, int tasks) {
  Cell* cell = FindCell();
  const uintptr_t caller = Caller(cell);
  const Limits* limits = reinterpret_cast<const Limits*>(caller & ~uintptr_t{1});
  int threads = limits ? limits->threads : 0;
  int status = 0, found = 0;
  if (threads == 0 && !(caller & 1)) {  // the environment decides
    if (const char* problem = EnvironmentProblem()) {
      LeaveText("ValueError", problem);
      return -1;
    }
  }
  if (!(caller & 1) && threads != 1 && threads != -1) {
    Pool* pool = FindPool(cell);
    const int32_t* cores = limits && limits->pinned ? limits->core : nullptr;
    if (threads <= 0) {
      if (threads == 0 && pool->pinned) cores = pool->core;
      threads = threads < 0 && -threads < pool->limit ? -threads : pool->limit;
    }
    if (threads > kMostThreads) threads = kMostThreads;
    if (threads > 1) {
      SetCaller(cell, caller | 1);  // from here on what a signal handler launches runs in the handler
      Helper helpers[kMostThreads - 1];
      found = FindHelpers(cell, pool, threads - 1, cores, helpers);
      if (found) status = LaunchWith(pool, helpers, found, lambda, data, tasks);
      SetCaller(cell, caller);
    }
  }
  if (found) return status;
  // One thread, or a launch inside of a launch, or all workers are busy with other callers' launches.
  const int all = tasks > 0 ? tasks : 1;
  for (int task = 0; task < all && status == 0; ++task) status = RunTask(lambda, task, all, data);
  return status;
}

void EndWorkers(Cell* cell) {
  if (Caller(cell) & 1) return;  // in a task: it would wait for itself
  if (Pool* pool = cell->pool.load(std::memory_order_acquire)) {
    while (!TryGrow(pool)) sched_yield();
    auto end = [](Worker* worker) {
      if (!worker || worker->owner != ThisLibrary()) return;
      uint32_t state;
      bool slept;
      while (!Reserve(worker, &state, &slept)) sched_yield();  // another caller's launch is on it
      worker->state.store(state - kReserved + kQuit, std::memory_order_release);
      if (slept) FutexWake(&worker->state);
      pthread_join(worker->thread, nullptr);
      worker->owner = nullptr;
      worker->thread_id.store(0, std::memory_order_relaxed);
      worker->state.store(state - kReserved + kAbsent, std::memory_order_release);
    };
    for (Worker& worker : pool->workers) end(&worker);
    for (auto& worker : pool->pinned_worker) end(worker.load(std::memory_order_relaxed));
    LetGo();
    EndGrow(pool);
  } else {
    LetGo();  // a forked child, whose parent has the threads
  }
}

}  // namespace hetero_tvm
