"""Element-wise stages and reductions.

Loops: the box is cut into tiles; every operand's part is loaded in the order in which it lies in DRAM
(so that transfers are long runs), the instructions of the expression walk the tiles through strides
(so that a transposition costs no pass of its own), and the result is stored::

    for tile:                     UB <- DRAM, one load per operand;  expression;  DRAM <- UB
    for tile of the kept axes:
      for tile of the reduced:    UB <- DRAM;  expression;  reduce onto the accumulator
      DRAM <- UB

Why it is fast: two versions of every buffer let the loads of a tile run beside the instructions of the one
before.  Temporaries are float32: a chain is rounded once, at its end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack

from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu.emit import UB, At, Kernel
from hetero_tvm.schedules.npu.tensor_program.stages import Load, Map
from hetero_tvm.schedules.npu.tensor_program.tiling import Tiling, loads_of, simplified, tile_of
from hetero_tvm.schedules.npu.tensor_program.vector import InstructionPlan, width


class MapStage:
    """A :class:`Map`, planned for a machine; ``tiling`` is None when nothing of it fits."""

    def __init__(self, stage: Map, dtypes: tuple[str, ...], spec: NPUSpec):
        self.stage = stage = simplified(stage)
        self._dtypes = dtypes
        self.reads = loads_of(stage.value)
        self._into = dtypes[stage.out.buffer]
        self._value_dtype = self._into
        if stage.reduce:
            self._value_dtype = "float32" if self._into in ("float16", "bfloat16", "float32") else "int32"
        self.plan = InstructionPlan(stage.value, self._dtype_of, self._value_dtype)
        self._bare = isinstance(self.plan.result, Load)
        room = spec.scratchpad("ub") * 7 // 8
        accesses = [stage.out, *self.reads]
        tile = tile_of(stage.extents, accesses, self._bytes, room, 128 * spec.vector_lanes)
        self.tiling = None if tile is None else Tiling(stage.extents, tile)

    def _dtype_of(self, load: Load) -> str:
        return self._dtypes[load.buffer]

    def _kept(self, tile: tuple[int, ...]) -> tuple[int, ...]:
        return tile[: len(tile) - self.stage.reduced]

    def _bytes(self, tile: tuple[int, ...]) -> int:
        """Bytes of the unified buffer for both versions of a tile."""
        elements = math.prod(tile)
        total = 0
        for load in self.reads:
            moving = math.prod(t for t, s in zip(tile, load.strides, strict=True) if s)
            total += 2 * (width(self._dtype_of(load)) * moving + 32)
        total += 2 * (self.plan.bytes_per_element() * elements + 32 * sum(self.plan.slots.values()))
        if self.stage.reduce:
            total += 2 * (width(self._value_dtype) * elements + 32)
            total += 2 * (width(self._value_dtype) + width(self._into)) * math.prod(self._kept(tile)) + 128
        else:
            total += 2 * (width(self._into) * elements + 32)
        return total

    def emit(self, k: Kernel, arguments: Sequence[Buffer]) -> None:
        """Write the loops; ``arguments`` are the program's buffers."""
        assert self.tiling is not None
        _MapEmitter(self, self.tiling, k, arguments).run()


class _MapEmitter:
    """Writes the loops of a stage with its tiles."""

    def __init__(self, planned: MapStage, tiling: Tiling, k: Kernel, arguments: Sequence[Buffer]):
        self.stage, self.plan, self.reads = planned.stage, planned.plan, planned.reads
        self._dtype_of = planned._dtype_of
        self._into, self._value_dtype, self._bare = planned._into, planned._value_dtype, planned._bare
        self.tiling, self.k, self.arguments = tiling, k, arguments

    def run(self) -> None:
        with ExitStack() as stack:
            self.fixed = self._load_fixed()
            if self.stage.reduce:
                self._emit_reduction(stack)
            else:
                self._emit_tile(_loops(self.k, stack, self.tiling.counts))

    def _load_fixed(self) -> dict[Load, At]:
        """Load operands of a single value, once for all tiles."""
        k = self.k
        fixed = {}
        for load in self.reads:
            if not any(load.strides):
                buffer = k.alloc(UB, (1,), self._dtype_of(load))
                source = At(self.arguments[load.buffer], lambda i, b=load.base: (b,))
                k.load((1,), At(buffer, lambda i: (0,)), source)
                fixed[load] = At(buffer, lambda *i: (0,))
        return fixed

    def _emit_tile(self, at: list[Index]) -> None:
        """Load, compute and store one tile."""
        k, stage = self.k, self.stage
        sizes = self.tiling.sizes(at)
        held = self._load_operands(at, sizes)
        if self._bare and self._dtype_of(self.plan.result) == self._into:
            value = held[self.plan.result]
        else:
            buffer = k.alloc(UB, self.tiling.tile or (1,), self._into)
            value = At(buffer, lambda *i: i)
            self._compute(sizes, held, value)
        start = self.tiling.start(stage.out, at)
        k.store(sizes, _flat(self.arguments[stage.out.buffer], start, stage.out.strides), value)

    def _compute(self, sizes: Sequence[Index], held: dict[Load, At], into: At) -> None:
        """Compute the value of a tile into a region."""
        result = self.plan.result
        if isinstance(result, (float, Load)):
            self.k.unary("copy", sizes, into, result if isinstance(result, float) else held[result])
        else:
            self.plan.emit(self.k, self.tiling.tile, sizes, held.__getitem__, into)

    def _load_operands(self, at: list[Index], sizes: Sequence[Index]) -> dict[Load, At]:
        """Regions of all operands' parts of a tile."""
        return self.fixed | {x: self._load(x, at, sizes) for x in self.reads if x not in self.fixed}

    def _load(self, load: Load, at: list[Index], sizes: Sequence[Index]) -> At:
        """Load one operand's part of a tile in the order of its strides; the region by the tile's axes."""
        tile = self.tiling.tile
        moving = [n for n, s in enumerate(load.strides) if s]
        order = sorted(moving, key=lambda n: -abs(load.strides[n]))
        buffer = self.k.alloc(UB, tuple(tile[n] for n in order), self._dtype_of(load))
        start = self.tiling.start(load, at)
        source = _flat(self.arguments[load.buffer], start, [load.strides[n] for n in order])
        self.k.load(tuple(sizes[n] for n in order), At(buffer, lambda *i: i), source)
        return At(buffer, lambda *i: tuple(i[n] for n in order))

    def _emit_reduction(self, outer: ExitStack) -> None:
        stage, tiling, k = self.stage, self.tiling, self.k
        kept = len(stage.extents) - stage.reduced
        counts = tiling.counts
        first = _loops(k, outer, counts[:kept])
        shape = tuple(tiling.tile[:kept]) or (1,)
        total = k.alloc(UB, shape, self._value_dtype)
        result = k.alloc(UB, shape, self._into)
        with ExitStack() as inner:
            rest = _loops(k, inner, counts[kept:])
            at = [*first, *rest]
            sizes = tiling.sizes(at)
            tile = k.alloc(UB, tiling.tile or (1,), self._value_dtype)
            held = self._load_operands(at, sizes)
            if self._bare:
                value = held[self.plan.result]
            else:
                value = At(tile, lambda *i: i)
                self._compute(sizes, held, value)
            moving = [i for i in rest if not isinstance(i, int)]
            fresh: Expr | bool = tirx.all(*(i == 0 for i in moving)) if moving else True
            sums = At(total, lambda *i: i[:kept] or (0,))
            k.reduce(stage.reduce, sizes, list(range(kept, len(sizes))), sums, value, fresh)
        begin = [*first, *([0] * stage.reduced)]
        sizes = tiling.sizes(begin)[:kept] or (1,)
        region = At(result, lambda *i: i)
        k.unary("copy", sizes, region, At(total, lambda *i: i))
        start = tiling.start(stage.out, begin)
        target = _flat(self.arguments[stage.out.buffer], start, stage.out.strides[:kept] or (0,))
        k.store(sizes, target, region)


def _loops(k: Kernel, stack: ExitStack, counts: Sequence[int]) -> list[Index]:
    """Tile loops, the innermost with two versions of its buffers; 0 where there is one tile."""
    last = max((n for n, count in enumerate(counts) if count > 1), default=None)
    return [
        0 if count == 1 else stack.enter_context(k.loop(count, buffers=2 if n == last else 1))
        for n, count in enumerate(counts)
    ]


def _flat(buffer: Buffer, start: Index, strides: Sequence[int]) -> At:
    """A region of a flat buffer by its axes."""

    def index(*i: Index) -> tuple[Index]:
        at = start
        for n, s in zip(i, strides, strict=True):
            if s:
                at = at + n * s
        return (at,)

    return At(buffer, index)
