"""Operands of a product's kernel: parameters, and the ways of their tiles."""

from __future__ import annotations

from typing import Any

from hetero_tvm.ops.matmul import BIAS, RESIDUAL, Matmul
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.emit import DRAM, L1, UB, At, Kernel
from hetero_tvm.schedules.npu.images.image import Image
from hetero_tvm.schedules.npu.matmul.roles import NOTHING, Roles
from hetero_tvm.schedules.npu.matmul.tiles import Tiles, l1_bytes
from hetero_tvm.schedules.npu.tiles import aligned_rows, extent_at, round_up


class Operands:
    """The kernel under construction, and how its operands lie."""

    def __init__(
        self,
        op: Matmul,
        tiles: Tiles,
        machine: Any,
        held: Roles = NOTHING,
        panels: int | None = None,
        image: Image | None = None,
        copied: int = 0,
    ):
        self.op, self.t, self.dtype, self.held = op, tiles, machine.dtype, held
        self.accumulator = "float32"
        self.image = image or Image(op.m, 1, op.k)
        """X in L1, from which tiles are taken as patches: that reads rows at any pitch at the full rate."""
        self.copied = copied
        """So many of the last rows of the result are stored a second time, into a tensor of their own."""
        self.tile_rows = aligned_rows(tiles.tm, 4 * tiles.tn, machine.spec.alignment)
        both = 8 * tiles.sub * self.tile_rows * tiles.tn <= machine.spec.scratchpad("l0c")
        self.versions = 2 if both else 1
        piece = 2 * tiles.rows * tiles.tn * (1 + epilogue.temporaries(epilogue.split(op.epilogue).rest))
        # Results on their way to DRAM, and residuals from it, should not hold up the kernels around.
        room = machine.spec.scratchpad("ub") * 3 // 8
        self.pieces = 2 if "y" in held else max(2, min(16, room // piece))
        self.panels = panels or (2 if l1_bytes(op, tiles, 2, held) <= machine.spec.scratchpad("l1") else 1)
        if tiles.stationary == "w" and "x" in held:
            self.panels = tiles.ring
        self.ub = machine.spec.scratchpad("ub")
        self.biases: dict[int, Any] = {}
        self.extra: list[Any] = []
        self.k = Kernel()
        self.first_weight = self.first_bias = 0
        """Where the weights and the bias begin in their operands."""

    def _scope(self, role: str) -> str:
        return L1 if role in self.held else DRAM

    def _constants_and_result(self, shape: tuple[int, ...]) -> None:
        """The parameters behind X; the result, and residuals, have ``shape``."""
        op, k = self.op, self.k
        self.w = k.argument("W", (op.k * round_up(op.n, self.t.tn),), self.dtype, self._scope("w"))
        self.extra = []
        for n, step in enumerate(s for s in op.epilogue if s in (BIAS, RESIDUAL)):
            if step == BIAS:
                scope = UB if BIAS in self.held else DRAM
                self.extra.append(k.argument(f"{step}{n}", (op.n,), "float32", scope))
            else:
                self.extra.append(k.argument(f"{step}{n}", shape, self.dtype, self._scope(step)))
        self.y = k.argument("Y", shape, self.dtype, self._scope("y"))
        if self.copied:
            self.copy = k.argument("copy", (self.copied, op.n), self.dtype, L1)

    def _output(self, row: Any, column: Any, buffer: Any) -> At:
        """The region of the result (or a residual) from (row, column)."""
        return At(buffer, lambda a, b: (row + a, column + b))

    def _weight(self, j: Any, r: Any, c: Any) -> tuple[Any, ...]:
        """Index of element (r, c) of column panel ``j``."""
        return (self.first_weight + j * (self.op.k * self.t.tn) + r * self.t.tn + c,)

    def _load_x(self, dst: At, i: Any, r: Any) -> None:
        """Rows ``i * tm ...``, step ``r`` of the reduction, into the region ``dst`` of (row, column)."""
        op, t = self.op, self.t
        self.k.load(
            (extent_at(op.m, t.tm, i), extent_at(op.k, t.tk, r)), dst,
            At(self.x, lambda a, b: (i * t.tm + a, r * t.tk + b)),
        )  # fmt: skip

    def _load_weights(self, dst: At, j: Any, r: Any, depth: Any) -> None:
        """Rows ``r * tk ...`` of column panel ``j``, into the region ``dst`` of loops (row, column)."""
        op, t = self.op, self.t
        width = extent_at(op.n, t.tn, j)
        self.k.load(
            (depth, width), dst, At(self.w, lambda a, b: self._weight(j, r * t.tk + a, b))
        )  # fmt: skip

    def _move_x(self, a0: Any, box: tuple[Any, Any], i: Any, r: Any, source: At | None) -> None:
        """Row tile ``i``, step ``r``: from the kernel's tile in L1, or from X there."""
        if source is not None:
            self.k.move(box, At(a0, lambda a, b: (a, b)), source)
        else:
            self.image.patches(self.k, a0, box, i * self.t.tm, r * self.t.tk, self.x)

    def _move_weights(self, b0: Any, box: tuple[Any, Any], j: Any, r: Any, source: At | None) -> None:
        """Column panel ``j``, step ``r``: from the kernel's tile in L1, or from W there."""
        source = source or At(self.w, lambda a, b: self._weight(j, r * self.t.tk + a, b))
        self.k.move(box, At(b0, lambda a, b: (a, b)), source)
