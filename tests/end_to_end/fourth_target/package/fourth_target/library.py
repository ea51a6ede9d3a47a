"""Libraries for the engine at run time: plain libraries with counters."""

from __future__ import annotations

import ctypes
from pathlib import Path

from hetero_tvm.runtime.library import Library
from hetero_tvm.runtime.manifest import Manifest
from hetero_tvm.runtime.threads import ThreadPinning


class FourthLibrary(Library):
    """A library whose kernels count their calls."""

    def calls(self) -> dict[str, int]:
        """Calls of each kernel since the library was loaded."""
        counters = ctypes.CDLL(str(self.loaded_path))
        counters.fourth_calls.restype = ctypes.c_int64
        return {name: counters.fourth_calls(i) for i, name in enumerate(self.manifest.device["kernels"])}


def open_library(
    path: Path, manifest: Manifest, pinning: ThreadPinning, device: int, cuda_graph: bool | None
) -> FourthLibrary:
    """What the entry point ``hetero_tvm.libraries`` names."""
    return FourthLibrary(path, manifest, pinning)
