"""The driver interface from Python: for tests, for the search, and for those who write streams.

>>> with open_device(NPUSpec.preset("mobile")) as device:
...     program = device.load(stream.to_bytes())
...     run = device.run(program, {"x": x, "y": (shape, "f4")})
...     run.outputs["y"], run.counters.cycles
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetero_tvm.errors import HeteroTVMError
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.targets.npu.device import simulator
from hetero_tvm.targets.npu.isa.stream import Stream
from hetero_tvm.targets.npu.isa.synchronization import QUEUES

TIMING_ONLY, TRACE = 1, 2
STALLS = ("flag", "barrier", "latency", "dram", "port")


class DriverError(HeteroTVMError):
    """The NPU's driver refused or failed; ``status`` is the name of its status code."""

    def __init__(self, message: str, status: str):
        super().__init__(message)
        self.status = status


class _QueueCounters(ctypes.Structure):
    _fields_ = [
        ("busy", ctypes.c_double),
        ("issue", ctypes.c_double),
        ("stall", ctypes.c_double * len(STALLS)),
        ("idle", ctypes.c_double),
        ("instructions", ctypes.c_uint64),
    ]


class RawCounters(ctypes.Structure):
    """``hnpu_counters`` of ``hnpu.h``."""

    _fields_ = [
        ("cycles", ctypes.c_double),
        ("queue", _QueueCounters * len(QUEUES)),
        ("dram_read_bytes", ctypes.c_uint64),
        ("dram_write_bytes", ctypes.c_uint64),
        ("matrix_block_cycles", ctypes.c_double),
        ("macs", ctypes.c_double),
        ("vector_elements", ctypes.c_double),
        ("energy_joule", ctypes.c_double),
    ]


class _Binding(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("bytes", ctypes.c_uint64)]


TRACE_DTYPE = np.dtype(
    [
        ("instruction", "u4"),
        ("tag", "u2"),
        ("opcode", "u1"),
        ("queue", "u1"),
        ("start", "f8"),
        ("end", "f8"),
        ("dram_bytes", "u8"),
        ("issue", "f4"),
        ("stall", "f4", (len(STALLS),)),
        ("joule", "f4"),
    ],
    align=True,
)
_P, _U64, _U32, _STATUS = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "abi_version": (_U32,),
    "open": (_STATUS, ctypes.c_char_p, _P),
    "close": (None, _P),
    "capabilities": (_STATUS, _P, _P),
    "alloc": (_STATUS, _P, _U64, _P),
    "free": (_STATUS, _P, _U64),
    "copy_to_device": (_STATUS, _P, _U64, _P, _U64),
    "copy_from_device": (_STATUS, _P, _P, _U64, _U64),
    "load": (_STATUS, _P, _P, _U64, _P),
    "unload": (None, _P, _P),
    "submit": (_STATUS, _P, _P, _P, _U32, _U32),
    "wait": (_STATUS, _P),
    "read_counters": (_STATUS, _P, _P),
    "read_trace": (_STATUS, _P, _P, _U64, _P),
    "last_error": (ctypes.c_char_p,),
    "status_name": (ctypes.c_char_p, _STATUS),
}


class _Table(ctypes.Structure):
    _fields_ = [(name, ctypes.CFUNCTYPE(*signature)) for name, signature in _FUNCTIONS.items()]


@functools.cache
def _driver() -> _Table:
    """The driver of this process: the simulator, or what ``HNPU_DRIVER`` names."""
    library = ctypes.CDLL(str(simulator.shared_library()))
    library.hnpu_selected_driver.restype = ctypes.POINTER(_Table)
    problem = ctypes.c_char_p()
    table = library.hnpu_selected_driver(ctypes.byref(problem))
    if not table:
        raise DriverError((problem.value or b"").decode(), "driver failure")
    return table.contents


def _checked(status: int) -> None:
    if status:
        table = _driver()
        raise DriverError(
            (table.last_error() or b"").decode(errors="replace"), table.status_name(status).decode()
        )


@dataclass(frozen=True)
class QueueCounters:
    """Cycles of one queue; they add up to the total."""

    busy: float
    issue: float
    stall: Mapping[str, float]
    """Cycles by reason: flag, barrier, latency (DRAM latency that nothing hid), dram (the other DMA engine),
    port (banks of L1 or UB)."""
    idle: float
    instructions: int


@dataclass(frozen=True)
class Counters:
    """Cost of a run."""

    cycles: float
    queues: Mapping[str, QueueCounters]
    dram_read_bytes: int
    dram_write_bytes: int
    matrix_block_cycles: float
    """Cycles in which the matrix unit multiplied; over ``cycles`` it is its utilisation."""
    macs: float
    vector_elements: float
    energy_joule: float


@dataclass(frozen=True)
class Run:
    """One execution of a program."""

    counters: Counters
    outputs: Mapping[str, np.ndarray] = field(default_factory=dict)
    trace: np.ndarray | None = None
    """Entries of every instruction, in order of completion, with the fields of ``hnpu_trace_entry``."""


class Program:
    """A stream that is loaded on a device."""

    def __init__(self, handle: int, stream: Stream):
        self.handle = handle
        self.stream = stream


class Device:
    """An open device.  Use as a context manager, or :meth:`close` it."""

    def __init__(self, spec: NPUSpec):
        self.spec = spec
        self._table = _driver()
        handle = _P()
        self._handle: int | None = None
        _checked(self._table.open(spec.to_config().encode(), ctypes.byref(handle)))
        self._handle = handle.value

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def close(self) -> None:
        """Free the device with its programs and memory."""
        if self._handle is not None:
            self._table.close(self._handle)
            self._handle = None

    # --- memory ------------------------------------------------------------------------------

    def alloc(self, size: int) -> int:
        """Address of ``size`` fresh bytes of device memory.  Raises :class:`DriverError`."""
        address = _U64()
        _checked(self._table.alloc(self._handle, size, ctypes.byref(address)))
        return address.value

    def free(self, address: int) -> None:
        _checked(self._table.free(self._handle, address))

    def write(self, address: int, values: np.ndarray) -> None:
        """Copy an array to device memory."""
        data = np.ascontiguousarray(values)
        _checked(self._table.copy_to_device(self._handle, address, data.ctypes.data, data.nbytes))

    def read(self, address: int, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Copy device memory to a new array."""
        result = np.empty(tuple(shape), dtype)
        _checked(self._table.copy_from_device(self._handle, result.ctypes.data, address, result.nbytes))
        return result

    # --- programs ----------------------------------------------------------------------------

    def load(self, data: bytes) -> Program:
        """Check a stream and keep it on the device.  Raises :class:`DriverError`."""
        handle = _P()
        buffer = (ctypes.c_char * max(1, len(data))).from_buffer_copy(data or b"\0")
        _checked(self._table.load(self._handle, buffer, len(data), ctypes.byref(handle)))
        return Program(handle.value or 0, Stream.from_bytes(data))

    def unload(self, program: Program) -> None:
        self._table.unload(self._handle, program.handle)

    def execute(self, program: Program, addresses: Sequence[tuple[int, int]] | None, flags: int = 0) -> Run:
        """Submit with slots bound to (address, bytes), and wait.  Raises :class:`DriverError`."""
        bindings = None
        count = len(addresses or ())
        if addresses is not None:
            bindings = (_Binding * max(1, count))(*(_Binding(*pair) for pair in addresses))
        _checked(self._table.submit(self._handle, program.handle, bindings, count, flags))
        _checked(self._table.wait(self._handle))
        raw = RawCounters()
        _checked(self._table.read_counters(self._handle, ctypes.byref(raw)))
        trace = self._trace() if flags & TRACE else None
        return Run(counters_of(raw), {}, trace)

    def time(self, program: Program, trace: bool = False) -> Run:
        """Cycles and checks without numbers and without memory.  Raises :class:`DriverError`."""
        return self.execute(program, None, TIMING_ONLY | (TRACE if trace else 0))

    def run(self, program: Program, arrays: Mapping[str, Any], trace: bool = False) -> Run:
        """Execute with arrays for slots.

        Parameters
        ----------
        arrays : by slot name: the array of an input or constant, ``(shape, dtype)`` of an output.
            Scratch slots are allocated.

        Raises :class:`DriverError`.
        """
        addresses: list[tuple[int, int]] = []
        try:
            for slot in program.stream.slots:
                # A slot of 0 bytes still wants an address.
                addresses.append((self.alloc(max(1, slot.bytes)), max(1, slot.bytes)))
                if slot.kind in ("input", "constant"):
                    self.write(addresses[-1][0], arrays[slot.name])
            run = self.execute(program, addresses, TRACE if trace else 0)
            outputs = {
                slot.name: self.read(address, *arrays[slot.name])
                for slot, (address, _) in zip(program.stream.slots, addresses, strict=True)
                if slot.kind == "output"
            }
        finally:
            for address, _ in addresses:
                self.free(address)
        return Run(run.counters, outputs, run.trace)

    def _trace(self) -> np.ndarray:
        count = _U64()
        _checked(self._table.read_trace(self._handle, None, 0, ctypes.byref(count)))
        entries = np.empty(count.value, TRACE_DTYPE)
        _checked(self._table.read_trace(self._handle, entries.ctypes.data, len(entries), ctypes.byref(count)))
        return entries


def open_device(spec: NPUSpec) -> Device:
    """A device of the process's driver.  Raises :class:`DriverError`."""
    return Device(spec)


def counters_of(raw: RawCounters) -> Counters:
    """Counters of the struct that a driver fills."""
    queues = {}
    for name, q in zip(QUEUES, raw.queue, strict=True):
        stalls = dict(zip(STALLS, q.stall, strict=True))
        queues[name] = QueueCounters(q.busy, q.issue, stalls, q.idle, q.instructions)
    return Counters(
        raw.cycles,
        queues,
        raw.dram_read_bytes,
        raw.dram_write_bytes,
        raw.matrix_block_cycles,
        raw.macs,
        raw.vector_elements,
        raw.energy_joule,
    )
