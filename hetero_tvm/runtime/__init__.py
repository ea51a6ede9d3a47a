"""Load and run exported libraries.  Imports no compiler: TVM's small runtime library is enough."""

from hetero_tvm.runtime.library import Library
from hetero_tvm.runtime.manifest import (
    Manifest,
    TargetInfo,
    current_versions,
    embed_source,
    read_manifest,
    write_sidecar,
)
from hetero_tvm.runtime.npu import NpuUse, npu_use
from hetero_tvm.runtime.opening import load
from hetero_tvm.runtime.quiet import quiet_fd2
from hetero_tvm.runtime.signature import Signature, TensorSpec

__all__ = [
    "Library",
    "Manifest",
    "NpuUse",
    "Signature",
    "TargetInfo",
    "TensorSpec",
    "current_versions",
    "embed_source",
    "load",
    "npu_use",
    "quiet_fd2",
    "read_manifest",
    "write_sidecar",
]
