"""The one door to Apache TVM: every module takes ``tvm``, ``relax``, ``tirx``, ``te``, ... from here.

A plain ``import tvm`` has six faults that this door mends:

* it imports PyTorch when that happens to be installed (2 s and 200 MB that nobody asked for);
* its thread pool guesses a size from the whole machine, not from what this process may use,
  and pins the calling thread to one core;
* an idle thread of that pool gives its turn away 300,000 times before it sleeps, also when the process ends:
  on a machine with other work that took a quarter of an hour;
* parsing TVMScript calls ``inspect.stack()``, which reads the source of every frame above;
* it fails for users without a home (a container that runs as a number);
* a Ctrl-C that comes while TVM calls back into Python arrives as a RuntimeError.

Environment variables that the user set (``TVM_NUM_THREADS``, ``TVM_BIND_THREADS``,
``TVM_THREAD_POOL_SPIN_COUNT``) are left alone.  TVM's
rarely used modules are imported when their name is first asked for.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import linecache
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hetero_tvm.host.cores import available_cores
from hetero_tvm.host.without_torch import without_torch

# The modules of TVM that walk the Python stack while they parse or build TVMScript.
_STACK_WALKERS = (
    "tvm.script.parser.core.parser",
    "tvm.script.parser.ir.entry",
    "tvm.tirx.script.parser.entry",
    "tvm.tirx.script.builder.ir",
    "tvm.relax.script.parser.entry",
)

# Turns that an idle thread gives away before it sleeps: some milliseconds where nobody else wants them.
_SPINS = "10000"

_CACHE = "XDG_CACHE_HOME"

# Name -> module, or ``module:attribute``, for what few modules need.
_RARE = {
    "IRBuilder": "tvm.script.ir_builder:IRBuilder",
    "PyCostModel": "tvm.s_tir.meta_schedule.cost_model:PyCostModel",
    "PyMutator": "tvm.s_tir.meta_schedule.mutator:PyMutator",
    "compilation_pipeline": "tvm.tirx.compilation_pipeline",
    "cuda_func_call": "tvm.backend.cuda.op:cuda_func_call",
    "derived_object": "tvm.ir.utils:derived_object",
    "dlight": "tvm.s_tir.dlight",
    "libinfo": "tvm_ffi.libinfo",
    "meta_schedule": "tvm.s_tir.meta_schedule",
    "onnx_frontend": "tvm.relax.frontend.onnx.onnx_frontend",
    "ptx": "tvm.backend.cuda.op",
    "rpc": "tvm.rpc",
    "rpc_server": "tvm.rpc.server",
    "s_tir_pipeline": "tvm.s_tir.pipeline",
    "script_I": "tvm.script:ir",
    "script_R": "tvm.script:relax",
    "script_T": "tvm.script:tirx",
    "shash2hex": "tvm.s_tir.meta_schedule.utils:shash2hex",
    "structural_equal": "tvm_ffi:structural_equal",
}


class _FastInspect(types.ModuleType):
    """``inspect`` as TVM's parser sees it: the same, but walking the stack reads no sources.

    The standard functions find each frame's source file and split it into lines, about 15
    times the cost of the parsing itself.  TVM looks at the frames and at one line of context,
    and ``linecache`` has that without searching.
    """

    def __getattr__(self, name: str) -> Any:
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


@contextlib.contextmanager
def _with_a_cache_named() -> Iterator[None]:
    """While open, TVM finds the name of a cache folder, which it asks for when it is imported and which only
    its own tests write to; a user may have no home to look for it."""
    missing = _CACHE not in os.environ and not _has_home()
    if missing:
        os.environ[_CACHE] = "/nonexistent"
    try:
        yield
    finally:
        if missing:
            del os.environ[_CACHE]


def _has_home() -> bool:
    try:
        Path.home()
    except RuntimeError:
        return False
    return True


def _import_tvm() -> types.ModuleType:
    os.environ.setdefault("TVM_NUM_THREADS", str(len(available_cores())))
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", _SPINS)
    with without_torch(), _with_a_cache_named():
        module = importlib.import_module("tvm")
    fast = _FastInspect("inspect")
    for name in _STACK_WALKERS:
        walker = sys.modules.get(name)
        if walker is not None and getattr(walker, "inspect", None) is inspect:
            walker.inspect = fast  # type: ignore[attr-defined]
    return module


def __getattr__(name: str) -> Any:
    if name not in _RARE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _RARE[name].partition(":")
    with without_torch(), _with_a_cache_named():
        found: Any = importlib.import_module(module)
    if attribute:
        found = getattr(found, attribute)
    globals()[name] = found
    return found


tvm = _import_tvm()

tvm_ffi = importlib.import_module("tvm_ffi")
tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)
tvm_ffi.register_error("ZeroDivisionError", ZeroDivisionError)
relax, s_tir, te, tirx, topi = tvm.relax, tvm.s_tir, tvm.te, tvm.tirx, tvm.topi
T = tvm.tirx.script.builder.ir
TensorLoad = tvm.ir.expr.TensorLoad
SBlock, SBlockRealize = s_tir.SBlock, s_tir.SBlockRealize
Schedule, ScheduleError = s_tir.Schedule, s_tir.ScheduleError

# Names for annotations: what TVM's modules, functions and expressions are called across this package.
IRModule, PrimFunc, RelaxFunction = tvm.ir.IRModule, tirx.PrimFunc, relax.Function
Expr, Var, GlobalVar, Call = tvm.ir.Expr, tvm.ir.Var, tvm.ir.GlobalVar, tvm.ir.Call
Buffer, Stmt = tirx.Buffer, tirx.Stmt
TETensor = te.Tensor
DeviceTensor = tvm.runtime.Tensor
TVMTarget = tvm.target.Target
Executable = relax.VMExecutable


def with_body(function: Any, body: Any) -> Any:
    """``function``, a PrimFunc, with another body; the function itself where it is its own.

    To make a function takes TVM milliseconds, several times as long as a search of its body.
    """
    return function if body.same_as(function.body) else function.with_body(body)
