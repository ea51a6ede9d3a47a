// How many threads a process may use: its affinity mask, the CPU quota of its control groups, its environment.
// The same rules as in hetero_tvm/host/cores.py and hetero_tvm/runtime/threads.py, for programs without Python.

#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "pool.h"

namespace hetero_tvm {
namespace {

bool Lists(const std::string& names, const std::string& name) {  // "cpu,cpuacct", "cpu"
  return ("," + names + ",").find("," + name + ",") != std::string::npos;
}

double GroupLimit(const std::string& folder, bool unified) {  // in cores; 0: none
  double quota = 0, period = 0;
  if (unified) {
    std::ifstream(folder + "/cpu.max") >> quota >> period;  // "max 100000" reads no number
  } else {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

struct Mount {
  bool found = false;
  std::string inner, folder;
};

void FindMounts(const std::string& proc, Mount* unified, Mount* legacy) {
  std::ifstream file(proc + "/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream left(line.substr(0, dash)), right(line.substr(dash + 3));
    std::string skip, inner, folder, kind, options;
    left >> skip >> skip >> skip >> inner >> folder;
    right >> kind;
    for (std::string word; right >> word;) options = word;
    Mount* mount = kind == "cgroup2" ? unified : kind == "cgroup" && Lists(options, "cpu") ? legacy : nullptr;
    if (mount && !mount->found) *mount = {true, inner, folder};
  }
}

}  // namespace

double CpuQuota(const char* proc, const char* root) {
  Mount unified, legacy;
  FindMounts(proc, &unified, &legacy);
  double least = 0;
  std::ifstream file(std::string(proc) + "/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_unified = line.compare(0, first, "0") == 0 && controllers.empty();
    const Mount& mount = is_unified ? unified : legacy;
    if (!mount.found || (!is_unified && !Lists(controllers, "cpu"))) continue;
    std::string path = line.substr(second + 1);
    // In a container the mount may show a subtree only, while the path is the host's.
    if (mount.inner != "/" && (path + "/").compare(0, mount.inner.size() + 1, mount.inner + "/") == 0) {
      path = path.substr(mount.inner.size());
    }
    for (;; path.resize(path.rfind('/'))) {  // leaf to top
      const double limit = GroupLimit(root + mount.folder + (path == "/" ? "" : path), is_unified);
      if (limit > 0 && (least == 0 || limit < least)) least = limit;
      if (path.rfind('/') == std::string::npos) break;
    }
  }
  return least;
}

int UsableCores(const char* proc, const char* root) {
  cpu_set_t mask;
  const bool known = sched_getaffinity(0, sizeof(mask), &mask) == 0;  // not above 1024 cores
  long cores = known ? CPU_COUNT(&mask) : sysconf(_SC_NPROCESSORS_ONLN);
  const double quota = CpuQuota(proc, root);
  // Rounded down: threads that wait for one another lose more to throttling than part of a core could give.
  if (quota > 0 && quota < cores) cores = static_cast<long>(quota + 1e-6);
  return cores < 1 ? 1 : cores < kMostThreads ? static_cast<int>(cores) : kMostThreads;
}

int ParseCores(const char* text, int32_t* cores, int most) {
  int count = 0;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    if (part.empty()) continue;
    int low = 0, high = 0, used = 0;
    const int fields = std::sscanf(part.c_str(), "%d%n-%d%n", &low, &used, &high, &used);
    if (fields == 1) high = low;
    if (fields < 1 || part.size() != static_cast<size_t>(used) || low < 0) return -1;
    for (int core = low; core <= high; ++core) {
      if (count == most) return -1;
      cores[count++] = core;
    }
  }
  return count ? count : -1;
}

namespace {

// A whole number of at least 1, spaces around it allowed; 0: something else.
long ParseThreads(std::string text) {
  const char* spaces = " \t\n\r\f\v";
  text.erase(0, text.find_first_not_of(spaces));
  text.erase(text.find_last_not_of(spaces) + 1);
  if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != std::string::npos) return 0;
  return std::strtol(text.c_str(), nullptr, 10);
}

bool IsBlank(const char* text) { return !text || !text[std::strspn(text, " \t\n\r\f\v")]; }

std::string FindProblem() {
  const char* pin = std::getenv("HETERO_TVM_PIN");
  const std::string cores = pin ? pin : "";
  int32_t listed[kMostThreads];
  if (!IsBlank(pin) && cores != "0" && cores != "1" && ParseCores(pin, listed, kMostThreads) < 0) {
    return "HETERO_TVM_PIN='" + cores + "' is not 0, 1, or a list of core ids such as 2,3";
  }
  const char* text = std::getenv("HETERO_TVM_THREADS");
  if (IsBlank(text)) return "";
  const long threads = ParseThreads(text);
  const std::string given = std::string("HETERO_TVM_THREADS='") + text + "'";
  if (threads < 1) return given + " is not a whole number of at least 1";
  if (threads > kMostThreads) return given + " is above the limit of " + std::to_string(kMostThreads);
  return "";
}

}  // namespace

const char* EnvironmentProblem() {
  static const std::string problem = FindProblem();
  return problem.empty() ? nullptr : problem.c_str();
}

void ReadLimits(Pool* pool) {
  pool->limit = UsableCores("/proc", "");
  pool->pinned = 0;
  const char* pin = std::getenv("HETERO_TVM_PIN");
  const std::string cores = pin ? pin : "";
  if (cores == "1") {
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof(mask), &mask) == 0) {
      for (int core = 0; core < kMostCores && pool->pinned < pool->limit; ++core) {
        if (CPU_ISSET(core, &mask)) pool->core[pool->pinned++] = core;
      }
    }
  } else if (!cores.empty() && cores != "0") {
    const int count = ParseCores(cores.c_str(), pool->core, kMostThreads);
    if (count > 0) pool->limit = pool->pinned = count;
  }
  const char* text = std::getenv("HETERO_TVM_THREADS");
  const long threads = text ? ParseThreads(text) : 0;
  if (threads > 0) pool->limit = static_cast<int32_t>(threads < kMostThreads ? threads : kMostThreads);
  if (pool->limit > pool->pinned) pool->pinned = 0;  // too few cores are listed
}

}  // namespace hetero_tvm
