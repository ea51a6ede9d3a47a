"""Products whose reduction is cut into parts, one after the other.

Loops: those of :mod:`hetero_tvm.schedules.npu.matmul.kernel` once per part.  The sums of a part wait at the
result's place in DRAM, and the next part adds them in its epilogue; what follows the product is done by
the last one::

    for part of the reduction:   L1 <- X[:, part];   weights of the part stream by
        Y = X[:, part] @ W[part] (+ Y)

Why it is fast: where the activations of the whole reduction do not fit L1, those of a part do, so every
weight is read once.  Sums are rounded to 2 bytes between parts.
"""

from __future__ import annotations

from dataclasses import replace

from hetero_tvm.host.tvm import PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.ops.matmul import BIAS, RESIDUAL, Matmul
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu.emit import At
from hetero_tvm.schedules.npu.matmul.kernel import ProductEmitter
from hetero_tvm.schedules.npu.matmul.roles import NOTHING
from hetero_tvm.schedules.npu.matmul.tiles import Tiles, part_of
from hetero_tvm.schedules.npu.tiles import extent_at


class SplitProductEmitter(ProductEmitter):
    """``self.op`` is the product of one part, ``self.whole`` all of it."""

    def __init__(self, op: Matmul, tiles: Tiles, machine: NpuMachine, panels: int | None = None):
        super().__init__(part_of(op, tiles.parts), replace(tiles, parts=1), machine, NOTHING, panels)
        self.whole, self.parts = op, tiles.parts
        self.first_depth = 0
        """Row of the weights at which the part begins."""

    def run(self) -> PrimFunc:
        whole, k = self.whole, self.k
        biased = whole.epilogue[:1] == (BIAS,)
        with k:
            self.x = k.argument("X", (whole.m, whole.k), self.dtype)
            self.op = whole
            self._constants_and_result((whole.m, whole.n))
            extra, depth = self.extra, whole.k // self.parts
            for part in range(self.parts):
                steps = (RESIDUAL,) if part else whole.epilogue[:biased]
                self.extra = [self.y] if part else extra[:biased]
                if part == self.parts - 1:
                    steps += whole.epilogue[biased:]
                    self.extra = [*self.extra, *extra[biased:]]
                self.op = Matmul(whole.lead, whole.n, depth, steps)
                self.first_depth = part * depth
                self._panels()
        return k.function

    def _load_x(self, dst: At, i: Index, r: Index) -> None:
        op, t, first = self.op, self.t, self.first_depth
        box = extent_at(op.m, t.tm, i), extent_at(op.k, t.tk, r)
        self.k.load(box, dst, At(self.x, lambda a, b: (i * t.tm + a, first + r * t.tk + b)))

    def _weight(self, j: Index, r: Index, c: Index) -> tuple[Index, ...]:
        tn = self.t.tn
        return (j * (self.whole.k * tn) + (self.first_depth + r) * tn + c,)
