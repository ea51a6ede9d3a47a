"""Builds one region: kernels in order, tensors in DRAM, constants, and from them one command stream.

Between kernels, tensors lie in DRAM or stay in L1; the memory planner gives both their places.  DRAM of a
region is a few slots: the constants (stored once, whatever kernels share them), one
workspace whose tensors get their offsets from the memory planner, and one slot per input and output
of the region.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hetero_tvm import memory
from hetero_tvm.errors import BuildError
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.machines.npu.spec import SCRATCHPADS, NPUSpec
from hetero_tvm.schedules.npu import convert
from hetero_tvm.schedules.npu.base import CHANNELS_LAST, ROW_MAJOR, stored_as
from hetero_tvm.targets.npu.isa.stream import Slot, Stream
from hetero_tvm.targets.npu.regions.binding import (
    CONSTANTS,
    IN_L1,
    IN_UB,
    WORKSPACE,
    Call,
    Tensor,
    bind,
    plan_l1,
    plan_ub,
)
from hetero_tvm.targets.npu.regions.codegen import WIDTH, Program, generate, hoist_loads
from hetero_tvm.targets.npu.regions.features import ALL, Features

_ALIGN = 64
_PLAN_SECONDS = 1.0


@dataclass(eq=False)
class Value:
    """What a variable of the graph stands for: one tensor per layout, made as they are asked for."""

    shape: tuple[int, ...]
    by_layout: dict[str, Tensor] = field(default_factory=dict)
    """In the type that the NPU keeps it in; in others under ``LAYOUT:DTYPE``."""
    external: Tensor | None = None
    """The original in an input slot, of ``dtype``, row-major."""
    dtype: str = "float32"
    """Of the variable, as the host has it."""
    source: Value | None = None
    """What this is a view of."""
    shift: int | None = None
    """Where this begins in ``source`` (bytes), when it is a part: some rows of an image, channels last."""
    pinned: bool = False
    """It must stay on chip."""
    in_ub: bool = False
    """There in the unified buffer: a vector of float32; else in L1."""

    @property
    def root(self) -> Value:
        """The value whose bytes these are."""
        return self if self.source is None else self.source.root

    def part(self, shape: tuple[int, ...], shift: int) -> Value:
        """Rows of an image, channels last, from byte ``shift`` on."""
        return Value(shape, dtype=self.dtype, source=self, shift=shift)



@dataclass(frozen=True)
class CompiledRegion:
    """What the exported library embeds, and what reports tell."""

    name: str
    stream: bytes
    constants: bytes
    inputs: tuple[int, ...]
    """Bytes of every input, in order."""
    outputs: tuple[int, ...]
    instructions: int
    workspace: int


@dataclass(frozen=True)
class Place:
    """Of a kernel in the unified buffer; see :func:`plan_scratchpads`."""

    high: bool = False
    reserved: int = 0


class KernelCache:
    """Programs by what they were emitted from: equal kernels of a model are generated once.

    With ``contents`` False, regions are only for timing: their constants have sizes, and no bytes.
    """

    def __init__(self, machine: NpuMachine, features: Features = ALL, contents: bool = True):
        self.machine, self.features = machine, features
        self.contents = contents
        self.sizes: dict[Any, int] = {}
        """Bytes of constants by what they were made from, where contents do not matter."""
        self._programs: dict[Any, Program] = {}
        self.defaults: dict[str, Any] = {}
        """Default points by task."""

    def of_space(
        self, space: Any, op: Any, point: Any, place: Place = Place(), held: frozenset[int] = frozenset()
    ) -> Program:
        """``held``: operands (and the result, behind them) on chip; see :meth:`NpuSpace.on_chip`."""
        key = (space.name, op, tuple(sorted(point.items())), held)
        if held:
            return self.get(key, lambda: space.emit_held(op, point, self.machine, held), place)
        return self.get(key, lambda: space.emit(op, point, self.machine), place)

    def get(self, key: Any, emit: Any, place: Place) -> Program:
        if (key, place) not in self._programs:
            buffers = None if self.features.double_buffering else 1
            self._programs[key, place] = generate(
                emit(), self.machine.spec, place.high, buffers, place.reserved
            )
        return self._programs[key, place]


class RegionBuilder:
    """Collects the kernels of one region in program order."""

    def __init__(self, name: str, machine: NpuMachine, cache: KernelCache):
        self.name = name
        self.machine = machine
        self.spec = machine.spec
        self.cache = cache
        self._slots = [Slot("constants", 0, "constant"), Slot("workspace", 0, "scratch")]
        self._constants: list[tuple[int, bytes]] = []
        self._constant_bytes = 0
        self._constant_at: dict[Any, Tensor] = {}
        self._workspace: list[Tensor] = []
        self._calls: list[Call] = []
        self._inputs: list[int] = []
        self._outputs: list[int] = []
        self.reserves = False
        """Whether the next kernels leave room in the unified buffer for what stays there."""

    # --- tensors -----------------------------------------------------------------------------

    def input(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> Value:
        """A tensor of the host."""
        size = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
        self._slots.append(Slot(name, size, "input"))
        self._inputs.append(size)
        return Value(shape, external=Tensor(len(self._slots) - 1, size), dtype=dtype)

    def device_tensor(self, name: str, size: int, kind: str) -> Tensor:
        """A slot of its own, in whatever type the kernel that uses it has."""
        self._slots.append(Slot(name, size, kind))
        (self._inputs if kind == "input" else self._outputs).append(size)
        return Tensor(len(self._slots) - 1, size)

    def constant(self, array: np.ndarray, key: Any = None) -> Tensor:
        """Bytes in the constants' slot, the same ones only once; ``key`` saves looking at them again."""
        if key is not None and key in self._constant_at:
            return self._constant_at[key]
        data = np.ascontiguousarray(array).tobytes()
        key = key or hashlib.blake2b(data, digest_size=16).digest()
        if key in self._constant_at:
            return self._constant_at[key]
        tensor = self._constant_at[key] = self._reserve(len(data))
        self._constants.append((tensor.offset, data))
        return tensor

    def constant_of(self, key: Any, make: Callable[[], np.ndarray]) -> Tensor:
        """The constant that ``make`` gives; equal keys say that the size is the same."""
        if self.cache.contents:
            return self.constant(make())
        sizes = self.cache.sizes
        if key not in sizes:
            sizes[key] = make().nbytes
        return self._reserve(sizes[key])

    def _reserve(self, size: int) -> Tensor:
        tensor = Tensor(CONSTANTS, size, self._constant_bytes)
        self._constant_bytes += -(-size // _ALIGN) * _ALIGN
        return tensor

    def _constant_data(self) -> bytes:
        data = bytearray(self._constant_bytes)
        for offset, piece in self._constants:
            data[offset : offset + len(piece)] = piece
        return bytes(data)

    def held(self, value: Value, size: int) -> Tensor:
        """Bytes on chip for as long as kernels need them."""
        return Tensor(IN_UB, 4 * math.prod(value.shape)) if value.in_ub else Tensor(IN_L1, size)

    def placed(self, value: Value) -> Tensor:
        """The tensor of a value that has a place, or whose whole has."""
        if value.source is None:
            return next(iter(value.by_layout.values()))
        if not value.by_layout:
            whole = self.placed(value.source)
            size = 2 * int(np.prod(value.shape, dtype=np.int64))
            layout = plain_layout(value.shape, CHANNELS_LAST) if value.shift is not None else ROW_MAJOR
            value.by_layout[layout] = whole if value.shift is None else whole.part(value.shift, size)
        return next(iter(value.by_layout.values()))

    def fresh(self, shape: Sequence[int], dtype: str | None = None) -> Tensor:
        """A tensor in the workspace, of the machine's type unless given."""
        width = WIDTH[dtype or self.machine.dtype]
        tensor = Tensor(WORKSPACE, width * int(np.prod(shape, dtype=np.int64)))
        self._workspace.append(tensor)
        return tensor

    def tensor_of(self, value: Value, layout: str, tag: str, dtype: str | None = None) -> Tensor:
        """The value in a layout and a type of the NPU (its own unless given), converted where it is not
        there yet."""
        layout = plain_layout(value.shape, layout)
        if value.source is not None and not value.by_layout:
            if value.shift is None:
                value.by_layout[ROW_MAJOR] = self.tensor_of(value.source, ROW_MAJOR, tag)
            else:
                self.tensor_of(value.source, CHANNELS_LAST, tag)
                self.placed(value)
        own = stored_as(value.dtype, self.machine.dtype)
        wanted = dtype or own
        key = layout if wanted == own else f"{layout}:{wanted}"
        if key in value.by_layout:
            return value.by_layout[key]
        elements = int(np.prod(value.shape, dtype=np.int64))
        as_is = value.external is not None and layout == ROW_MAJOR
        if as_is and np.dtype(value.dtype).itemsize == WIDTH[wanted] and value.dtype in (wanted, "bool"):
            value.by_layout[key] = value.external
            return value.external
        if value.external is not None and layout != ROW_MAJOR and own != self.machine.dtype:
            self.tensor_of(value, ROW_MAJOR, tag)  # types of the host are converted as they lie
        result = self.fresh(value.shape, wanted)
        at_home = [name for name in value.by_layout if ":" not in name]
        if value.external is not None and not at_home:
            source, have, dtype = value.external, ROW_MAJOR, value.dtype
        else:
            have = layout if layout in at_home else at_home[0]
            source, dtype = value.by_layout[have], own
        self._convert(source, dtype, have, result, wanted, layout, value.shape, elements, tag)
        value.by_layout[key] = result
        return result

    def output(self, name: str, value: Value, tag: str) -> None:
        """The value leaves the region in the type of the host, row-major."""
        elements = int(np.prod(value.shape, dtype=np.int64))
        size = np.dtype(value.dtype).itemsize * elements
        self._slots.append(Slot(name, size, "output"))
        self._outputs.append(size)
        target = Tensor(len(self._slots) - 1, size)
        if value.source is not None or value.dtype in ("uint8", "int64"):
            self.tensor_of(value, ROW_MAJOR, tag)
        have = ROW_MAJOR if ROW_MAJOR in value.by_layout else next(iter(value.by_layout))
        source, own = value.by_layout[have], stored_as(value.dtype, self.machine.dtype)
        in_parts = any(tensor.whole is source for call in self._calls for tensor in call.tensors)
        if own == value.dtype and have == ROW_MAJOR and source in self._workspace and not in_parts:
            # The kernel that makes it writes to the host's tensor.
            self._workspace.remove(source)
            source.slot = target.slot
            return
        self._convert(source, own, have, target, value.dtype, ROW_MAJOR, value.shape, elements, tag)

    def _convert(self, source, dtype, have, result, wanted, layout, shape, elements, tag) -> None:
        spec = self.spec
        if self.reserves:
            spec = replace(spec, ub_kib=spec.ub_kib - -(-self._reserved // 1024))
        if have == layout:
            program = self.cache.get(
                ("cast", elements, dtype, wanted), lambda: convert.cast(elements, dtype, wanted, spec),
                self.place,
            )
        else:
            n, c, h, w = shape
            rows, columns = (c, h * w) if layout == CHANNELS_LAST else (h * w, c)
            program = self.cache.get(
                ("permute", n, rows, columns, dtype, wanted),
                lambda: convert.permute(n, rows, columns, dtype, wanted, spec),
                self.place,
            )
        self.call(program, [source, result], tag)

    @property
    def place(self) -> Place:
        """Which end of the unified buffer the next kernel takes: they alternate, so that its first loads
        need not wait for the last kernel."""
        high = sum(1 for call in self._calls if call.program.needs.get("ub")) % 2 == 1
        return Place(high and self.cache.features.double_buffering, self._reserved * self.reserves)

    @property
    def _reserved(self) -> int:
        return reserved_in_ub(self.spec)

    # --- kernels -------------------------------------------------------------------------------

    def call(
        self, program: Program, tensors: Sequence[Tensor], tag: str, behind: int | None = None
    ) -> int:
        """Append a kernel; ``tensors`` are its parameters in order; the kernel's number.  ``behind``: see
        :class:`Call`."""
        if len(tensors) != program.parameters:
            raise BuildError(
                f"{tag}: the kernel has {program.parameters} parameters, {len(tensors)} were given"
            )
        if program.front is None:
            hoist_loads(program, [tensor.slot == CONSTANTS for tensor in tensors])
        for tensor in tensors:
            tensor.touch(len(self._calls))
        self._calls.append(Call(program, list(tensors), tag, behind))
        return len(self._calls) - 1

    # --- the stream ------------------------------------------------------------------------------

    def finish(self) -> CompiledRegion:
        """Plan the workspace and L1, bind the kernels' operands, synchronise, encode."""
        size = self._plan_workspace()
        self._constant_bytes = max(self._constant_bytes, _ALIGN)
        slots = list(self._slots)
        slots[CONSTANTS] = Slot("constants", self._constant_bytes, "constant")
        slots[WORKSPACE] = Slot("workspace", max(size, _ALIGN), "scratch")
        only_read = {n for n, slot in enumerate(slots) if slot.kind in ("constant", "input")}
        plan = plan_l1(self._calls, self.spec, self.cache.features.double_buffering)
        in_ub = plan_ub(self._calls, self._reserved, self.spec.alignment)
        bound = bind(self._calls, plan, only_read)
        needs = {
            name: max((call.program.needs.get(name, 0) for call in self._calls), default=0)
            for name in SCRATCHPADS
        }
        needs["l1"], needs["ub"] = plan.peak, max(needs["ub"], in_ub)
        stream = Stream(slots, bound.tags, bound.code, bound.count, needs, bound.events)
        return CompiledRegion(
            self.name, stream.to_bytes(), self._constant_data() if self.cache.contents else b"",
            tuple(self._inputs), tuple(self._outputs), bound.count, size,
        )  # fmt: skip

    def _plan_workspace(self) -> int:
        used = [t for t in self._workspace if t.last >= 0]
        problem = memory.Problem(
            memory.Buffer(str(n), t.first, t.last + 1, -(-t.bytes // _ALIGN) * _ALIGN)
            for n, t in enumerate(used)
        )
        plan = memory.plan(problem, alignment=_ALIGN, seconds=_PLAN_SECONDS)
        for n, tensor in enumerate(used):
            tensor.offset = plan.offsets[str(n)]
        return plan.peak


def reserved_in_ub(spec: NPUSpec) -> int:
    """Bytes of the unified buffer for what stays there: kernels of the matrix unit leave as much."""
    return spec.scratchpad("ub") // 16


def plain_layout(shape: tuple[int, ...], layout: str) -> str:
    """Channels-last of a single pixel (or a single channel) is row-major."""
    if layout == CHANNELS_LAST and (shape[1] == 1 or shape[2] * shape[3] == 1):
        return ROW_MAJOR
    return layout
