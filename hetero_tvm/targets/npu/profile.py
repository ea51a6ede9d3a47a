"""What an exported library did on the NPU: per operator, per queue, and as a trace.

The library keeps counters and a trace of its last call (``native_src/npu_region.cc``); this reads them,
and the command streams, through the library's own C functions.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hetero_tvm.errors import UsageError
from hetero_tvm.targets.npu.driver import _TRACE_DTYPE, TRACE, Counters, _Counters, _counters
from hetero_tvm.targets.npu.isa_sync import QUEUES
from hetero_tvm.targets.npu.spec import NPUSpec
from hetero_tvm.targets.npu.stream import Stream


class _Region(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("stream", ctypes.c_void_p), ("stream_bytes", ctypes.c_uint64),
        ("constants", ctypes.c_void_p), ("constant_bytes", ctypes.c_uint64),
        ("workspace_bytes", ctypes.c_uint64), ("inputs", ctypes.c_uint32), ("outputs", ctypes.c_uint32),
        ("bytes", ctypes.c_void_p),
    ]  # fmt: skip


@dataclass
class OperatorProfile:
    """One operator.  ``cycles`` is how much later it ended than the one before: queues overlap, and these
    add up to the whole.  Its weights may be loaded while the one before still runs, so a share of the
    DRAM bandwidth can be above one."""

    name: str
    cycles: float = 0.0
    busy: dict[str, float] = field(default_factory=lambda: dict.fromkeys(QUEUES, 0.0))
    macs: int = 0
    dram_bytes: int = 0

    def matrix_utilisation(self, spec: NPUSpec) -> float:
        """Share of the matrix unit's peak."""
        return self.macs / (self.cycles * spec.macs_per_cycle()) if self.cycles else 0.0

    def dram_utilisation(self, spec: NPUSpec) -> float:
        """Share of the DRAM bandwidth."""
        return self.dram_bytes / (self.cycles * spec.dram_bytes_per_cycle) if self.cycles else 0.0

    def bound(self, spec: NPUSpec) -> str:
        """What is nearest to its roof: the side of the roofline that the operator is on."""
        shares = {
            "matrix": self.matrix_utilisation(spec),
            "dram": self.dram_utilisation(spec),
            "vector": self.busy["vector"] / self.cycles if self.cycles else 0.0,
        }
        name = max(shares, key=lambda key: shares[key])
        return f"{name} {shares[name]:.0%}"


@dataclass
class RegionProfile:
    """One region's last call."""

    name: str
    spec: NPUSpec
    counters: Counters
    operators: list[OperatorProfile]
    events: list[dict[str, Any]] = field(repr=False, default_factory=list)
    """Chrome trace events, without the process id."""

    def to_json(self) -> dict[str, Any]:
        c, spec = self.counters, self.spec
        return {
            "region": self.name,
            "cycles": c.cycles,
            "seconds": c.cycles / (spec.clock_ghz * 1e9),
            "matrix_utilisation": c.matrix_block_cycles / c.cycles if c.cycles else 0.0,
            "dram_read_bytes": c.dram_read_bytes,
            "dram_write_bytes": c.dram_write_bytes,
            "energy_joule": c.energy_joule,
            "queues": {
                name: {"busy": q.busy, "issue": q.issue, "stall": dict(q.stall), "idle": q.idle}
                for name, q in c.queues.items()
            },
            "operators": [
                {
                    "name": op.name, "cycles": op.cycles, "macs": op.macs, "dram_bytes": op.dram_bytes,
                    "matrix_utilisation": op.matrix_utilisation(spec),
                    "dram_utilisation": op.dram_utilisation(spec), "bound": op.bound(spec),
                    "busy": op.busy,
                }
                for op in self.operators
            ],
        }  # fmt: skip


def profile(path: Path, call: Any) -> list[RegionProfile]:
    """Run ``call`` once with tracing on, and read what the regions of the loaded library at ``path`` did.

    Raises
    ------
    UsageError : the library has no regions on an NPU.
    """
    library = ctypes.CDLL(str(path))
    if not hasattr(library, "hetero_npu_profile_regions"):
        raise UsageError(f"{path} runs nothing on an NPU", hint="build it with --target npu")
    library.hetero_npu_profile_region.restype = ctypes.POINTER(_Region)
    library.hetero_npu_profile_config.restype = ctypes.c_char_p
    library.hetero_npu_profile_trace.restype = ctypes.c_uint64
    library.hetero_npu_profile_flags(TRACE)
    try:
        call()
    finally:
        library.hetero_npu_profile_flags(0)
    spec = _spec(library.hetero_npu_profile_config().decode())
    return [
        found
        for index in range(library.hetero_npu_profile_regions())
        if (found := _region(library, index, spec)) is not None
    ]


def _spec(config: str) -> NPUSpec:
    """Inverse of :meth:`NPUSpec.to_config`."""
    values = dict(line.split("=", 1) for line in config.splitlines() if line)
    costs = [key for key in values if key.startswith("energy_")]
    energy = {key.removeprefix("energy_"): float(values.pop(key)) for key in costs}
    name = values.pop("name")
    block = [int(values.pop(f"block_{axis}")) for axis in "mnk"]
    numbers: dict[str, Any] = {k: float(v) if "." in v or "e" in v else int(v) for k, v in values.items()}
    return NPUSpec.from_dict({**numbers, "matrix_block": block, "energy_pj": energy}, name)


def _region(library: Any, index: int, spec: NPUSpec) -> RegionProfile | None:
    raw = _Counters()
    if not library.hetero_npu_profile_counters(index, ctypes.byref(raw)):
        return None
    region = library.hetero_npu_profile_region(index).contents
    stream = Stream.from_bytes(ctypes.string_at(region.stream, region.stream_bytes))
    pointer = ctypes.c_void_p()
    count = library.hetero_npu_profile_trace(index, ctypes.byref(pointer))
    trace = np.frombuffer(ctypes.string_at(pointer, count * _TRACE_DTYPE.itemsize), _TRACE_DTYPE)
    operators, events = _operators(stream, trace, spec)
    return RegionProfile(region.name.decode(), spec, _counters(raw), operators, events)


def _operators(
    stream: Stream, trace: np.ndarray, spec: NPUSpec
) -> tuple[list[OperatorProfile], list[dict[str, Any]]]:
    code = [(instruction.name, tag, values) for _, instruction, tag, values in stream.decode()]
    found = [OperatorProfile(name) for name in stream.tags]
    ends = [0.0] * len(found)
    events = []
    scale = 1e-3 / spec.clock_ghz  # cycles -> microseconds
    for entry in trace:
        name, tag, values = code[int(entry["instruction"])]
        if name in ("set_flag", "wait_flag", "barrier"):
            continue
        queue, start, end = QUEUES[int(entry["queue"])], float(entry["start"]), float(entry["end"])
        op = found[tag]
        op.busy[queue] += end - start
        op.macs += _macs(name, values)
        op.dram_bytes += _dram_bytes(name, values)
        ends[tag] = max(ends[tag], end)
        events.append(
            {"name": f"{name} {stream.tags[tag]}", "cat": queue, "ph": "X", "ts": start * scale,
             "dur": (end - start) * scale, "tid": int(entry["queue"])}
        )  # fmt: skip
    done = 0.0
    for op, end in zip(found, ends, strict=True):
        op.cycles = max(0.0, end - done)
        done = max(done, end)
    return [op for op in found if op.name], events


def _macs(name: str, values: Mapping[str, Any]) -> int:
    return values["m"] * values["n"] * values["k"] if name == "mmad" else 0


def _dram_bytes(name: str, values: Mapping[str, Any]) -> int:
    if name == "gather":
        return values["count"] * values["row_bytes"]
    if name == "load" or (name == "store" and values["dst_mem"] == "dram"):
        size = values["elem"]
        for extent, low, high in zip(values["extents"], values["pad_low"], values["pad_high"], strict=True):
            size *= extent - (low + high if name == "load" else 0)
        return int(size)
    return 0


def write_trace(path: Path, regions: Sequence[RegionProfile]) -> None:
    """Chrome's trace format (also Perfetto's): one process per region, one row per queue."""
    events: list[dict[str, Any]] = []
    for pid, region in enumerate(regions):
        events.append({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": region.name}})
        for tid, queue in enumerate(QUEUES):
            events.append(
                {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": queue}}
            )
        events += [{**event, "pid": pid} for event in region.events]
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}))
