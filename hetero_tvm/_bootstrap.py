"""The one door to Apache TVM: every module that compiles calls :func:`import_tvm`.

A plain ``import tvm`` has three faults that this door mends:

* it imports PyTorch when that happens to be installed (2 s and 200 MB that nobody asked for);
* its thread pool guesses a size from the whole machine, not from what this process may use,
  and pins the calling thread to one core;
* parsing TVMScript calls ``inspect.stack()``, which reads the source of every frame above.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import linecache
import os
import sys
import threading
import types
from collections.abc import Iterator

from hetero_tvm.host.cores import available_cores

_lock = threading.RLock()
_tvm: types.ModuleType | None = None

# The modules of TVM that walk the Python stack while they parse or build TVMScript.
_STACK_WALKERS = (
    "tvm.script.parser.core.parser",
    "tvm.script.parser.ir.entry",
    "tvm.tirx.script.parser.entry",
    "tvm.tirx.script.builder.ir",
    "tvm.relax.script.parser.entry",
)


def import_tvm() -> types.ModuleType:
    """Return the ``tvm`` package, imported without PyTorch and with sane thread settings.

    Cheap and idempotent: after the first call it is a global look-up.  Environment variables
    that the user set (``TVM_NUM_THREADS``, ``TVM_BIND_THREADS``) are left alone.
    """
    global _tvm
    if _tvm is not None:
        return _tvm
    with _lock:
        if _tvm is None:
            os.environ.setdefault("TVM_NUM_THREADS", str(len(available_cores())))
            os.environ.setdefault("TVM_BIND_THREADS", "0")
            with without_torch():
                tvm = importlib.import_module("tvm")
            _speed_up_script_parsing()
            _tvm = tvm
    return _tvm


@contextlib.contextmanager
def without_torch() -> Iterator[None]:
    """While open, ``import torch`` fails as if it were not installed.

    Does nothing when PyTorch is imported already: the time is spent, and hiding it from its
    own submodules would break them.
    """
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if sys.modules.get("torch", ...) is None:
            del sys.modules["torch"]


class _FastInspect(types.ModuleType):
    """``inspect`` as TVM's parser sees it: the same, but walking the stack reads no sources.

    The standard functions find each frame's source file and split it into lines, about 15
    times the cost of the parsing itself.  TVM looks at the frames and at one line of context,
    and ``linecache`` has that without searching.
    """

    def __getattr__(self, name: str):
        return getattr(inspect, name)

    @staticmethod
    def getouterframes(frame: types.FrameType | None, context: int = 1) -> list[inspect.FrameInfo]:
        infos = []
        while frame is not None:
            code = frame.f_code
            line = linecache.getline(code.co_filename, frame.f_lineno, frame.f_globals)
            lines, index = ([line], 0) if line else (None, None)
            infos.append(
                inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, lines, index)
            )
            frame = frame.f_back
        return infos

    @staticmethod
    def stack(context: int = 1) -> list[inspect.FrameInfo]:
        return _FastInspect.getouterframes(sys._getframe(1), context)


def _speed_up_script_parsing() -> None:
    """Give TVM's parsing modules, and nobody else, the fast stack walk."""
    fast = _FastInspect("inspect")
    for name in _STACK_WALKERS:
        module = sys.modules.get(name)
        if module is not None and getattr(module, "inspect", None) is inspect:
            module.inspect = fast  # type: ignore[attr-defined]
