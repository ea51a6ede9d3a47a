"""Load and run exported libraries.  Imports no compiler: TVM's small runtime library is enough."""

from pathlib import Path

from hetero_tvm.runtime.library import Library
from hetero_tvm.runtime.manifest import (
    Manifest,
    TargetInfo,
    current_versions,
    embed_source,
    read_manifest,
    write_sidecar,
)
from hetero_tvm.runtime.npu import NpuUsage, npu_usage
from hetero_tvm.runtime.observing import DeviceCost
from hetero_tvm.runtime.opening import load
from hetero_tvm.runtime.quiet import quiet_fd2
from hetero_tvm.runtime.signature import Signature, TensorSpec

__all__ = [
    "DeviceCost",
    "Library",
    "Manifest",
    "NpuUsage",
    "Signature",
    "TargetInfo",
    "TensorSpec",
    "cmake_folder",
    "current_versions",
    "embed_source",
    "load",
    "npu_usage",
    "quiet_fd2",
    "read_manifest",
    "write_sidecar",
]


def cmake_folder() -> str:
    """Folder of the CMake package for C and C++ programs: the value for ``-Dhetero_tvm_DIR=``."""
    return str(Path(__file__).resolve().parent / "cpp" / "cmake")
