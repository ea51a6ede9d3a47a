"""Registry of the functions that open exported libraries, by the kind of their target.

A kind that needs more than TVM's runtime on the host brings an opener ``(path, manifest, pinning, device,
cuda_graph) -> Library`` that refuses what cannot run here and returns a :class:`Library` of its own.  Other
packages register theirs through the entry-point group ``hetero_tvm.libraries``: entry ``KIND =
"module:function"``.  Openers are imported when a library of their kind is loaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from hetero_tvm.runtime.library import Library

GROUP = "hetero_tvm.libraries"

_BUILTIN = {
    "cuda": "hetero_tvm.runtime.cuda.library:open_library",
    "npu": "hetero_tvm.runtime.npu:open_library",
}
_PROFILERS = {"npu": "hetero_tvm.targets.npu.device.profile_report:profile_library"}
"""Functions ``(library, call) -> profile`` by kind, for devices that count their own work."""
_PLAIN = ("cpu",)
"""Kinds that are known to need no opener: their libraries load without a look at installed packages."""


def opener(kind: str) -> Callable[..., Library] | None:
    """Function that opens libraries of a kind; None where a plain :class:`Library` does."""
    if kind in _BUILTIN:
        return _find(_BUILTIN[kind])
    if kind in _PLAIN:
        return None
    return next((entry.load() for entry in entry_points(group=GROUP) if entry.name == kind), None)


def profiler(kind: str) -> Callable[[Library, Callable[[], Any]], Any]:
    """Function that profiles libraries whose device counts.  :class:`KeyError`: the kind has none."""
    return _find(_PROFILERS[kind])


def _find(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
