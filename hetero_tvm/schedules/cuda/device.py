"""Device functions that kernels call: instructions of the PTX manual, and vectors of up to 16 bytes.

Loops and indices are TensorIR; what has no TensorIR form is one short function of CUDA C++ here.  The
functions see shared memory as a base address and an offset in bytes, so that TVM's passes neither
reorder, alias nor synchronise these accesses: a kernel places its barriers itself.
"""

from __future__ import annotations

from hetero_tvm.host.tvm import Buffer, Expr, T, cuda_func_call
from hetero_tvm.schedules.emit import Kernel

WGMMA_COLUMNS = (64, 128, 256)
"""Columns of the warp-group products that there are functions for."""

_ADDRESS = "unsigned to = (unsigned)__cvta_generic_to_shared((char*)shared + at);"
_MMA = """
__forceinline__ __device__ void {name}({acc}* c, const unsigned* a, const unsigned* b) {{
  asm volatile("mma.sync.aligned.{shape}.row.col.{types} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%10, %11, %12, %13}};"
      : "={r}"(c[0]), "={r}"(c[1]), "={r}"(c[2]), "={r}"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
        "{r}"(c[0]), "{r}"(c[1]), "{r}"(c[2]), "{r}"(c[3]));
}}"""  # noqa: E501


def _mma(name: str, shape: str, types: str, acc: str = "float") -> str:
    """Source of a product of fragments of one warp."""
    return _MMA.format(name=name, shape=shape, types=types, acc=acc, r="f" if acc == "float" else "r")


def _wgmma(types: str, depth: int, rest: str, columns: int, acc: str) -> str:
    """64 x ``columns`` sums of four warps, both factors in shared memory in rows of 128 permuted bytes.

    ``x`` and ``w`` are the lower halves of their descriptors (see ``htvm_wgmma_form``); the upper halves are
    alike: 1024 bytes from 8 rows to the next 8, permutation of 128 bytes.
    """
    count, constraint = columns // 2, "f" if acc == "float" else "r"
    registers = ", ".join(f"%{i}" for i in range(count))
    sums = ", ".join(f'"+{constraint}"(c[{i}])' for i in range(count))
    name = f"wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.{types}"
    return f"""
__forceinline__ __device__ void NAME({acc}* c, int x, int w) {{
  unsigned long long rest = 0x4000004000000000ull, a = rest | (unsigned)x, b = rest | (unsigned)w;
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + 2}, 0; {name} {{{registers}}}, %{count}, %{count + 1}, p{rest}; }}"
      : {sums} : "l"(a), "l"(b), "r"(1));
}}"""  # noqa: E501


def _copy_async(cache: str, size: int) -> str:
    """Assembly of a copy of ``size`` bytes to shared memory behind the arithmetic."""
    return (
        f'asm volatile("{{ .reg .pred p; setp.ne.b32 p, %4, 0; @p cp.async.{cache}.shared.global [%0], [%1], '
        f'%2, %3; }}" :: "r"(to), "l"(from), "n"({size}), "r"(valid), "r"(when));'
    )


_PACK = """
template <class T, int N> struct alignas(sizeof(T) * N) HtvmPack { T v[N]; };"""

_SOURCES = {
    # A copy of BYTES to shared memory behind the arithmetic, if `when`; beyond `valid` bytes: zeros.
    "htvm_copy_async": "\ntemplate <int BYTES, class T>\n__forceinline__ __device__ "
    "void htvm_copy_async(void* shared, int at, const T* from, int valid, int when) {\n"
    f"  {_ADDRESS}\n"
    f"  if (BYTES == 16)\n    {_copy_async('cg', 16)}\n"
    f"  else if (BYTES == 8)\n    {_copy_async('ca', 8)}\n"
    f"  else\n    {_copy_async('ca', 4)}\n}}",
    "htvm_commit": """
__forceinline__ __device__ void htvm_commit() { asm volatile("cp.async.commit_group;"); }""",
    "htvm_wait": """
template <int N> __forceinline__ __device__ void htvm_wait() {
  if (N == 0) asm volatile("cp.async.wait_group 0;");
  else if (N == 1) asm volatile("cp.async.wait_group 1;");
  else if (N == 2) asm volatile("cp.async.wait_group 2;");
  else asm volatile("cp.async.wait_group 3;");
}""",
    # The same through registers, for rows that start at odd addresses: `valid` is a multiple of the size.
    "htvm_copy": """
template <int BYTES, class T>
__forceinline__ __device__ void htvm_copy(void* shared, int at, const T* from, int valid) {
  T* to = (T*)((char*)shared + at);
#pragma unroll
  for (int i = 0; i < BYTES / (int)sizeof(T); ++i) to[i] = i * (int)sizeof(T) < valid ? from[i] : T(0);
}""",
    "htvm_sync_warp": """
__forceinline__ __device__ void htvm_sync_warp() { __syncwarp(); }""",
    # Powers of two in one instruction: relative error 2^-22, zero below 2^-126 (exp2f spends four on those).
    "htvm_exp2": """
__forceinline__ __device__ float htvm_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}""",
    # Whether `x` or `y` is not one in any lane of the warp.
    "htvm_any_changes": """
__forceinline__ __device__ int htvm_any_changes(float x, float y) {
  return __any_sync(0xffffffffu, x != 1.0f || y != 1.0f);
}""",
    # Four 8 x 8 matrices of 16-bit values (or 8 rows of 16 bytes) to fragments; TRANS swaps rows and columns.
    "htvm_ldmatrix": f"""
template <bool TRANS>
__forceinline__ __device__ void htvm_ldmatrix(unsigned* r, const void* shared, int at) {{
  {_ADDRESS}
  if (TRANS)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{%0, %1, %2, %3}}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(to));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%0, %1, %2, %3}}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(to));
}}""",
    "htvm_mma_f16": _mma("htvm_mma_f16", "m16n8k16", "f32.f16.f16.f32"),
    "htvm_mma_bf16": _mma("htvm_mma_bf16", "m16n8k16", "f32.bf16.bf16.f32"),
    "htvm_mma_tf32": _mma("htvm_mma_tf32", "m16n8k8", "f32.tf32.tf32.f32"),
    "htvm_mma_s8": _mma("htvm_mma_s8", "m16n8k32", "s32.s8.s8.s32", "int"),
    # Around warp-group products: registers are theirs from here; what was copied is seen by them; done.
    "htvm_wgmma_begin": """
__forceinline__ __device__ void htvm_wgmma_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}""",
    "htvm_wgmma_end": """
__forceinline__ __device__ void htvm_wgmma_end() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}""",
    "htvm_wgmma_wait": """
template <int N> __forceinline__ __device__ void htvm_wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}""",
    # The lower half of a descriptor (PTX ISA, "asynchronous warpgroup level matrix shared memory layout").
    "htvm_wgmma_form": """
__forceinline__ __device__ int htvm_wgmma_form(const void* shared) {
  return (int)(((unsigned)__cvta_generic_to_shared(shared) >> 4) | (1u << 16));
}""",
    "htvm_fence_async": """
__forceinline__ __device__ void htvm_fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}""",
    # The first multiple of 1024 in shared memory, from a base that has 1024 bytes to spare.
    "htvm_align": """
__forceinline__ __device__ void* htvm_align(void* shared) {
  return (char*)shared + ((1024u - ((unsigned)__cvta_generic_to_shared(shared) & 1023u)) & 1023u);
}""",
    # HIGH x WIDE sums over 4 steps of the reduction: x[row][step], w[column][step] or w[step][column].
    "htvm_fma": """
template <int HIGH, int WIDE, bool ACROSS>
__forceinline__ __device__ void htvm_fma(float* sums, const float* x, const float* w) {
#pragma unroll
  for (int e = 0; e < 4; ++e)
#pragma unroll
    for (int i = 0; i < HIGH; ++i)
#pragma unroll
      for (int j = 0; j < WIDE; ++j)
        sums[i * WIDE + j] += x[4 * i + e] * (ACROSS ? w[e * WIDE + j] : w[4 * j + e]);
}""",
    # float32 registers rounded to tf32: to nearest, ties away from zero.
    "htvm_round_tf32": """
template <int N> __forceinline__ __device__ void htvm_round_tf32(unsigned* r) {
#pragma unroll
  for (int i = 0; i < N; ++i)
    asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(r[i]) : "f"(__int_as_float((int)r[i])));
}""",
    "htvm_put": _PACK.replace("HtvmPack", "HtvmPut")
    + """
template <int N, class T>
__forceinline__ __device__ void htvm_put(void* shared, int at, const T* from) {
  HtvmPut<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.v[i] = from[i];
  *(HtvmPut<T, N>*)((char*)shared + at) = pack;
}""",
    # Of 32 bytes a lane every other group of four lanes takes the second half first: no two meet in a bank.
    "htvm_take": _PACK.replace("HtvmPack", "HtvmTake")
    + """
template <int N, class T>
__forceinline__ __device__ void htvm_take(const void* shared, int at, T* to) {
  constexpr int S = N * sizeof(T) > 16 ? 16 / sizeof(T) : N;
  int flip = N * sizeof(T) == 32 ? (int)threadIdx.x << 2 & 16 : 0;
  HtvmTake<T, S> packs[N / S];
#pragma unroll
  for (int i = 0; i < N / S; ++i) {
    const char* from = (const char*)shared + at + (i * 16 ^ flip);
    packs[i] = *(const HtvmTake<T, S>*)(from);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {  // of values: a choice of packs would be one of addresses on the stack
    T here = packs[i / S].v[i % S], there = packs[N / S - 1 - i / S].v[i % S];
    to[i] = flip ? there : here;
  }
}""",
    # N values of any dtype from global memory, aligned to their size, as float32.
    "htvm_load": _PACK.replace("HtvmPack", "HtvmLoad")
    + """
template <int N, class T> __forceinline__ __device__ void htvm_load(const T* from, float* to) {
  constexpr int S = N * sizeof(T) > 16 ? 16 / sizeof(T) : N;
#pragma unroll
  for (int i = 0; i < N; i += S) {
    HtvmLoad<T, S> pack = *(const HtvmLoad<T, S>*)(from + i);
#pragma unroll
    for (int j = 0; j < S; ++j) to[i + j] = (float)pack.v[j];
  }
}""",
    # N values to global memory in its dtype.
    "htvm_store": _PACK.replace("HtvmPack", "HtvmStore")
    + """
template <int N, class T, class V> __forceinline__ __device__ void htvm_store(T* to, const V* from) {
  constexpr int S = N * sizeof(T) > 16 ? 16 / sizeof(T) : N;
#pragma unroll
  for (int i = 0; i < N; i += S) {
    HtvmStore<T, S> pack;
#pragma unroll
    for (int j = 0; j < S; ++j) pack.v[j] = T(from[i + j]);
    *(HtvmStore<T, S>*)(to + i) = pack;
  }
}""",
}

for _columns in WGMMA_COLUMNS:
    for _name, _form in {
        "f16": ("f32.f16.f16", 16, ", 1, 1, 0, 0", _columns, "float"),
        "bf16": ("f32.bf16.bf16", 16, ", 1, 1, 0, 0", _columns, "float"),
        "tf32": ("f32.tf32.tf32", 8, ", 1, 1", _columns, "float"),
        "s8": ("s32.s8.s8", 32, "", _columns, "int"),
    }.items():
        _full = f"htvm_wgmma_{_name}_{_columns}"
        _SOURCES[_full] = _wgmma(*_form).replace("NAME", _full)


def _guarded(name: str, source: str) -> str:
    """``source`` behind a guard: once in a module, whatever template arguments its calls have."""
    return f"\n#ifndef {name.upper()}\n#define {name.upper()}{source}\n#endif\n"


_GUARDED = {name: _guarded(name, source) for name, source in _SOURCES.items()}


def call(name: str, *args: Expr | int, template: str = "") -> None:
    """Emit a call of a device function; ``template`` are explicit template arguments."""
    full = f"{name}<{template}>" if template else name
    T.evaluate(cuda_func_call(full, *args, source_code=_GUARDED[name]))


def value(name: str, *args: Expr | int, dtype: str = "handle") -> Expr:
    """The result of a device function, as an expression."""
    return cuda_func_call(name, *args, source_code=_GUARDED[name], return_type=dtype)


def pointer(buffer: Buffer, offset: Expr | int = 0) -> Expr:
    """Address of an element of a flat buffer."""
    return buffer.access_ptr("rw", offset=offset)


def fixed(k: Kernel, value: Expr) -> Expr:
    """An int32 value, computed here and once: TVM puts a plain binding of arithmetic into each of its uses,
    and then spends seconds on simplifying them."""
    register = k.scratch((1,), "int32")
    k.store(register, value, [0])
    return k.load(register, [0])
