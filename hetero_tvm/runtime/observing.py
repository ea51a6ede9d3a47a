"""Observation of calls of a loaded library: when each kernel ran, and each of its tasks in which thread.

TVM's virtual machine calls a function before and after all that it calls, and the thread pool inside
the library writes down its tasks (``cpp/pool/trace.cc``).  The function is the library's own
(``cpp/pool/observe.cc``), or one in Python where a device has to be waited for or an older library has none;
what it costs is measured along, by calls that do nothing, and taken off.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

_BUILTIN = "vm.builtin."
_CONSTANTS = "hetero_tvm_constants"
_NOTHING = f"{_BUILTIN}null_value"
_CAPACITY = 1 << 16
"""Tasks of one call that are written down."""
_ROOM = 1 << 24
"""Bytes for the marks of one call, about 60 for each function; what is not written takes no memory."""
_MARK = struct.Struct("=qii")
"""``Mark`` of ``cpp/pool/observe.cc``, field by field."""

SPAN = np.dtype(
    [("start", "i8"), ("end", "i8"), ("launch", "i4"), ("task", "i4"), ("thread", "i4"), ("tasks", "i4")]
)
"""``Span`` of ``cpp/pool/trace.cc``, field by field; times in ns of the monotonic clock."""


@dataclass(frozen=True)
class DeviceCost:
    """Cost of one call as a device counted it.

    Parameters
    ----------
    kind : kind of the device, as in ``--target``.
    seconds : time on the device by its own clock.
    call_seconds : time on the host inside the device's calls; the rest of a call is kernels on the host.
    counters : counts of the device by name, in the units that the names tell.
    summary : one line for people.
    simulated : whether a simulator stands in for the device, so that wall times say nothing of it.
    """

    kind: str
    seconds: float
    call_seconds: float
    counters: dict[str, Any]
    summary: str
    simulated: bool


@dataclass(frozen=True)
class Event:
    """Call of one function by the virtual machine; times in ns of the monotonic clock.

    Parameters
    ----------
    bytecode : whether the function is one of the virtual machine's own, which calls
        others: the body of a loop.
    """

    symbol: str
    start: int
    end: int
    bytecode: bool = False

    @property
    def builtin(self) -> bool:
        """Whether it is no kernel: allocation, checks of shapes, a look at constants, bodies of loops."""
        return self.bytecode or self.symbol.startswith(_BUILTIN) or self.symbol == _CONSTANTS


@dataclass(frozen=True)
class Observed:
    """One call of a library.

    Parameters
    ----------
    start, end : ns of the monotonic clock.
    events : functions that the virtual machine called, in order; those within others come before these.
    spans : tasks that ran in threads, of dtype :data:`SPAN`.
    hook_ns : what the observation adds to each event.
    """

    start: int
    end: int
    events: tuple[Event, ...]
    spans: np.ndarray
    hook_ns: int


class Observer:
    """Observer of a virtual machine and of the pool in its library; :meth:`run` calls once."""

    def __init__(
        self,
        machine: Any,
        ffi: Any,
        path: Path,
        synchronize: Callable[[], None] | None = None,
        kernels: Iterable[str] = (),
        module: Any = None,
    ):
        """``synchronize`` waits for what kernels have queued on a device; ``kernels`` are symbols of kernels
        that need not be functions of the file itself; ``module`` is TVM's, of the library."""
        self._machine, self._ffi, self._synchronize = machine, ffi, synchronize
        self._native, self._bytecode = ctypes.CDLL(str(path)), dict.fromkeys(kernels, False)
        self._trace = getattr(self._native, "hetero_tvm_trace_tasks", None)
        if self._trace is not None:
            self._trace.restype = ctypes.c_int64
            self._trace.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        self._spans = np.zeros(_CAPACITY, SPAN)
        self._events: list[Event] = []
        self._open: list[int] = []
        self._marks = np.empty(_ROOM, "uint8")
        self._observe, self._instrument = self._observers(module)

    def _observers(self, module: Any) -> tuple[Any, Any]:
        """The function that takes the library's marks, and that which makes them; None and ours without."""
        observe = getattr(self._native, "hetero_tvm_observe_calls", None)
        if observe is None or module is None or self._synchronize is not None:
            return None, self._ffi.convert_func(self._hook)
        observe.restype = ctypes.c_int64
        observe.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        return observe, module.get_function("hetero_tvm_observe", True)

    @property
    def native(self) -> bool:
        """Whether the library itself writes down when its functions are called."""
        return self._observe is not None

    def _hook(self, function: Any, name: Any, before: bool, result: Any, *arguments: Any) -> int:
        if before:
            self._open.append(perf_counter_ns())
            return 0
        if self._synchronize is not None and not str(name).startswith(_BUILTIN):
            self._synchronize()
        end = perf_counter_ns()
        symbol = str(name)
        self._events.append(Event(symbol, self._open.pop(), end, self._is_bytecode(symbol)))
        return 0

    def _is_bytecode(self, symbol: str) -> bool:
        """Whether a function is neither code of the library nor one that TVM or another package has."""
        if symbol not in self._bytecode:
            self._bytecode[symbol] = "." not in symbol and not hasattr(self._native, f"__tvm_ffi_{symbol}")
        return self._bytecode[symbol]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While open, calls are observed."""
        self._machine["set_instrument"](self._instrument)
        try:
            yield
        finally:
            self._machine["set_instrument"](None)
            if self._trace is not None:
                self._trace(None, 0)
            if self._observe is not None:
                self._observe(None, 0)

    def run(self, call: Callable[[], Any]) -> Observed:
        """Observe one ``call``, inside of :meth:`watching`."""
        self._events, self._open = [], []
        if self._trace is not None:
            self._trace(self._spans.ctypes.data, _CAPACITY)
        if self._observe is not None:
            self._observe(self._marks.ctypes.data, _ROOM)
        start = perf_counter_ns()
        call()
        end = perf_counter_ns()
        count = 0 if self._trace is None else min(self._trace(None, 0), _CAPACITY)
        if self._observe is not None:
            self._read(self._marks[: self._observe(None, 0)].tobytes())
        idle = [event.end - event.start for event in self._events if event.symbol == _NOTHING]
        return Observed(start, end, tuple(self._events), self._spans[:count].copy(), min(idle, default=0))

    def _read(self, marks: bytes) -> None:
        """Events from the marks of ``cpp/pool/observe.cc``; calls that have not ended are left out."""
        at = 0
        while at < len(marks):
            time, before, length = _MARK.unpack_from(marks, at)
            if before:
                self._open.append(time)
            elif self._open:
                symbol = marks[at + _MARK.size : at + _MARK.size + length].decode()
                self._events.append(Event(symbol, self._open.pop(), time, self._is_bytecode(symbol)))
            at += _MARK.size + length
