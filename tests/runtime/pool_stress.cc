// The pool without TVM: each case ends with "ok", or says what is wrong.

#include <sched.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "pool.h"

using hetero_tvm::FindCell;
using hetero_tvm::Launch;
using hetero_tvm::Limits;

namespace {

[[noreturn]] void Fail(const char* what) {
  std::printf("wrong: %s\n", what);
  std::exit(1);
}

void Use(const Limits* limits) { pthread_setspecific(FindCell()->caller, limits); }

// A loop as TVM's code generation writes it: iterations are divided among the tasks.
struct Loop {
  int extent;
  int* counts;
  int work;
};

int Body(int task, TVMParallelGroupEnv* environment, void* data) {
  const Loop* loop = static_cast<Loop*>(data);
  const int64_t step = (loop->extent + environment->num_task - 1) / environment->num_task;
  for (int64_t i = task * step; i < (task + 1) * step && i < loop->extent; ++i) {
    volatile int burn = 0;
    for (int k = 0; k < loop->work; ++k) burn = burn + k;
    loop->counts[i] += 1;
  }
  return 0;
}

bool Counts(int* counts, int extent, int work, int tasks) {
  Loop loop{extent, counts, work};
  if (Launch(Body, &loop, tasks) != 0) return false;
  for (int i = 0; i < extent; ++i) {
    if (counts[i] != 1) return false;
  }
  return true;
}

bool Once(int extent, int work, int tasks = 0) {
  std::vector<int> counts(extent, 0);
  return Counts(counts.data(), extent, work, tasks);
}

void Check(int launches, int seed) {
  for (int i = 0; i < launches; ++i) {
    if (!Once((i * 37 + seed) % 200, (i + seed) % 5 == 0 ? 3000 : 10, i % 7 == 0 ? 5 : 0)) Fail("an iteration");
    if (i % 200 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // workers fall asleep
  }
}

int Nested(int, TVMParallelGroupEnv*, void*) { return Once(50, 10) ? 0 : -1; }

int Refuses(int task, TVMParallelGroupEnv* environment, void*) { return task == environment->num_task - 1 ? -7 : 0; }

int Throws(int, TVMParallelGroupEnv*, void*) { throw std::runtime_error("no"); }

volatile sig_atomic_t handled = 0;

void Handler(int) {
  handled = handled + 1;
  int counts[20] = {};  // on the stack: the signal may have come in the middle of malloc
  if (!Counts(counts, 20, 10, 0)) _exit(3);
}

int Child(void (*work)()) {
  const pid_t pid = fork();
  if (pid == 0) {
    work();
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return status;
}

void InChild() {
  Check(60, 5);
  if (Child([] { Check(20, 6); }) != 0) _exit(4);
}

void Callers(int threads, int launches) {
  std::vector<std::thread> callers;
  for (int i = 0; i < threads; ++i) {
    callers.emplace_back([i, launches] {
      const Limits limits{i % 4 + 1, 0, nullptr};
      if (i % 3) Use(&limits);
      Check(launches, i);
      Use(nullptr);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

}  // namespace

int main(int count, char** arguments) {
  const std::string name = count > 1 ? arguments[1] : "";
  if (name == "quota" && count == 4) {
    std::printf("%g %d\n", hetero_tvm::CpuQuota(arguments[2], arguments[3]),
                hetero_tvm::UsableCores(arguments[2], arguments[3]));
    return 0;
  }
  if (name == "environment") {
    const char* problem = hetero_tvm::EnvironmentProblem();
    const int status = Launch([](int, TVMParallelGroupEnv*, void*) { return 0; }, nullptr, 4);
    if ((status != 0) != (problem != nullptr)) Fail("a problem of the environment");
    std::printf("%s\n", status ? problem : "fine");
    const Limits limits{2, 0, nullptr};
    Use(&limits);
    if (Launch([](int, TVMParallelGroupEnv*, void*) { return 0; }, nullptr, 4) != 0) Fail("limits of the caller");
    std::printf("fine\n");
    return 0;
  }
  if (name == "limits") {
    const hetero_tvm::Pool* pool = hetero_tvm::FindPool(FindCell());
    std::printf("%d %d\n", pool->limit, pool->pinned);
    return 0;
  }
  if (name == "tasks") {
    Check(4000, 0);
  } else if (name == "callers") {
    Callers(12, 400);
  } else if (name == "nested") {
    for (int i = 0; i < 200; ++i) {
      if (Launch(Nested, nullptr, 0) != 0) Fail("a nested launch");
    }
  } else if (name == "errors") {
    for (int i = 0; i < 500; ++i) {
      if (Launch(Refuses, nullptr, i % 9) != -7) Fail("an error is lost");
      if (Launch(Throws, nullptr, 0) != -1) Fail("an exception is lost");
      if (!Once(64, 10)) Fail("a launch after an error");
    }
  } else if (name == "fork") {
    Check(100, 0);
    const int children = count > 2 ? std::atoi(arguments[2]) : 6;
    std::atomic<bool> stop{false};
    std::vector<std::thread> busy;
    for (int i = 0; i < 3; ++i) {
      busy.emplace_back([&stop, i] {
        while (!stop.load()) Check(10, i);
      });
    }
    for (int i = 0; i < children; ++i) {
      if (Child(InChild) != 0) Fail("a forked child");
    }
    stop.store(true);
    for (std::thread& thread : busy) thread.join();
  } else if (name == "signal") {
    Check(1, 0);  // what is made once allocates, and a signal may come in the middle of the program's own malloc
    signal(SIGALRM, Handler);
    itimerval timer{{0, 300}, {0, 300}};
    setitimer(ITIMER_REAL, &timer, nullptr);
    for (int i = 0; handled < 200; ++i) {
      if (!Once(i % 100, 100)) Fail("a launch that a signal has interrupted");
    }
    timer = {};
    setitimer(ITIMER_REAL, &timer, nullptr);
  } else if (name == "end") {
    std::atomic<bool> stop{false};
    std::thread other([&stop] {
      while (!stop.load()) Check(10, 1);
    });
    for (int i = 0; i < 300; ++i) {
      Check(3, i);
      hetero_tvm::EndWorkers(FindCell());
    }
    stop.store(true);
    other.join();
  } else if (name == "pinned") {
    int32_t cores[2] = {0, 0};
    cpu_set_t mask;
    sched_getaffinity(0, sizeof(mask), &mask);
    for (int core = 0, found = 0; core < CPU_SETSIZE && found < 2; ++core) {
      if (CPU_ISSET(core, &mask)) cores[found++] = core;
    }
    const Limits limits{2, 2, cores};
    Use(&limits);
    Check(2000, 3);
    Use(nullptr);
    Callers(4, 100);
  } else if (name == "one") {
    const Limits limits{1, 0, nullptr};
    Use(&limits);
    Check(500, 2);
    if (FindCell()->pool.load()) Fail("one thread has made a pool");
  } else {
    Fail("no such case");
  }
  std::printf("ok\n");
  return 0;
}
