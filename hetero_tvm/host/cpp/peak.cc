// What this machine can do at best: FMA rate and memory read rate, on pinned threads.
//
// The FMA loop keeps 12 independent accumulators in registers: two units times a latency of
// 4 to 5 cycles need at least 10 in flight, and 12 + 2 operands fit the 16 registers of AVX2.
//
// Products of 8-bit integers and of pairs of bfloat16 have loops of the same form, where the machine has
// instructions for them; tiles (AMX) go before vectors.
//
// Memory is read from large pages, in four streams at once: page walks, and a prefetcher that follows one
// stream only as far as its page, take a third off what the memory can deliver.

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
using Vec = __m512;
inline Vec Set(float x) { return _mm512_set1_ps(x); }
inline Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec Load(const float* p) { return _mm512_load_ps(p); }
inline Vec Add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
#elif defined(__AVX2__) && defined(__FMA__)
using Vec = __m256;
inline Vec Set(float x) { return _mm256_set1_ps(x); }
inline Vec Fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec Load(const float* p) { return _mm256_load_ps(p); }
inline Vec Add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
#elif defined(__x86_64__)
using Vec = __m128;
inline Vec Set(float x) { return _mm_set1_ps(x); }
inline Vec Fma(Vec a, Vec b, Vec c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
inline Vec Load(const float* p) { return _mm_load_ps(p); }
inline Vec Add(Vec a, Vec b) { return _mm_add_ps(a, b); }
#else  // any other machine: four lanes, left to the compiler
typedef float Vec __attribute__((vector_size(16)));
inline Vec Set(float x) { return Vec{x, x, x, x}; }
inline Vec Fma(Vec a, Vec b, Vec c) { return a * b + c; }
inline Vec Load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
inline Vec Add(Vec a, Vec b) { return a + b; }
#endif

constexpr int kLanes = sizeof(Vec) / sizeof(float);
constexpr int kChains = 12;
constexpr int kStreams = 4;
constexpr size_t kLargePage = size_t{2} << 20;

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point from) {
  return std::chrono::duration<double>(Clock::now() - from).count();
}

// Tells the compiler that the value may be read and changed here, at no cost.
inline void Keep(Vec& v) {
#if defined(__x86_64__)
  __asm__ volatile("" : "+x"(v));
#else
  __asm__ volatile("" : "+w"(v));
#endif
}

void Pin(int core) {
  if (core < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

// A meeting point that spins: the threads must leave it together, within nanoseconds.
class Barrier {
 public:
  explicit Barrier(int count) : count_(count) {}
  void Wait() {
    int turn = turn_.load();
    if (arrived_.fetch_add(1) + 1 == count_) {
      arrived_.store(0);
      turn_.fetch_add(1);
      return;
    }
    for (int spins = 0; turn_.load(std::memory_order_acquire) == turn; ++spins)
      if (spins > 2000) std::this_thread::yield();
  }

 private:
  const int count_;
  std::atomic<int> arrived_{0}, turn_{0};
};

void Fmas(int64_t steps) {
  Vec acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = Set(0.5f + 0.01f * static_cast<float>(i));
  Vec a = Set(0.999f), b = Set(0.0005f);  // a fixed point below one: never inf, never denormal
  Keep(a);
  Keep(b);
  for (int64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) acc[i] = Fma(acc[i], a, b);
  }
  for (int i = 0; i < kChains; ++i) Keep(acc[i]);
}

// Dot() adds products of 8-bit integers to 32-bit sums: kDotWords for each byte of a vector.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define HETERO_INT8 1
#if defined(__AVX512VNNI__)
using Words = __m512i;
inline Words Ones() { return _mm512_set1_epi8(1); }
inline Words Dot(Words acc, Words a, Words b) { return _mm512_dpbusd_epi32(acc, a, b); }
#else
using Words = __m256i;
inline Words Ones() { return _mm256_set1_epi8(1); }
inline Words Dot(Words acc, Words a, Words b) { return _mm256_dpbusd_avx_epi32(acc, a, b); }
#endif
constexpr int kDotWords = 1;
#elif defined(__AVX512BW__)
#define HETERO_INT8 1
using Words = __m512i;
inline Words Ones() { return _mm512_set1_epi8(1); }
inline Words Dot(Words acc, Words a, Words b) {
  Words pairs = _mm512_add_epi16(_mm512_maddubs_epi16(a, b), _mm512_maddubs_epi16(b, a));
  return _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
constexpr int kDotWords = 2;
#elif defined(__AVX2__)
#define HETERO_INT8 1
using Words = __m256i;
inline Words Ones() { return _mm256_set1_epi8(1); }
inline Words Dot(Words acc, Words a, Words b) {
  Words pairs = _mm256_add_epi16(_mm256_maddubs_epi16(a, b), _mm256_maddubs_epi16(b, a));
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
constexpr int kDotWords = 2;
#endif

#if defined(HETERO_INT8)
inline void Keep(Words& v) { __asm__ volatile("" : "+x"(v)); }

// Eight sums leave registers for what pairs of products need in between.
void Dots(int64_t steps) {
  constexpr int kSums = 8;
  Words acc[kSums], a = Ones(), b = Ones();
  for (auto& v : acc) v = Ones();
  for (int64_t s = 0; s < steps; ++s) {
    Keep(a);  // or the products would be taken out of the loop
    Keep(b);
#pragma GCC unroll 8
    for (int i = 0; i < kSums; ++i) {
      if (kDotWords > 1) Keep(a);
      acc[i] = Dot(acc[i], a, b);
    }
  }
  for (auto& v : acc) Keep(v);
}
constexpr double kDotsWork = 8.0 * kDotWords * sizeof(Words) * 2;
#endif

#if defined(__AVX512BF16__)
void Halves(int64_t steps) {
  Vec acc[kChains];
  for (auto& v : acc) v = Set(0.f);
  __m512i zeros = _mm512_setzero_si512();
  __m512bh a = reinterpret_cast<__m512bh&>(zeros), b = a;
  for (int64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) acc[i] = _mm512_dpbf16_ps(acc[i], a, b);
  }
  for (auto& v : acc) Keep(v);
}
constexpr double kHalvesWork = 2.0 * 2 * kLanes * kChains;
#endif

#if defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__)
#define HETERO_TILES 1
// Whether the system lets this process use the registers of tiles.
bool TilesPermitted() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

template <bool kInt8>
void Tiles(int64_t steps) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.bytes[i] = 64;
    config.rows[i] = 16;
  }
  // GCC's load names eight bytes of it only, and the other stores would be left out.
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t s = 0; s < steps; ++s) {
    if (kInt8) {
      _tile_dpbusd(0, 4, 6);
      _tile_dpbusd(1, 4, 7);
      _tile_dpbusd(2, 5, 6);
      _tile_dpbusd(3, 5, 7);
    } else {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_release();
}
constexpr double kTilesWork = 4.0 * 16 * 16 * 16 * 2;  // times the values of a word: 4 or 2
#endif

// `count` is a multiple of kStreams * 8 * kLanes.
void Read(const float* data, size_t count) {
  Vec sum[8];
  for (auto& v : sum) v = Set(0.f);
  const size_t part = count / kStreams;
  for (size_t i = 0; i < part; i += 8 * kLanes) {
    for (int stream = 0; stream < kStreams; ++stream) {
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k) sum[k] = Add(sum[k], Load(data + stream * part + i + k * kLanes));
    }
  }
  for (auto& v : sum) Keep(v);
}

// Seconds that this thread has had a core.
double CoreSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Runs `body(thread)` on every thread at once, `repeats` times; the shortest time of all: of the thread that needs
// its core longest, which other processes do not lengthen.  With `wall`, on the wall's clock, where at least one
// repeat had the cores to itself: memory is shared only by threads that run at the same time.
double BestTime(int threads, const int* cores, int repeats, bool wall, const std::function<void(int)>& prepare,
                const std::function<void(int)>& body) {
  Barrier barrier(threads);
  constexpr double kAlone = 1.2;  // wall's time by the cores' up to which nobody else had them
  double shortest = 1e300, undisturbed = 1e300;
  std::vector<double> own(static_cast<size_t>(threads), 0.0);
  auto work = [&](int index) {
    Pin(cores[index]);
    prepare(index);
    for (int r = 0; r < repeats; ++r) {
      barrier.Wait();
      Clock::time_point start = Clock::now();
      const double before = CoreSeconds();
      body(index);
      own[static_cast<size_t>(index)] = CoreSeconds() - before;
      barrier.Wait();
      if (index == 0) {
        const double longest = *std::max_element(own.begin(), own.end()), all = Seconds(start);
        shortest = std::min(shortest, longest);
        if (all < kAlone * longest) undisturbed = std::min(undisturbed, all);
      }
    }
  };
  std::vector<std::thread> pool;
  for (int i = 0; i < threads; ++i) pool.emplace_back(work, i);
  for (auto& thread : pool) thread.join();
  return wall && undisturbed < 1e300 ? undisturbed : shortest;
}

// Operations per ns of `loop`, which does `work` operations in a step, on all threads together.
double Peak(void (*loop)(int64_t), double work, int threads, const int* cores, double seconds, int repeats) {
  int64_t steps = 10000;
  loop(10 * steps);  // wakes the clock before it is measured
  const double before = CoreSeconds();
  loop(steps);
  const double taken = CoreSeconds() - before + 1e-9;
  steps = static_cast<int64_t>(static_cast<double>(steps) * seconds / taken) + 1;
  double best = BestTime(
      threads, cores, repeats, false, [loop, steps](int) { loop(steps / 2); }, [loop, steps](int) { loop(steps); });
  return work * static_cast<double>(steps) * threads / best * 1e-9;
}

}  // namespace

extern "C" {

// Operations per ns of all threads together: of float32 (0), 8-bit integers (1) or bfloat16 (2).  Each repeat
// lasts about `seconds`.  Negative where this machine has no instructions for them.
double hetero_peak_gflops(int threads, const int* cores, double seconds, int repeats, int kind) {
  switch (kind) {
    case 0:
      return Peak(Fmas, 2.0 * kLanes * kChains, threads, cores, seconds, repeats);
    case 1:
#if defined(HETERO_TILES)
      if (TilesPermitted()) return Peak(Tiles<true>, 4 * kTilesWork, threads, cores, seconds, repeats);
#endif
#if defined(HETERO_INT8)
      return Peak(Dots, kDotsWork, threads, cores, seconds, repeats);
#else
      return -1.0;
#endif
    case 2:
#if defined(HETERO_TILES)
      if (TilesPermitted()) return Peak(Tiles<false>, 2 * kTilesWork, threads, cores, seconds, repeats);
#endif
#if defined(__AVX512BF16__)
      return Peak(Halves, kHalvesWork, threads, cores, seconds, repeats);
#else
      return -1.0;
#endif
    default:
      return -1.0;
  }
}

// GB/s of all threads together, each reading its own `bytes` `passes` times in a repeat; negative when memory is
// short.
double hetero_read_gbytes(int threads, const int* cores, size_t bytes, int repeats, int passes) {
  constexpr size_t kStep = kStreams * 8 * sizeof(Vec);
  bytes = std::max(bytes / kStep, size_t{1}) * kStep;
  const size_t room = (bytes + kLargePage - 1) / kLargePage * kLargePage;
  std::vector<float*> data(static_cast<size_t>(threads), nullptr);
  for (auto& p : data) p = static_cast<float*>(std::aligned_alloc(kLargePage, room));
  bool ok = true;
  for (auto* p : data) {
    ok = ok && p != nullptr;
    if (p != nullptr) madvise(p, room, MADV_HUGEPAGE);  // where the system has none, small ones do
  }
  double best = -1.0;
  if (ok) {
    // Each thread touches its memory first, so that it lies on that thread's node.
    best = BestTime(
        threads, cores, repeats, true, [&](int i) { std::memset(data[i], 0, bytes); },
        [&](int i) {
          for (int pass = 0; pass < passes; ++pass) Read(data[i], bytes / sizeof(float));
        });
  }
  for (auto* p : data) std::free(p);
  return ok ? static_cast<double>(bytes) * passes * threads / best * 1e-9 : -1.0;
}

}  // extern "C"
