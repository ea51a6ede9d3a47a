"""Products of two tensors that are known at run time only, or that no space of their own takes; of int8 in
int32.

Loops: tiles of rows, columns and the reduction; operands are loaded as they lie in DRAM, whichever way
round, since the matrix unit takes either transposed::

    for batch, tile of rows, of columns:
      for tile of the reduction:   L1 <- A, B (DRAM);  L0A, L0B <- L1;  mmad
      UB <- L0C;  DRAM <- UB
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from hetero_tvm.host.tvm import tirx
from hetero_tvm.schedules.npu.emit import L0A, L0B, L0C, L1, UB, At, Kernel
from hetero_tvm.schedules.npu.tensor_program.index import NotAffineError
from hetero_tvm.schedules.npu.tensor_program.stages import Load, Product
from hetero_tvm.schedules.npu.tensor_program.vector import width
from hetero_tvm.schedules.npu.tiles import ceil_div, even, extent_at

_MOST = 128


class ProductStage:
    """One :class:`Product`, with the axes that the matrix unit takes."""

    def __init__(self, stage: Product, dtypes: tuple[str, ...], spec: Any):
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
            return min((stage.out.strides[n] for n in axes), default=1 << 60)

        self.a, self.b = stage.a, stage.b
        if reach(by_a) < reach(by_b):
            self.a, self.b, by_a, by_b = stage.b, stage.a, by_b, by_a
        self.m = self._best(by_a, self.a)
        self.n = self._best(by_b, self.b)
        reduced = [n for n in range(kept, len(extents)) if extents[n] > 1]
        self.k = max(reduced, key=lambda n: extents[n], default=None)
        self.outer = [n for n in range(kept) if extents[n] > 1 and n not in (self.m, self.n)]
        self.sums = [n for n in reduced if n != self.k]
        self.tiles = self._tiles(spec)

    def _best(self, axes: list[int], load: Load) -> int | None:
        return max(axes, key=lambda n: (self.stage.extents[n], -load.strides[n]), default=None)

    def _extent(self, axis: int | None) -> int:
        return 1 if axis is None else self.stage.extents[axis]

    def _tiles(self, spec: Any) -> tuple[int, int, int]:
        bm, bn, bk = spec.matrix_block
        most = _MOST
        while True:
            tm, tn, tk = (
                even(n, most, min(most, b)) if n > most else n
                for n, b in (
                    (self._extent(self.m), bm),
                    (self._extent(self.n), bn),
                    (self._extent(self.k), bk),
                )
            )
            if (
                4 * tm * tk + 64 <= spec.scratchpad("l0a") and 4 * tn * tk + 64 <= spec.scratchpad("l0b")
                and 8 * tm * tn <= spec.scratchpad("l0c") and 8 * tm * tn + 512 <= spec.scratchpad("ub")
                and 4 * (tm + tn) * tk + 512 <= spec.scratchpad("l1")
            ):  # fmt: skip
                return tm, tn, tk
            most //= 2

    def emit(self, k: Kernel, arguments: list[Any]) -> None:
        stage, (tm, tn, tk) = self.stage, self.tiles
        m, n, depth = (self._extent(axis) for axis in (self.m, self.n, self.k))
        into = self._dtypes[stage.out.buffer]
        with ExitStack() as stack:
            around = {axis: stack.enter_context(k.loop(stage.extents[axis])) for axis in self.outer}
            i = stack.enter_context(k.loop(ceil_div(m, tm)))
            j = stack.enter_context(k.loop(ceil_div(n, tn), buffers=2))
            high, wide = extent_at(m, tm, i), extent_at(n, tn, j)
            c = k.alloc(L0C, (tm, tn), "int32" if self._dtype == "int8" else "float32")
            y = k.alloc(UB, (tm, tn), into)
            with ExitStack() as inner:
                sums = {axis: inner.enter_context(k.loop(stage.extents[axis])) for axis in self.sums}
                r = inner.enter_context(k.loop(ceil_div(depth, tk), buffers=2))
                deep = extent_at(depth, tk, r)
                places = {**around, **sums}
                a0 = self._operand(
                    k, arguments, self.a, L0A, (self.m, self.k), (tm, tk), (i, r), (high, deep), places
                )
                b0 = self._operand(
                    k, arguments, self.b, L0B, (self.k, self.n), (tk, tn), (r, j), (deep, wide), places
                )
                first = tirx.all(*(x == 0 for x in (*sums.values(), r)))
                k.mmad(
                    (high, wide, deep), At(c, lambda x, y, z: (x, y)),
                    At(a0.buffer, lambda x, y, z: a0.index(x, z)),
                    At(b0.buffer, lambda x, y, z: b0.index(z, y)), first,
                )  # fmt: skip
            k.move_out((high, wide), At(y, lambda x, z: (x, z)), At(c, lambda x, z: (x, z)))
            k.store(
                (high, wide), self._dram(arguments, stage.out, (self.m, self.n), (tm, tn), (i, j), around),
                At(y, lambda x, z: (x, z)),
            )  # fmt: skip

    def _dram(self, arguments: Any, load: Load, axes: Any, tile: Any, at: Any, places: Any) -> At:
        start: Any = load.base
        for axis, index in places.items():
            if load.strides[axis]:
                start = start + index * load.strides[axis]
        strides = [0 if axis is None else load.strides[axis] for axis in axes]
        for index, t, s in zip(at, tile, strides, strict=True):
            if s:
                start = start + index * (t * s)
        return At(arguments[load.buffer], lambda x, y: (start + x * strides[0] + y * strides[1],))

    def _operand(
        self,
        k: Kernel,
        arguments: Any,
        load: Load,
        level: str,
        axes: Any,
        tile: Any,
        at: Any,
        sizes: Any,
        places: Any,
    ) -> At:
        """A tile through L1, rows or columns first as they lie in DRAM; the region by (row, column)."""
        strides = [1 << 60 if axis is None else load.strides[axis] for axis in axes]
        turned = strides[0] < strides[1]
        source = self._dram(arguments, load, axes, tile, at, places)
        order = (1, 0) if turned else (0, 1)
        shape = tuple(tile[n] for n in order)
        extents = tuple(sizes[n] for n in order)
        l1, l0 = k.alloc(L1, shape, self._dtype), k.alloc(level, shape, self._dtype)
        plain = lambda x, y: (x, y)  # noqa: E731
        k.load(
            extents, At(l1, plain),
            At(source.buffer, (lambda x, y: source.index(y, x)) if turned else source.index),
        )  # fmt: skip
        k.move(extents, At(l0, plain), At(l1, plain))
        return At(l0, (lambda x, y: (y, x)) if turned else plain)


__all__ = ["ProductStage", "width"]
