"""The thread pool under the kernels: linked into exported libraries, attached to processes that compile.

Its sources and what it does: ``hetero_tvm/runtime/cpp/pool/``, ``docs/threads.md``.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetero_tvm.host import native
from hetero_tvm.host.tvm import libinfo

_FOLDER = "runtime/cpp/pool"
_SOURCES = tuple(f"{_FOLDER}/{name}.cc" for name in ("pool", "trace", "observe", "cell", "limits"))
# A symbol that is unique in the process would keep every library loaded for good.
_FLAGS = ("-fvisibility=hidden", "-fno-gnu-unique")


def link_parts() -> tuple[Path, list[str]]:
    """Object file and options of the linker that put the pool into a library.

    Raises
    ------
    NativeBuildError : the pool cannot be compiled.
    """
    pool = native.compile_object(
        [*_SOURCES, f"{_FOLDER}/redirect.cc"], flags=_FLAGS, include=_includes(), name="pool"
    )
    # Without this script the loader would put TVM's own pool under the kernels.
    script = native.source_path(f"{_FOLDER}/redirect.map")
    return pool, ["-pthread", "-Xlinker", f"--version-script={script}"]


def export_library(executable: Any, path: str | os.PathLike[str], sources: Sequence[str] = ()) -> None:
    """Link what was compiled, the pool, and further C++ ``sources`` to one shared library.

    Raises
    ------
    NativeBuildError : the pool cannot be compiled.
    """
    pool, options = link_parts()
    executable.export_library(str(path), addons=[*sources, str(pool)], options=["-O2", *options])


@functools.lru_cache(maxsize=1)
def attach() -> None:
    """Put the pool under every kernel that this process loads or compiles from now on.

    Raises
    ------
    NativeBuildError : the pool cannot be compiled.
    """
    made = native.compile_shared(_SOURCES, flags=_FLAGS, include=_includes(), name="pool")
    pool = ctypes.CDLL(str(made))
    ffi = ctypes.CDLL(libinfo.find_libtvm_ffi())
    launch = ctypes.cast(pool.hetero_tvm_parallel_launch, ctypes.c_void_p)
    ffi.TVMFFIEnvModRegisterContextSymbol(b"TVMBackendParallelLaunch", launch)
    ffi.TVMFFIEnvModRegisterContextSymbol(b"__TVMBackendParallelLaunch", launch)


def _includes() -> list[str]:
    return [libinfo.find_include_path(), libinfo.find_dlpack_include_path()]
