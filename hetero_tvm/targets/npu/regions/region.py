"""Builds one region: kernels in order, tensors in DRAM, constants, and from them one command stream.

Between kernels, tensors lie in DRAM or stay in L1; the memory planner gives both their places.  DRAM of a
region is a few slots: the constants (stored once, whatever kernels share them), one
workspace whose tensors get their offsets from the memory planner, and one slot per input and output
of the region.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hetero_tvm import memory
from hetero_tvm.errors import BuildError
from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.machines.npu.spec import SCRATCHPADS, NPUSpec
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.npu import convert
from hetero_tvm.schedules.npu.base import CHANNELS_LAST, ROW_MAJOR, NpuSpace, stored_as
from hetero_tvm.targets.npu.isa.stream import Slot, Stream
from hetero_tvm.targets.npu.regions.binding import (
    CONSTANTS,
    IN_L1,
    IN_UB,
    WORKSPACE,
    Call,
    L1Plan,
    Tensor,
    bind,
    plan_l1,
    plan_ub,
)
from hetero_tvm.targets.npu.regions.codegen import Program, generate, hoist_loads
from hetero_tvm.targets.npu.regions.kernel_memory import WIDTH

_ALIGN = 64
_PLAN_SECONDS = 1.0


@dataclass(eq=False)
class Value:
    """A variable of the graph inside a region: one tensor per layout, made when it is first asked for."""

    shape: tuple[int, ...]
    by_layout: dict[str, Tensor] = field(default_factory=dict)
    """Tensors in the type that the NPU stores this in; those of other types under ``LAYOUT:DTYPE``."""
    external: Tensor | None = None
    """Tensor in an input slot that the host passes, of ``dtype``, row-major."""
    dtype: str = "float32"
    """Type of the variable on the host."""
    source: Value | None = None
    """Value that this is a view of."""
    shift: int | None = None
    """Offset in ``source`` (bytes) of a view of some rows of an image, channels last; None: all of it."""
    resident: bool = False
    """Whether it must stay on chip."""
    in_ub: bool = False
    """Whether a resident value is a float32 vector in the unified buffer; else it stays in L1."""

    @property
    def root(self) -> Value:
        """Value that owns the bytes of this view."""
        return self if self.source is None else self.source.root

    def part(self, shape: tuple[int, ...], shift: int) -> Value:
        """Rows of an image, channels last, from byte ``shift`` on."""
        return Value(shape, dtype=self.dtype, source=self, shift=shift)


@dataclass(frozen=True)
class CompiledRegion:
    """One region as the exported library embeds it, with the figures that reports tell."""

    name: str
    stream: bytes
    constants: bytes
    inputs: tuple[int, ...]
    """Sizes of the inputs in order, bytes."""
    outputs: tuple[int, ...]
    """Sizes of the outputs in order, bytes."""
    instructions: int
    workspace: int
    """Size of the scratch slot in DRAM, bytes."""


@dataclass(frozen=True)
class UbEnd:
    """End of the unified buffer that a kernel fills; see :func:`plan_scratchpads`."""

    high: bool = False
    """Whether it is the upper end."""
    reserved: int = 0
    """Bytes at the lower end that are not the kernel's."""


class KernelCache:
    """Programs by what they were emitted from: equal kernels of a model are generated once.

    Parameters
    ----------
    contents : False for regions that are only timed: their constants have sizes, and no bytes.
    """

    def __init__(self, machine: NpuMachine, contents: bool = True):
        self.machine = machine
        self.contents = contents
        self.sizes: dict[Any, int] = {}
        """Bytes of constants by what they were made from; used without contents."""
        self._programs: dict[tuple[Hashable, UbEnd], Program] = {}
        self.defaults: dict[str, Point] = {}
        """Default points by task."""

    def of_space(
        self,
        space: NpuSpace,
        op: Any,
        point: Point,
        end: UbEnd = UbEnd(),
        held: frozenset[int] = frozenset(),
    ) -> Program:
        """Program of a design space's kernel.

        Parameters
        ----------
        held : operands (and the result, behind them) on chip; see :meth:`NpuSpace.on_chip`.
        """
        key = (space.name, op, tuple(sorted(point.items())), held)
        if held:
            return self.get(key, lambda: space.emit_held(op, point, self.machine, held), end)
        return self.get(key, lambda: space.emit(op, point, self.machine), end)

    def get(self, key: Hashable, emit: Callable[[], PrimFunc], end: UbEnd) -> Program:
        """Program of the kernel that ``emit`` schedules; equal keys stand for equal kernels."""
        if (key, end) not in self._programs:
            self._programs[key, end] = self.generate(emit(), end)
        return self._programs[key, end]

    def generate(self, function: PrimFunc, end: UbEnd) -> Program:
        """Instructions of a scheduled kernel."""
        return generate(function, self.machine.spec, end.high, reserved=end.reserved)


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
        size = np.dtype(dtype).itemsize * math.prod(shape)
        self._slots.append(Slot(name, size, "input"))
        self._inputs.append(size)
        return Value(shape, external=Tensor(len(self._slots) - 1, size), dtype=dtype)

    def device_tensor(self, name: str, size: int, kind: str) -> Tensor:
        """A slot of its own, in whatever type the kernel that uses it has."""
        self._slots.append(Slot(name, size, kind))
        (self._inputs if kind == "input" else self._outputs).append(size)
        return Tensor(len(self._slots) - 1, size)

    def constant(self, array: np.ndarray, key: Any = None) -> Tensor:
        """Tensor in the constants' slot, equal arrays only once; a known ``key`` saves hashing the array."""
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
        """Constant that ``make`` computes; equal keys promise equal sizes."""
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

    def on_chip(self, value: Value, size: int) -> Tensor:
        """Tensor of ``size`` bytes that stays on chip for as long as kernels use it."""
        return Tensor(IN_UB, 4 * math.prod(value.shape)) if value.in_ub else Tensor(IN_L1, size)

    def existing(self, value: Value) -> Tensor:
        """Tensor of a value that has one, or that is a view of a value that has one."""
        if value.source is None:
            return next(iter(value.by_layout.values()))
        if not value.by_layout:
            whole = self.existing(value.source)
            size = 2 * math.prod(value.shape)
            layout = plain_layout(value.shape, CHANNELS_LAST) if value.shift is not None else ROW_MAJOR
            value.by_layout[layout] = whole if value.shift is None else whole.part(value.shift, size)
        return next(iter(value.by_layout.values()))

    def fresh(self, shape: Sequence[int], dtype: str | None = None) -> Tensor:
        """A tensor in the workspace, of the machine's type unless given."""
        width = WIDTH[dtype or self.machine.dtype]
        tensor = Tensor(WORKSPACE, width * math.prod(shape))
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
                self.existing(value)
        own = stored_as(value.dtype, self.machine.dtype)
        wanted = dtype or own
        key = layout if wanted == own else f"{layout}:{wanted}"
        if key in value.by_layout:
            return value.by_layout[key]
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
        self._convert(source, dtype, have, result, wanted, layout, value.shape, tag)
        value.by_layout[key] = result
        return result

    def output(self, name: str, value: Value, tag: str) -> None:
        """The value leaves the region in the type of the host, row-major."""
        size = np.dtype(value.dtype).itemsize * math.prod(value.shape)
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
        self._convert(source, own, have, target, value.dtype, ROW_MAJOR, value.shape, tag)

    def _convert(
        self,
        source: Tensor,
        dtype: str,
        have: str,
        result: Tensor,
        wanted: str,
        layout: str,
        shape: tuple[int, ...],
        tag: str,
    ) -> None:
        """Append a kernel that copies ``source`` (type ``dtype``, layout ``have``) to ``result`` (type
        ``wanted``, layout ``layout``)."""
        elements, spec = math.prod(shape), self.spec
        if self.reserves:
            spec = replace(spec, ub_kib=spec.ub_kib - -(-self._reserved // 1024))
        if have == layout:
            program = self.cache.get(
                ("cast", elements, dtype, wanted),
                lambda: convert.cast(elements, dtype, wanted, spec),
                self.ub_end,
            )
        else:
            n, c, h, w = shape
            rows, columns = (c, h * w) if layout == CHANNELS_LAST else (h * w, c)
            program = self.cache.get(
                ("permute", n, rows, columns, dtype, wanted),
                lambda: convert.permute(n, rows, columns, dtype, wanted, spec),
                self.ub_end,
            )
        self.call(program, [source, result], tag)

    @property
    def ub_end(self) -> UbEnd:
        """End of the unified buffer that the next kernel takes: they alternate, so that its first loads
        need not wait for the last kernel."""
        high = sum(1 for call in self._calls if call.program.needs.get("ub")) % 2 == 1
        return UbEnd(high, self._reserved * self.reserves)

    @property
    def _reserved(self) -> int:
        return reserved_in_ub(self.spec)

    # --- kernels -------------------------------------------------------------------------------

    def call(self, program: Program, tensors: Sequence[Tensor], tag: str, behind: int | None = None) -> int:
        """Append a kernel with ``tensors`` for its parameters; returns the kernel's number.  ``behind``: see
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
        plan = self.plan_l1(self._calls)
        in_ub = plan_ub(self._calls, self._reserved, self.spec.alignment)
        bound = bind(self._calls, plan, only_read)
        needs = {
            name: max((call.program.needs.get(name, 0) for call in self._calls), default=0)
            for name in SCRATCHPADS
        }
        needs["l1"], needs["ub"] = plan.peak, max(needs["ub"], in_ub)
        stream = Stream(slots, bound.tags, bound.code, bound.count, needs, bound.events)
        return CompiledRegion(
            self.name,
            stream.to_bytes(),
            self._constant_data() if self.cache.contents else b"",
            tuple(self._inputs),
            tuple(self._outputs),
            bound.count,
            size,
        )

    def plan_l1(self, calls: Sequence[Call]) -> L1Plan:
        """Offsets of tensors and of the kernels' own parts in L1.  Raises :class:`L1Full`."""
        return plan_l1(calls, self.spec)

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
    """Bytes of the unified buffer for vectors that stay there; kernels of the matrix unit leave them free."""
    return spec.scratchpad("ub") // 16


def plain_layout(shape: tuple[int, ...], layout: str) -> str:
    """``layout``, or row-major where channels-last is the same: of a single pixel or a single channel."""
    if layout == CHANNELS_LAST and (shape[1] == 1 or shape[2] * shape[3] == 1):
        return ROW_MAJOR
    return layout
