"""Compilation of CUDA C++ to machine code, whichever compiler does it.

Results are cached by content, so that building again, or tuning a kernel that was built before, costs
nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path

from hetero_tvm.host.native import cache_dir

_BOUNDS = re.compile(r"__launch_bounds__\((\d+)\)")
# Approximations that are only good near zero: sin of a large angle, powers of negative numbers.
_ROUGH = re.compile(r"\b__(powf|sinf|cosf|tanf|logf|log2f|log10f)\(")
_DYNAMIC_SHARED = re.compile(
    r"extern __shared__ (__align__\(\d+\)) (?!uchar|unsigned char)([\w ]+?) (\w+)\[\];"
)

_EXTREMES = re.compile(r"(?<![\w.:])(?:__h)?(max|min)\(")
_START = "#define ushort unsigned short"  # behind TVM's own helpers
FENCE = "hetero_tvm_fence"
"""Function in CUDA C++ whose result is its argument, which the compiler does not know: no instruction."""
_FENCED = {"r": ("int",), "l": ("long", "long long")}
_FENCES = "".join(
    f"static __device__ __forceinline__ {sign} {kind} {FENCE}({sign} {kind} x) "
    f'{{ asm("" : "+{register}"(x)); return x; }}\n'
    for register, kinds in _FENCED.items()
    for kind in kinds
    for sign in ("signed", "unsigned")
)
# CUDA's max gives the number where one operand is NaN; PTX has one that gives NaN, in one instruction.
_KEEP_NAN = "".join(
    f"""template <class A, class B> static __device__ __forceinline__ auto nan_{name}(A a, B b) {{
  return {name}(a, b);
}}
template <class T> static __device__ __forceinline__ T nan_{name}(T a, T b) {{
  return a {sign} b || a != a ? a : b;
}}
static __device__ __forceinline__ float nan_{name}(float a, float b) {{
  float y;
  asm("{name}.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}}
"""
    for name, sign in (("max", ">"), ("min", "<"))
)


class Toolchain(ABC):
    """A compiler of CUDA C++."""

    name: str = ""
    keeps_ptx: bool = False
    """Whether compiling machine code leaves its PTX in the cache, for callers that want both."""

    @property
    @abstractmethod
    def version(self) -> str:
        """Part of the cache's key."""

    @property
    def release(self) -> str:
        """The version in short, for people."""
        found = re.search(r"release ([\d.]+)", self.version)
        return found.group(1) if found else self.version

    @abstractmethod
    def _compile(self, source: str, arch: str, kind: str) -> dict[str, bytes]:
        """Compiled forms of the source by kind (``cubin``, ``ptx``): the kind that is asked for, or more."""

    def cubin(self, source: str, arch: str) -> bytes:
        """Machine code for one architecture.

        Raises
        ------
        TargetError : the compiler refused the source (a defect) or knows no such architecture.
        """
        return self._cached(precise(source), arch, "cubin")

    def ptx(self, source: str, arch: str) -> str:
        """The virtual assembly, for inspection."""
        return self._cached(precise(source), arch, "ptx").decode()

    def _cached(self, source: str, arch: str, kind: str) -> bytes:
        def place(kind: str) -> Path:
            digest = hashlib.sha256("\0".join((self.name, self.version, arch, kind, source)).encode())
            return cache_dir().parent / "cuda" / f"{digest.hexdigest()[:32]}.{kind}"

        if (path := place(kind)).is_file():
            return path.read_bytes()
        results = self._compile(source, arch, kind)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for made, result in results.items():
                with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                    file.write(result)
                os.replace(file.name, place(made))
        except OSError:  # a read-only home: it works, only slower
            pass
        return results[kind]


def precise(source: str) -> str:
    """The source with full-range mathematics where TVM's code generator takes approximations, and NaN kept.

    One resident block is asked for as well: without that ptxas spills some values of large tiles to the
    stack for an occupancy that shared memory does not allow anyway.  Dynamic shared memory becomes bytes:
    kernels that name it alike must give it one type.
    """
    source = _KEEP_NAN + (_FENCES if FENCE in source else "") + with_nan_extremes(source)
    source = _BOUNDS.sub(r"__launch_bounds__(\1, 1)", _ROUGH.sub(r"\1(", source))
    return _DYNAMIC_SHARED.sub(
        r"extern __shared__ \1 unsigned char \3_bytes[]; \2* \3 = (\2*)\3_bytes;", source
    )


def with_nan_extremes(source: str) -> str:
    """Kernels that call ``nan_max`` and ``nan_min``, which give NaN where either operand is."""
    head, start, kernels = source.rpartition(_START)
    return head + start + _EXTREMES.sub(r"nan_\1(", kernels)
