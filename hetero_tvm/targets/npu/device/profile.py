"""Profile of an exported library on the NPU: per operator, per queue, and as a trace.

The library keeps counters and a trace of its last call (``targets/npu/cpp/npu_region.cc``); this reads them,
and the command streams, through the library's own C functions.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hetero_tvm.errors import UsageError
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.runtime.library import Library
from hetero_tvm.runtime.profiling import write_events
from hetero_tvm.targets.npu.device.attribution import Interval, attribute
from hetero_tvm.targets.npu.device.driver import (
    STALLS,
    TRACE,
    TRACE_DTYPE,
    Counters,
    RawCounters,
    counters_of,
)
from hetero_tvm.targets.npu.isa.stream import Stream
from hetero_tvm.targets.npu.isa.synchronization import QUEUES


class _Region(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("stream", ctypes.c_void_p),
        ("stream_bytes", ctypes.c_uint64),
        ("constants", ctypes.c_void_p),
        ("constant_bytes", ctypes.c_uint64),
        ("workspace_bytes", ctypes.c_uint64),
        ("inputs", ctypes.c_uint32),
        ("outputs", ctypes.c_uint32),
        ("bytes", ctypes.c_void_p),
    ]


@dataclass
class OperatorProfile:
    """Profile of one operator; over the operators of a region, counts add up to the region's counters.

    Parameters
    ----------
    cycles : its share of the region's cycles: where operators overlap, on different queues, they are divided
        among these, so that all add up to the whole.
    active : cycles in which any queue worked for it; those of several operators overlap.  Utilisation is of
        these.
    busy, issue : cycles of each queue.
    stall : by queue and reason, what the queue waited on its way to this operator's instructions.
    block_cycles : cycles in which the matrix unit multiplied.
    least_matrix : cycles that the multiply-accumulates take at the matrix unit's peak.
    """

    name: str
    cycles: float = 0.0
    active: float = 0.0
    busy: dict[str, float] = field(default_factory=lambda: dict.fromkeys(QUEUES, 0.0))
    issue: dict[str, float] = field(default_factory=lambda: dict.fromkeys(QUEUES, 0.0))
    stall: dict[str, dict[str, float]] = field(
        default_factory=lambda: {queue: dict.fromkeys(STALLS, 0.0) for queue in QUEUES}
    )
    block_cycles: float = 0.0
    least_matrix: float = 0.0
    macs: int = 0
    dram_bytes: int = 0
    joule: float = 0.0

    def _share(self, cycles: float) -> float:
        return cycles / self.active if self.active else 0.0

    @property
    def matrix_utilisation(self) -> float:
        """Share of its active cycles in which the matrix unit multiplied."""
        return self._share(self.block_cycles)

    @property
    def vector_utilisation(self) -> float:
        """Share of its active cycles in which the vector unit worked."""
        return self._share(self.busy["vector"])

    def dram_utilisation(self, spec: NPUSpec) -> float:
        """Share of the DRAM bandwidth."""
        return self._share(self.dram_bytes / spec.dram_bytes_per_cycle)

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity: floating-point operations of the matrix unit per byte of DRAM; None: no
        DRAM traffic."""
        return 2 * self.macs / self.dram_bytes if self.dram_bytes else None

    def roof_share(self, spec: NPUSpec) -> float:
        """Position under the roofline: the least cycles that its multiply-accumulates, its vector work and
        its DRAM bytes allow, of those it was active."""
        dram = self.dram_bytes / spec.dram_bytes_per_cycle
        return self._share(max(self.least_matrix, self.busy["vector"], dram))

    def bound(self, spec: NPUSpec) -> tuple[str, float]:
        """The unit that is nearest to its roof, and how near: the side of the roofline it is on."""
        shares = {
            "matrix": self.matrix_utilisation,
            "dram": self.dram_utilisation(spec),
            "vector": self.vector_utilisation,
        }
        return max(shares.items(), key=lambda item: item[1])

    def longest_wait(self) -> tuple[str, str, float]:
        """Queue, reason and cycles of the longest stall of the queue that was busiest."""
        queue = max(QUEUES, key=lambda name: self.busy[name])
        reason = max(STALLS, key=lambda name: self.stall[queue][name])
        return queue, reason, self.stall[queue][reason]

    def to_json(self, spec: NPUSpec) -> dict[str, Any]:
        unit, _ = self.bound(spec)
        return {
            "name": self.name,
            "cycles": self.cycles,
            "active_cycles": self.active,
            "macs": self.macs,
            "dram_bytes": self.dram_bytes,
            "matrix_block_cycles": self.block_cycles,
            "matrix_utilisation": self.matrix_utilisation,
            "vector_utilisation": self.vector_utilisation,
            "dram_utilisation": self.dram_utilisation(spec),
            "flops_per_dram_byte": self.intensity,
            "roof_share": self.roof_share(spec),
            "bound": unit,
            "energy_joule": self.joule,
            "busy": self.busy,
            "issue": self.issue,
            "stall": self.stall,
        }


@dataclass
class RegionProfile:
    """Profile of a region's last call."""

    name: str
    spec: NPUSpec
    counters: Counters
    operators: list[OperatorProfile]
    events: list[dict[str, Any]] = field(repr=False, default_factory=list)
    """Chrome trace events, without the process id."""

    @property
    def seconds(self) -> float:
        """Seconds on the NPU."""
        return self.counters.cycles / (self.spec.clock_ghz * 1e9)

    def to_json(self) -> dict[str, Any]:
        c, spec = self.counters, self.spec
        return {
            "region": self.name,
            "cycles": c.cycles,
            "seconds": self.seconds,
            "matrix_utilisation": c.matrix_block_cycles / c.cycles if c.cycles else 0.0,
            "macs": c.macs,
            "dram_read_bytes": c.dram_read_bytes,
            "dram_write_bytes": c.dram_write_bytes,
            "energy_joule": c.energy_joule,
            "queues": {
                name: {"busy": q.busy, "issue": q.issue, "stall": dict(q.stall), "idle": q.idle}
                for name, q in c.queues.items()
            },
            "operators": [op.to_json(spec) for op in self.operators],
        }


def profile(library: Library, call: Callable[[], Any]) -> list[RegionProfile]:
    """Run ``call``, which calls ``library`` once, with tracing on: one profile per region that ran.

    Raises
    ------
    UsageError : the library has no regions on an NPU.
    """
    native = ctypes.CDLL(str(library.loaded_path))
    if not hasattr(native, "hetero_npu_profile_regions"):
        raise UsageError(
            f"{library.path.name} is for target {library.manifest.target.kind} and runs nothing on an NPU",
            hint="a profile shows the NPU's work: build the model with --target npu; what a CPU or GPU "
            "library takes, python -m hetero_tvm.bench tells",
        )
    native.hetero_npu_profile_region.restype = ctypes.POINTER(_Region)
    native.hetero_npu_profile_config.restype = ctypes.c_char_p
    native.hetero_npu_profile_trace.restype = ctypes.c_uint64
    native.hetero_npu_profile_flags(TRACE)
    try:
        call()
    finally:
        native.hetero_npu_profile_flags(0)
    spec = _spec(native.hetero_npu_profile_config().decode())
    return [
        found
        for index in range(native.hetero_npu_profile_regions())
        if (found := _region(native, index, spec)) is not None
    ]


def _spec(config: str) -> NPUSpec:
    """Machine of a configuration that :meth:`NPUSpec.to_config` wrote."""
    values = dict(line.split("=", 1) for line in config.splitlines() if line)
    costs = [key for key in values if key.startswith("energy_")]
    energy = {key.removeprefix("energy_"): float(values.pop(key)) for key in costs}
    name = values.pop("name")
    block = [int(values.pop(f"block_{axis}")) for axis in "mnk"]
    numbers: dict[str, Any] = {k: float(v) if "." in v or "e" in v else int(v) for k, v in values.items()}
    return NPUSpec.from_dict({**numbers, "matrix_block": block, "energy_pj": energy}, name)


def _region(native: ctypes.CDLL, index: int, spec: NPUSpec) -> RegionProfile | None:
    """Profile of one region's last call; None: it was never called."""
    raw = RawCounters()
    if not native.hetero_npu_profile_counters(index, ctypes.byref(raw)):
        return None
    region = native.hetero_npu_profile_region(index).contents
    stream = Stream.from_bytes(ctypes.string_at(region.stream, region.stream_bytes))
    pointer = ctypes.c_void_p()
    count = native.hetero_npu_profile_trace(index, ctypes.byref(pointer))
    trace = np.frombuffer(ctypes.string_at(pointer, count * TRACE_DTYPE.itemsize), TRACE_DTYPE)
    counters = counters_of(raw)
    operators, events = _operators(stream, trace, counters, spec)
    return RegionProfile(region.name.decode(), spec, counters, operators, events)


def _operators(
    stream: Stream, trace: np.ndarray, counters: Counters, spec: NPUSpec
) -> tuple[list[OperatorProfile], list[dict[str, Any]]]:
    """Operators in the order of the stream's tags, and the trace as events."""
    code = [(instruction.name, tag, values) for _, instruction, tag, values in stream.decode()]
    found = [OperatorProfile(name or "(no operator)") for name in stream.tags]
    intervals: list[Interval] = []
    last: dict[str, OperatorProfile] = {}
    events = []
    scale = 1e-3 / spec.clock_ghz  # cycles -> microseconds
    for entry in trace:
        name, tag, values = code[int(entry["instruction"])]
        queue, start, end = QUEUES[int(entry["queue"])], float(entry["start"]), float(entry["end"])
        op = last[queue] = found[tag]
        stalls = dict(zip(STALLS, map(float, entry["stall"]), strict=True))
        # What a shared resource costs lies within the work, every other stall before it.
        op.busy[queue] += end - start - stalls["dram"] - stalls["port"]
        op.issue[queue] += float(entry["issue"])
        for reason, cycles in stalls.items():
            op.stall[queue][reason] += cycles
        if name == "mmad":
            size = values["m"], values["n"], values["k"]
            op.macs += math.prod(size)
            op.block_cycles += spec.matrix_cycles(*size, values["dtype"])
            op.least_matrix += math.prod(size) / spec.macs_per_cycle(values["dtype"])
        op.dram_bytes += int(entry["dram_bytes"])
        op.joule += float(entry["joule"])
        intervals.append((start, end, tag))
        events.append(
            {
                "name": f"{name} {stream.tags[tag]}",
                "cat": queue,
                "ph": "X",
                "ts": start * scale,
                "dur": (end - start) * scale,
                "tid": int(entry["queue"]),
            }
        )
    shares, active = attribute(intervals, len(found), counters.cycles)
    for op, share, cycles in zip(found, shares, active, strict=True):
        op.cycles, op.active = share, cycles
    used = [op for op in found if op.active]
    _close(found, last, counters)
    for op in found:
        op.joule += 1e-12 * spec.energy_pj.static_per_cycle * op.cycles
    return used, events


def _close(found: list[OperatorProfile], last: dict[str, OperatorProfile], counters: Counters) -> None:
    """Give what no trace entry has (the last flags, the way of the last store to DRAM) to the operator that
    was last on its queue."""
    for queue, op in last.items():
        whole = counters.queues[queue]
        op.issue[queue] += whole.issue - sum(o.issue[queue] for o in found)
        for reason in STALLS:
            # Entries are rounded to float32: what is left of them may be a hair below zero.
            rest = whole.stall[reason] - sum(o.stall[queue][reason] for o in found)
            op.stall[queue][reason] = max(0.0, op.stall[queue][reason] + rest)


def totals(regions: Sequence[RegionProfile]) -> dict[str, Any]:
    """Totals of one inference: all regions, which run one after another."""
    counters = [region.counters for region in regions]
    return {
        "regions": len(regions),
        "cycles": sum(c.cycles for c in counters),
        "seconds": sum(region.seconds for region in regions),
        "macs": sum(c.macs for c in counters),
        "dram_bytes": sum(c.dram_read_bytes + c.dram_write_bytes for c in counters),
        "energy_joule": sum(c.energy_joule for c in counters),
    }


def write_trace(path: str | Path, regions: Sequence[RegionProfile]) -> None:
    """Chrome's trace format (also Perfetto's): one process per region, one row per queue; a region begins
    where the one before ended."""
    events: list[dict[str, Any]] = []
    begin = 0.0  # microseconds
    for pid, region in enumerate(regions):
        events.append({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": region.name}})
        for tid, queue in enumerate(QUEUES):
            events.append({"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": queue}})
        events += [{**event, "ts": begin + event["ts"], "pid": pid} for event in region.events]
        begin += 1e6 * region.seconds
    write_events(path, events)
