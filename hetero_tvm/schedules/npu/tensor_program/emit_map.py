"""Element-wise stages and reductions.

Loops: the box is cut into tiles; every operand's part is loaded in the order in which it lies in DRAM
(so that transfers are long runs), the instructions of the expression walk the tiles through strides
(so that a transposition costs no pass of its own), and the result is stored::

    for tile:                     UB <- DRAM, one load per operand;  expression;  DRAM <- UB
    for tile of the kept axes:
      for tile of the reduced:    UB <- DRAM;  expression;  reduce onto the accumulator
      DRAM <- UB

Two versions of every buffer let the loads of a tile run beside the instructions of the one before.
Temporaries are float32: a chain is rounded once, at its end.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any

from hetero_tvm.host.tvm import tirx
from hetero_tvm.schedules.npu.emit import UB, At, Kernel
from hetero_tvm.schedules.npu.tensor_program.stages import Load, Map
from hetero_tvm.schedules.npu.tensor_program.tiling import Tiling, loads_of, simplified, tile_of
from hetero_tvm.schedules.npu.tensor_program.vector import Plan, width


class MapStage:
    """One :class:`Map`, planned for a machine; ``tiling`` is None when nothing of it fits."""

    def __init__(self, stage: Map, dtypes: tuple[str, ...], spec: Any):
        self.stage = stage = simplified(stage)
        self._dtypes = dtypes
        self.reads = loads_of(stage.expr)
        self._into = dtypes[stage.out.buffer]
        self._value = self._into
        if stage.reduce:
            self._value = "float32" if self._into in ("float16", "bfloat16", "float32") else "int32"
        self.plan = Plan(stage.expr, self._dtype_of, self._value)
        self._bare = isinstance(self.plan.result, Load)
        room = spec.scratchpad("ub") * 7 // 8
        tile = tile_of(
            stage.extents, [stage.out, *self.reads], self._bytes, room, 128 * spec.vector_lanes
        )  # fmt: skip
        self.tiling = None if tile is None else Tiling(stage.extents, tile)

    def _dtype_of(self, load: Load) -> str:
        return self._dtypes[load.buffer]

    def _kept(self, tile: tuple[int, ...]) -> tuple[int, ...]:
        return tile[: len(tile) - self.stage.reduced]

    def _bytes(self, tile: tuple[int, ...]) -> int:
        elements = math.prod(tile)
        total = 0
        for load in self.reads:
            moving = math.prod(t for t, s in zip(tile, load.strides, strict=True) if s)
            total += 2 * (width(self._dtype_of(load)) * moving + 32)
        total += 2 * (self.plan.bytes_per_element() * elements + 32 * sum(self.plan.slots.values()))
        if self.stage.reduce:
            total += 2 * (width(self._value) * elements + 32)
            total += 2 * (width(self._value) + width(self._into)) * math.prod(self._kept(tile)) + 128
        else:
            total += 2 * (width(self._into) * elements + 32)
        return total

    # --- emission --------------------------------------------------------------------------------

    def emit(self, k: Kernel, arguments: list[Any]) -> None:
        assert self.tiling is not None
        if self.stage.reduce:
            self._emit_reduction(k, arguments)
            return
        with ExitStack() as stack:
            fixed = self._load_fixed(k, arguments)
            at = _loops(k, stack, self.tiling.counts, len(self.tiling.counts))
            self._emit_tile(k, arguments, at, fixed, None)

    def _load_fixed(self, k: Kernel, arguments: list[Any]) -> dict[Load, At]:
        """Operands of a single value, once for all tiles."""
        fixed = {}
        for load in self.reads:
            if not any(load.strides):
                buffer = k.alloc(UB, (1,), self._dtype_of(load))
                k.load(
                    (1,), At(buffer, lambda i: (0,)), At(arguments[load.buffer], lambda i, b=load.base: (b,))
                )
                fixed[load] = At(buffer, lambda *i: (0,))
        return fixed

    def _emit_tile(
        self, k: Kernel, arguments: list[Any], at: list[Any], fixed: dict[Load, At], into: At | None
    ) -> At:
        """Load and compute one tile; stored unless ``into`` is given.  The region of the value."""
        tiling, stage = self.tiling, self.stage
        sizes = tiling.sizes(at)
        held = dict(fixed)
        for load in self.reads:
            if load not in held:
                held[load] = self._load(k, arguments, load, at, sizes)
        if self._bare and into is None and self._dtype_of(self.plan.result) == self._into:
            value = held[self.plan.result]
        else:
            value = into
            if value is None:
                buffer = k.alloc(UB, tiling.tile or (1,), self._into)
                value = At(buffer, lambda *i: i)
            if self._bare or isinstance(self.plan.result, float):
                source = self.plan.result if isinstance(self.plan.result, float) else held[self.plan.result]
                k.unary("copy", sizes, value, source)
            else:
                self.plan.emit(k, tiling.tile, sizes, held.__getitem__, value)
        if into is None:
            start = tiling.start(stage.out, at)
            k.store(sizes, _flat(arguments[stage.out.buffer], start, stage.out.strides), value)
        return value

    def _load(self, k: Kernel, arguments: list[Any], load: Load, at: list[Any], sizes: Any) -> At:
        """One operand's part of a tile, in the order of its strides; the region by the tile's axes."""
        tile = self.tiling.tile
        moving = [n for n, s in enumerate(load.strides) if s]
        order = sorted(moving, key=lambda n: -abs(load.strides[n]))
        buffer = k.alloc(UB, tuple(tile[n] for n in order), self._dtype_of(load))
        start = self.tiling.start(load, at)
        strides = [load.strides[n] for n in order]
        k.load(
            tuple(sizes[n] for n in order), At(buffer, lambda *i: i),
            _flat(arguments[load.buffer], start, strides),
        )  # fmt: skip
        return At(buffer, lambda *i: tuple(i[n] for n in order))

    def _emit_reduction(self, k: Kernel, arguments: list[Any]) -> None:
        stage, tiling = self.stage, self.tiling
        kept = len(stage.extents) - stage.reduced
        counts = tiling.counts
        with ExitStack() as outer:
            fixed = self._load_fixed(k, arguments)
            first = _loops(k, outer, counts[:kept], kept)
            shape = tuple(tiling.tile[:kept]) or (1,)
            total = k.alloc(UB, shape, self._value)
            result = k.alloc(UB, shape, self._into)
            sums = At(total, lambda *i: i[:kept] or (0,))
            with ExitStack() as inner:
                rest = _loops(k, inner, counts[kept:], stage.reduced)
                at = [*first, *rest]
                tile = k.alloc(UB, tiling.tile or (1,), self._value)
                into = None if self._bare else At(tile, lambda *i: i)
                value = self._value_of(k, arguments, at, fixed, into)
                fresh: Any = True
                moving = [i for i in rest if not isinstance(i, int)]
                if moving:
                    fresh = tirx.all(*(i == 0 for i in moving))
                sizes = tiling.sizes(at)
                axes = list(range(kept, len(sizes)))
                k.reduce(stage.reduce, sizes, axes, sums, value, fresh)
            sizes = tiling.sizes([*first, *([0] * stage.reduced)])[:kept] or (1,)
            region = At(result, lambda *i: i)
            k.unary("copy", sizes, region, At(total, lambda *i: i))
            start = tiling.start(
                Load(stage.out.buffer, stage.out.base, stage.out.strides), [*first, *([0] * stage.reduced)]
            )
            k.store(
                sizes, _flat(arguments[stage.out.buffer], start, stage.out.strides[:kept] or (0,)), region
            )

    def _value_of(self, k: Kernel, arguments: Any, at: Any, fixed: Any, into: At | None) -> At:
        if into is not None:
            return self._emit_tile(k, arguments, at, fixed, into)
        load = self.plan.result
        return fixed[load] if load in fixed else self._load(k, arguments, load, at, self.tiling.sizes(at))


def _loops(k: Kernel, stack: ExitStack, counts: tuple[int, ...], rank: int) -> list[Any]:
    """Tile loops, the innermost with two versions of its buffers; 0 where there is one tile."""
    last = max((n for n, count in enumerate(counts) if count > 1), default=None)
    return [
        0 if count == 1 else stack.enter_context(k.loop(count, buffers=2 if n == last else 1))
        for n, count in enumerate(counts)
    ]


def _flat(buffer: Any, start: Any, strides: Any) -> At:
    def index(*i: Any) -> tuple[Any]:
        at = start
        for n, s in zip(i, strides, strict=True):
            if s:
                at = at + n * s
        return (at,)

    return At(buffer, index)
