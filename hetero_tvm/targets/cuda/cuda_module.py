"""Availability of TVM's CUDA module type in this process, whether or not there is a driver."""

from __future__ import annotations

from hetero_tvm.host.tvm import tvm
from hetero_tvm.runtime.cuda import devices as cuda_runtime


def enable_module() -> None:
    """Enable TVM to create, export and load CUDA modules.

    Without an NVIDIA driver the two libraries that TVM's runtime links are replaced by a stand-in:
    enough to build, and nothing runs.

    Raises
    ------
    NativeBuildError : the stand-in is needed and there is no C++ compiler.
    LibraryError : there is a driver, and CUDA's run-time library is missing.
    """
    if tvm.get_global_func("ffi.Module.create.cuda", allow_missing=True) is not None:
        return
    if cuda_runtime.missing_driver() is None:
        cuda_runtime.start()
    else:
        cuda_runtime.start_standin()
