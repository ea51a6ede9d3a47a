"""Products of two tensors that are known at run time only, or that no space of their own takes; of int8 in
int32.

Loops: tiles of rows, columns and the reduction; operands are loaded as they lie in DRAM, whichever way
round, since the matrix unit takes either transposed::

    for batch, tile of rows, of columns:
      for tile of the reduction:   L1 <- A, B (DRAM);  L0A, L0B <- L1;  mmad
      UB <- L0C;  DRAM <- UB

Why it is fast: no operand is transposed in memory, and the loads of a tile run beside the products of the one
before (two versions of every buffer).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, tirx
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu.emit import L0A, L0B, L0C, L1, UB, At, Kernel
from hetero_tvm.schedules.npu.tensor_program.index import NotAffineError
from hetero_tvm.schedules.npu.tensor_program.stages import Load, Product
from hetero_tvm.schedules.npu.tiles import ceil_div, even, extent_at

_MOST = 128
"""Largest tile along any axis."""
_FAR = 1 << 60
"""Stride of an axis that an access does not have."""


@dataclass(frozen=True)
class _Span:
    """Part of an axis: tile ``index`` of ``tile`` elements, of which there are ``size``; an axis that is None
    has one element."""

    axis: int | None
    tile: int
    index: Index
    size: Index


class ProductStage:
    """A :class:`Product` with the axes that the matrix unit takes: ``m``, ``n`` and ``k``; it is repeated
    along ``outer``, and summed up along ``sums``."""

    def __init__(self, stage: Product, dtypes: tuple[str, ...], spec: NPUSpec):
        self.stage, self._dtypes = stage, dtypes
        self._dtype = dtypes[stage.a.buffer]
        if dtypes[stage.b.buffer] != self._dtype or self._dtype not in ("float16", "bfloat16", "int8"):
            raise NotAffineError(f"a product of {self._dtype} and {dtypes[stage.b.buffer]}")
        kept = len(stage.extents) - stage.reduced
        extents = stage.extents
        by_a = [n for n in range(kept) if extents[n] > 1 and stage.a.strides[n] and not stage.b.strides[n]]
        by_b = [n for n in range(kept) if extents[n] > 1 and stage.b.strides[n] and not stage.a.strides[n]]

        # The columns are what the result has contiguous.
        def reach(axes: list[int]) -> int:
            return min((stage.out.strides[n] for n in axes), default=_FAR)

        self.a, self.b = stage.a, stage.b
        if reach(by_a) < reach(by_b):
            self.a, self.b, by_a, by_b = stage.b, stage.a, by_b, by_a
        self.m = self._largest(by_a, self.a)
        self.n = self._largest(by_b, self.b)
        reduced = [n for n in range(kept, len(extents)) if extents[n] > 1]
        self.k = max(reduced, key=lambda n: extents[n], default=None)
        self.outer = [n for n in range(kept) if extents[n] > 1 and n not in (self.m, self.n)]
        self.sums = [n for n in reduced if n != self.k]
        self.tm, self.tn, self.tk = self._tiles(spec)

    def _largest(self, axes: list[int], load: Load) -> int | None:
        return max(axes, key=lambda n: (self.stage.extents[n], -load.strides[n]), default=None)

    def _extent(self, axis: int | None) -> int:
        return 1 if axis is None else self.stage.extents[axis]

    def _tiles(self, spec: NPUSpec) -> tuple[int, int, int]:
        """Tile sizes along m, n and k: the largest that fit every scratchpad twice."""
        most = _MOST
        extents = [self._extent(axis) for axis in (self.m, self.n, self.k)]
        while True:
            tm, tn, tk = (
                even(extent, most, min(most, block)) if extent > most else extent
                for extent, block in zip(extents, spec.matrix_block, strict=True)
            )
            if (
                4 * tm * tk + 64 <= spec.scratchpad("l0a")
                and 4 * tn * tk + 64 <= spec.scratchpad("l0b")
                and 8 * tm * tn <= spec.scratchpad("l0c")
                and 8 * tm * tn + 512 <= spec.scratchpad("ub")
                and 4 * (tm + tn) * tk + 512 <= spec.scratchpad("l1")
            ):
                return tm, tn, tk
            most //= 2

    def emit(self, k: Kernel, arguments: Sequence[Buffer]) -> None:
        """Write the loops; ``arguments`` are the program's buffers."""
        stage = self.stage
        m, n, depth = (self._extent(axis) for axis in (self.m, self.n, self.k))
        with ExitStack() as stack:
            around = {axis: stack.enter_context(k.loop(stage.extents[axis])) for axis in self.outer}
            i = stack.enter_context(k.loop(ceil_div(m, self.tm)))
            j = stack.enter_context(k.loop(ceil_div(n, self.tn), buffers=2))
            rows = _Span(self.m, self.tm, i, extent_at(m, self.tm, i))
            columns = _Span(self.n, self.tn, j, extent_at(n, self.tn, j))
            box = (rows.size, columns.size)
            c = k.alloc(L0C, (self.tm, self.tn), "int32" if self._dtype == "int8" else "float32")
            y = At(k.alloc(UB, (self.tm, self.tn), self._dtypes[stage.out.buffer]), lambda x, z: (x, z))
            with ExitStack() as inner:
                sums = {axis: inner.enter_context(k.loop(stage.extents[axis])) for axis in self.sums}
                r = inner.enter_context(k.loop(ceil_div(depth, self.tk), buffers=2))
                deep = _Span(self.k, self.tk, r, extent_at(depth, self.tk, r))
                places = {**around, **sums}
                a0 = self._move(k, arguments[self.a.buffer], self.a, L0A, (rows, deep), places)
                b0 = self._move(k, arguments[self.b.buffer], self.b, L0B, (deep, columns), places)
                k.mmad(
                    (*box, deep.size),
                    At(c, lambda x, y, z: (x, y)),
                    At(a0.buffer, lambda x, y, z: a0.index(x, z)),
                    At(b0.buffer, lambda x, y, z: b0.index(z, y)),
                    tirx.all(*(x == 0 for x in (*sums.values(), r))),
                )
            k.move_out(box, y, At(c, lambda x, z: (x, z)))
            k.store(box, _region(arguments[stage.out.buffer], stage.out, (rows, columns), around), y)

    def _move(
        self,
        k: Kernel,
        buffer: Buffer,
        load: Load,
        level: str,
        spans: tuple[_Span, _Span],
        places: Mapping[int, Index],
    ) -> At:
        """Take a tile through L1 into ``level``, rows or columns first as they lie in DRAM; its region by
        (row, column)."""
        row_stride, column_stride = (_FAR if s.axis is None else load.strides[s.axis] for s in spans)
        turned = row_stride < column_stride
        source = _region(buffer, load, spans, places)
        order = (spans[1], spans[0]) if turned else spans
        shape, extents = tuple(s.tile for s in order), tuple(s.size for s in order)

        def plain(x: Index, y: Index) -> tuple[Index, Index]:
            return x, y

        def swapped(x: Index, y: Index) -> tuple[Index, Index]:
            return y, x

        l1, l0 = k.alloc(L1, shape, self._dtype), k.alloc(level, shape, self._dtype)
        in_dram = At(source.buffer, lambda x, y: source.index(y, x)) if turned else source
        k.load(extents, At(l1, plain), in_dram)
        k.move(extents, At(l0, plain), At(l1, plain))
        return At(l0, swapped if turned else plain)


def _region(buffer: Buffer, load: Load, spans: tuple[_Span, _Span], places: Mapping[int, Index]) -> At:
    """The region of two spans in DRAM, at the places given along other axes."""
    start: Index = load.base
    for axis, index in places.items():
        if load.strides[axis]:
            start = start + index * load.strides[axis]
    strides = [0 if span.axis is None else load.strides[span.axis] for span in spans]
    for span, stride in zip(spans, strides, strict=True):
        if stride:
            start = start + span.index * (span.tile * stride)
    return At(buffer, lambda x, y: (start + x * strides[0] + y * strides[1],))
