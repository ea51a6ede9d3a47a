// CUDA C++ on a CPU: what the code that TVM generates needs of the language, for one host thread.
//
// Every CUDA thread of a block is a fiber; barriers, shuffles, ldmatrix and mma are meeting points.
// Asynchronous copies are carried out as late as their wait allows and shared memory starts as NaN, so
// that a missing wait or a read of what nobody wrote gives wrong numbers.  A thread runs until it
// meets a barrier: some races stay unseen, and bank conflicts and speed are not modelled at all.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <type_traits>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#include <sys/mman.h>

// --- types ----------------------------------------------------------------------------------------
typedef _Float16 half;
typedef half __half;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
struct nv_bfloat16 {
  uint16_t bits;
  nv_bfloat16() = default;
  nv_bfloat16(float value) {
    uint32_t x;
    memcpy(&x, &value, 4);
    bits = std::isnan(value) ? 0x7fc0 : uint16_t((x + 0x7fff + ((x >> 16) & 1)) >> 16);
  }
  operator float() const {
    uint32_t x = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &x, 4);
    return value;
  }
};
typedef nv_bfloat16 __nv_bfloat16;
struct tf32 {  // tensor cores drop the lower 13 bits of a float
  uint32_t bits;
  operator float() const {
    uint32_t x = bits & 0xffffe000u;
    float value;
    memcpy(&value, &x, 4);
    return value;
  }
};
template <class T>
static inline T hetero_tvm_fence(T x) {  // see ../../../targets/cuda/toolchain.py
  asm("" : "+r"(x));
  return x;
}
static inline unsigned round_tf32(float value) {  // to nearest, ties away from zero
  uint32_t x;
  memcpy(&x, &value, 4);
  return std::isfinite(value) ? (x + 0x1000u) & 0xffffe000u : x;
}
#define VECTOR2(T, N)                   \
  struct alignas(sizeof(T) * 2) N##2 {  \
    T x, y;                             \
  };                                    \
  static inline N##2 make_##N##2(T x, T y) { return {x, y}; }
#define VECTOR4(T, N)                                                    \
  struct alignas(sizeof(T) * 4 > 16 ? 16 : sizeof(T) * 4) N##4 {         \
    T x, y, z, w;                                                        \
  };                                                                     \
  static inline N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define VECTORS(T, N) VECTOR2(T, N) VECTOR4(T, N)
VECTORS(half, half) VECTORS(nv_bfloat16, nv_bfloat16) VECTORS(float, float) VECTORS(double, double)
VECTORS(signed char, char) VECTORS(uchar, uchar) VECTORS(short, short) VECTORS(ushort, ushort)
VECTORS(int, int) VECTORS(uint, uint) VECTORS(long long, longlong) VECTORS(unsigned long long, ulonglong)
typedef half2 __half2;
typedef nv_bfloat162 __nv_bfloat162;
static inline unsigned __pack_half2(half a, half b) {
  half two[2] = {a, b};
  unsigned r;
  memcpy(&r, two, 4);
  return r;
}
static inline unsigned __pack_nv_bfloat162(nv_bfloat16 a, nv_bfloat16 b) { return a.bits | unsigned(b.bits) << 16; }
static inline half __float2half_rn(float x) { return half(x); }
static inline float __half2float(half x) { return float(x); }
static inline nv_bfloat16 __float2bfloat16(float x) { return nv_bfloat16(x); }
static inline nv_bfloat16 __float2bfloat16_rn(float x) { return nv_bfloat16(x); }
static inline float __bfloat162float(nv_bfloat16 x) { return float(x); }
static inline float __int_as_float(int x) { float r; memcpy(&r, &x, 4); return r; }
static inline int __float_as_int(float x) { int r; memcpy(&r, &x, 4); return r; }
template <class A, class B> static inline typename std::common_type<A, B>::type max(A a, B b) {
  typedef typename std::common_type<A, B>::type T;
  return T(a) > T(b) || T(b) != T(b) ? T(a) : T(b);
}
template <class A, class B> static inline typename std::common_type<A, B>::type min(A a, B b) {
  typedef typename std::common_type<A, B>::type T;
  return T(a) < T(b) || T(b) != T(b) ? T(a) : T(b);
}
template <class A, class B> static inline typename std::common_type<A, B>::type nan_max(A a, B b) {
  typedef typename std::common_type<A, B>::type T;
  return T(a) > T(b) || T(a) != T(a) ? T(a) : T(b);
}
template <class A, class B> static inline typename std::common_type<A, B>::type nan_min(A a, B b) {
  typedef typename std::common_type<A, B>::type T;
  return T(a) < T(b) || T(a) != T(a) ? T(a) : T(b);
}
#define __expf expf
#define __fdividef(a, b) ((a) / (b))
#define hexp(x) half(expf(float(x)))
#define hexp2(x) half(exp2f(float(x)))
#define hsqrt(x) half(sqrtf(float(x)))
#define hrsqrt(x) half(1.0f / sqrtf(float(x)))
#define hlog(x) half(logf(float(x)))
#define htanh(x) half(tanhf(float(x)))
#define rsqrtf(x) (1.0f / sqrtf(x))
#define rsqrt(x) (1.0 / sqrt(x))
#define __hmax(a, b) max(a, b)
#define __hmin(a, b) min(a, b)
#define __ldg(p) (*(p))
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_INF ((double)INFINITY)
#define CUDART_NAN ((double)NAN)

// --- fibers ---------------------------------------------------------------------------------------
struct Dim3 {
  int x, y, z;
};
static Dim3 threadIdx, blockIdx, blockDim, gridDim;
enum State : char { READY, AT_BARRIER, AT_WARP, DONE };
struct Copy {
  unsigned char* to;
  const unsigned char* from;
  int size, zeros;
};
struct Fiber {
#if defined(__x86_64__)
  void* stack_pointer;
#else
  ucontext_t context;
#endif
  State state;
  Dim3 index;
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
  std::vector<std::function<void()>> open_products;
  std::deque<std::vector<std::function<void()>>> products;
};
constexpr size_t kStack = 128 << 10;
alignas(1024) static unsigned char shared_memory[256 << 10];
static unsigned char* stacks;
static std::vector<Fiber> fibers;
static int current, alive;
static std::vector<int> warp_alive, warp_waiting;
static int waiting;
static Fiber scheduler;
static const char* fault;
static unsigned exchange[32][32][8];  // warp, lane, value

static void switch_fiber(Fiber& from, Fiber& to);
#if defined(__x86_64__)
__attribute__((naked, noinline)) static void switch_stack(void** save, void* load) {
  asm("pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret");
}
static void switch_fiber(Fiber& from, Fiber& to) { switch_stack(&from.stack_pointer, to.stack_pointer); }
#else
static void switch_fiber(Fiber& from, Fiber& to) { swapcontext(&from.context, &to.context); }
#endif
static inline int lanes_of(int warp) {
  int left = int(fibers.size()) - warp * 32;
  return left < 32 ? left : 32;
}
static void run_next() {  // give way to the next fiber that can run
  int count = fibers.size(), from = current;
  for (int step = 1; step <= count; ++step) {
    int next = (from + step) % count;
    if (fibers[next].state != READY) continue;
    if (next == from) return;
    current = next;
    threadIdx = fibers[next].index;
    switch_fiber(fibers[from], fibers[next]);
    return;
  }
  if (alive) fault = "deadlock: threads wait at different barriers";
  switch_fiber(fibers[from], scheduler);
}
static void release_block() {
  if (waiting && waiting == alive) {
    waiting = 0;
    for (auto& f : fibers) if (f.state == AT_BARRIER) f.state = READY;
  }
}
static void release_warp(int warp) {
  if (warp_waiting[warp] && warp_waiting[warp] == warp_alive[warp]) {
    warp_waiting[warp] = 0;
    for (int i = 0; i < lanes_of(warp); ++i)
      if (fibers[warp * 32 + i].state == AT_WARP) fibers[warp * 32 + i].state = READY;
  }
}
static void __syncthreads() {
  fibers[current].state = AT_BARRIER;
  ++waiting;
  release_block();
  run_next();
}
static void __syncwarp(unsigned = 0) {
  int warp = current / 32;
  fibers[current].state = AT_WARP;
  ++warp_waiting[warp];
  release_warp(warp);
  run_next();
}
static inline void __threadfence_block() {}
static inline void __threadfence() {}
template <class T> static T shuffle(T value, int source) {
  static_assert(sizeof(T) <= 32, "");
  int warp = current / 32, lane = current % 32;
  memcpy(exchange[warp][lane], &value, sizeof(T));
  __syncwarp();
  T result;
  memcpy(&result, exchange[warp][source & 31], sizeof(T));
  __syncwarp();
  return result;
}
template <class T> static T __shfl_xor_sync(unsigned, T v, int mask, int = 32) { return shuffle(v, (current % 32) ^ mask); }
template <class T> static T __shfl_down_sync(unsigned, T v, int d, int w = 32) {
  int lane = current % 32;
  return shuffle(v, lane % w + d < w ? lane + d : lane);
}
template <class T> static T __shfl_up_sync(unsigned, T v, int d, int w = 32) {
  int lane = current % 32;
  return shuffle(v, lane % w >= d ? lane - d : lane);
}
template <class T> static T __shfl_sync(unsigned, T v, int s, int w = 32) { return shuffle(v, current % 32 / w * w + s % w); }
static int __any_sync(unsigned, int x) {
  for (int lanes = 1; lanes < 32; lanes *= 2) x |= __shfl_xor_sync(0xffffffffu, x, lanes);
  return x;
}
static inline unsigned __activemask() { return 0xffffffffu; }
template <class T> static T atomicAdd(T* p, T v) { T old = *p; *p = T(old + v); return old; }
template <class T> static T atomicMax(T* p, T v) { T old = *p; *p = max(old, v); return old; }
template <class T> static T atomicMin(T* p, T v) { T old = *p; *p = min(old, v); return old; }

// --- who accesses what ------------------------------------------------------------------------------
// With HETERO_TVM_TRACE: the accesses of the first block, each with the line of the program it comes from.
#if defined(HETERO_TVM_TRACE)
struct Access {
  int line, thread, shared, size;
  unsigned long long address;
};
static std::vector<Access> accesses;
static int line;
extern "C" long accesses_count() { return long(accesses.size()); }
extern "C" const Access* accesses_data() { return accesses.data(); }
extern "C" void accesses_clear() { accesses.clear(); }
static void note(const void* p, int size) {
  if (blockIdx.x || blockIdx.y || blockIdx.z) return;
  auto offset = static_cast<const unsigned char*>(p) - shared_memory;
  bool shared = offset >= 0 && offset < long(sizeof shared_memory);
  accesses.push_back({line, current, shared, size, shared ? offset : reinterpret_cast<unsigned long long>(p)});
}
#else
static inline void note(const void*, int) {}
#endif
template <class T> static inline T* seen(T* p) {
  note(p, sizeof(T));
  return p;
}

// --- asynchronous copies, matrix fragments ----------------------------------------------------------
static inline unsigned __cvta_generic_to_shared(const void* p) {
  return unsigned(static_cast<const unsigned char*>(p) - shared_memory);
}
static void copy_async(unsigned to, const void* from, int size, int valid) {
  if (to % size || reinterpret_cast<uintptr_t>(from) % (valid ? size : 1)) fault = "cp.async: unaligned address";
  note(shared_memory + to, size);
  if (valid) note(from, valid);
  fibers[current].open.push_back({shared_memory + to, static_cast<const unsigned char*>(from), valid, size - valid});
}
static void copy_commit() {
  fibers[current].groups.push_back(std::move(fibers[current].open));
  fibers[current].open.clear();
}
static void copy_wait(unsigned most) {
  auto& groups = fibers[current].groups;
  for (; groups.size() > most; groups.pop_front())
    for (auto& c : groups.front()) {
      memcpy(c.to, c.from, c.size);
      memset(c.to + c.size, 0, c.zeros);
    }
}
static void load_matrices(int count, bool transposed, unsigned address, std::vector<unsigned*> out) {
  int warp = current / 32, lane = current % 32;
  exchange[warp][lane][0] = address;
  if (lane < 8 * count) note(shared_memory + address, 16);
  __syncwarp();
  unsigned result[4];
  for (int m = 0; m < count; ++m) {
    unsigned short pair[2];
    for (int e = 0; e < 2; ++e) {
      int row = transposed ? lane % 4 * 2 + e : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + e;
      unsigned at = exchange[warp][m * 8 + row][0];
      if (at % 16) fault = "ldmatrix: the address of a row is not a multiple of 16";
      memcpy(&pair[e], shared_memory + at + 2 * column, 2);
    }
    memcpy(&result[m], pair, 4);
  }
  __syncwarp();
  for (int m = 0; m < count; ++m) *out[m] = result[m];
}
// mma.sync.m16n8kK.row.col: fragment layouts of the PTX manual.
template <class T, int K, class Acc>
static void multiply(std::vector<Acc*> d, std::vector<unsigned> a, std::vector<unsigned> b, std::vector<Acc> c) {
  constexpr int kPer = 4 / sizeof(T);  // values in a register
  int warp = current / 32, lane = current % 32, group = lane / 4, member = lane % 4;
  for (size_t i = 0; i < a.size(); ++i) exchange[warp][lane][i] = a[i];
  for (size_t i = 0; i < b.size(); ++i) exchange[warp][lane][4 + i] = b[i];
  __syncwarp();
  auto take = [&](int from_lane, int slot, int index) {
    T values[kPer];
    memcpy(values, &exchange[warp][from_lane][slot], 4);
    return Acc(values[index]);
  };
  Acc result[4];
  for (int i = 0; i < 4; ++i) {
    int row = group + i / 2 * 8, column = member * 2 + i % 2;
    Acc sum = c[i];
    for (int k = 0; k < K; ++k) {
      int upper = k / (4 * kPer), rest = k % (4 * kPer);
      sum += take(row % 8 * 4 + rest / kPer, upper * 2 + row / 8, rest % kPer) *
             take(column * 4 + rest / kPer, 4 + upper, rest % kPer);
    }
    result[i] = sum;
  }
  __syncwarp();
  for (int i = 0; i < 4; ++i) *d[i] = result[i];
}
// wgmma.mma_async of one warp: 16 of the 64 rows, both factors in shared memory with K together and a
// permutation of 128 bytes (bits 4 to 6 of an address are exclusive-or'ed with its bits 7 to 9).
template <class T, int N, int K, class Acc>
static void multiply_group_now(Acc* sums, unsigned long long x, unsigned long long w) {
  int warp = current / 32, lane = current % 32;
  if (x >> 62 != 1 || w >> 62 != 1) fault = "wgmma: a permutation that is not emulated";
  auto at = [](unsigned long long form, int row, int k) {
    unsigned address = unsigned(form & 0x3fff) * 16 + unsigned(form >> 32 & 0x3fff) * 16 * (row / 8) +
                       row % 8 * 128 + k * unsigned(sizeof(T));
    T value;
    memcpy(&value, shared_memory + (address ^ ((address >> 7 & 7) << 4)), sizeof(T));
    return Acc(value);
  };
  for (int i = 0; i < N / 2; ++i) {
    int row = warp % 4 * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    for (int k = 0; k < K; ++k) sums[i] += at(x, row, k) * at(w, column, k);
  }
}
// As late as its wait allows: whoever reads the sums before, or fills the tiles again, sees wrong numbers.
template <class T, int N, int K, class Acc>
static void multiply_group(Acc* sums, unsigned long long x, unsigned long long w) {
  fibers[current].open_products.push_back([=] { multiply_group_now<T, N, K, Acc>(sums, x, w); });
}
static void products_commit() {
  fibers[current].products.push_back(std::move(fibers[current].open_products));
  fibers[current].open_products.clear();
}
static void products_wait(unsigned most) {
  auto& products = fibers[current].products;
  for (; products.size() > most; products.pop_front())
    for (auto& product : products.front()) product();
}
namespace nvcuda {
namespace wmma {
struct row_major {};
struct col_major {};
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
enum layout_t { mem_row_major, mem_col_major };
template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment {  // each lane: all of it
  static constexpr int rows = std::is_same<Use, matrix_b>::value ? K : M;
  static constexpr int columns = std::is_same<Use, matrix_a>::value ? K : N;
  T x[rows * columns];
};
template <class U, int M, int N, int K, class T, class L>
void load_matrix_sync(fragment<U, M, N, K, T, L>& f, const T* p, unsigned ld) {
  __syncwarp();
  for (int i = 0; i < f.rows; ++i)
    for (int j = 0; j < f.columns; ++j)
      f.x[i * f.columns + j] = std::is_same<L, col_major>::value ? p[j * ld + i] : p[i * ld + j];
  __syncwarp();
}
template <class U, int M, int N, int K, class T, class L, class V>
void fill_fragment(fragment<U, M, N, K, T, L>& f, V v) { for (auto& e : f.x) e = T(v); }
template <int M, int N, int K, class T, class In, class LA, class LB>
void mma_sync(fragment<accumulator, M, N, K, T>& d, fragment<matrix_a, M, N, K, In, LA>& a,
              fragment<matrix_b, M, N, K, In, LB>& b, fragment<accumulator, M, N, K, T>& c) {
  if (&d != &c) d = c;
  for (int i = 0; i < M; ++i)
    for (int k = 0; k < K; ++k)
      for (int j = 0; j < N; ++j) d.x[i * N + j] += T(a.x[i * K + k]) * T(b.x[k * N + j]);
}
template <int M, int N, int K, class T>
void store_matrix_sync(T* p, fragment<accumulator, M, N, K, T>& f, unsigned ld, layout_t) {
  __syncwarp();
  if (current % 32 == 0)
    for (int i = 0; i < M; ++i)
      for (int j = 0; j < N; ++j) p[i * ld + j] = f.x[i * N + j];
  __syncwarp();
}
}  // namespace wmma
}  // namespace nvcuda

// --- launch -----------------------------------------------------------------------------------------
static void (*kernel)(void**);
static void** kernel_arguments;
static void fiber_main() {
  kernel(kernel_arguments);
  copy_wait(0);
  fibers[current].state = DONE;
  --alive;
  --warp_alive[current / 32];
  release_block();
  release_warp(current / 32);
  if (!alive) switch_fiber(fibers[current], scheduler);
  run_next();
  abort();
}
static void prepare(Fiber& fiber, int number) {
  unsigned char* stack = stacks + kStack * number;
#if defined(__x86_64__)
  void** top = reinterpret_cast<void**>(stack + kStack - 64);
  *--top = nullptr;  // keeps the stack aligned as after a call
  *--top = reinterpret_cast<void*>(fiber_main);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  fiber.stack_pointer = top;
#else
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack;
  fiber.context.uc_stack.ss_size = kStack;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, fiber_main, 0);
#endif
}
static int launch(void (*function)(void**), void** arguments, const int* dims, bool collective) {
  kernel = function;
  kernel_arguments = arguments;
  gridDim = {dims[0], dims[1], dims[2]};
  blockDim = {dims[3], dims[4], dims[5]};
  int count = dims[3] * dims[4] * dims[5], warps = (count + 31) / 32;
  if (!stacks && collective)
    stacks = static_cast<unsigned char*>(mmap(nullptr, kStack * 1024, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  fault = nullptr;
  fibers.assign(collective ? count : 0, Fiber{});
  for (int bz = 0; bz < dims[2]; ++bz)
    for (int by = 0; by < dims[1]; ++by)
      for (int bx = 0; bx < dims[0]; ++bx) {
        blockIdx = {bx, by, bz};
        if (!collective) {
          for (int i = 0; i < count; ++i) {
            threadIdx = {i % dims[3], i / dims[3] % dims[4], i / dims[3] / dims[4]};
            function(arguments);
          }
          continue;
        }
        memset(shared_memory, 0xFF, sizeof shared_memory);
        waiting = 0;
        alive = count;
        warp_waiting.assign(warps, 0);
        warp_alive.assign(warps, 0);
        for (int i = 0; i < count; ++i) {
          auto& f = fibers[i];
          f.state = READY;
          f.open.clear();
          f.groups.clear();
          f.open_products.clear();
          f.products.clear();
          f.index = {i % dims[3], i / dims[3] % dims[4], i / dims[3] / dims[4]};
          ++warp_alive[i / 32];
          prepare(f, i);
        }
        current = 0;
        threadIdx = fibers[0].index;
        switch_fiber(scheduler, fibers[0]);
        if (fault) {
          fprintf(stderr, "hetero_tvm: emulated kernel: %s\n", fault);
          return 719;  // cudaErrorLaunchFailure
        }
      }
  return 0;
}
