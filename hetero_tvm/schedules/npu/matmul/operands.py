"""Operands of a product's kernel: parameters, and the ways of their tiles."""

from __future__ import annotations

from hetero_tvm.host.tvm import Buffer
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.ops.matmul import BIAS, RESIDUAL, Matmul
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.emit import DRAM, L1, UB, At, Kernel
from hetero_tvm.schedules.npu.matmul.roles import NOTHING, Roles
from hetero_tvm.schedules.npu.matmul.tiles import Tiles, l1_bytes
from hetero_tvm.schedules.npu.patches import Image
from hetero_tvm.schedules.npu.tiles import aligned_rows, extent_at, round_up


class ProductOperands:
    """The kernel under construction, and how its operands lie.

    Parameters
    ----------
    op, tiles, machine : what is computed, in which tiles, by which NPU.
    held : operands that lie on chip.
    panels : versions of the panel in L1; None: two if they fit.
    image : X in L1, from which tiles are taken as patches: that reads rows at any pitch at the full rate.
    copied : number of the result's last rows that are stored a second time, into a tensor of their own.
    """

    def __init__(
        self,
        op: Matmul,
        tiles: Tiles,
        machine: NpuMachine,
        held: Roles = NOTHING,
        panels: int | None = None,
        image: Image | None = None,
        copied: int = 0,
    ):
        self.op, self.t, self.dtype, self.held = op, tiles, machine.dtype, held
        self.accumulator = "float32"
        self.image = image or Image(op.m, 1, op.k)
        self.copied = copied
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
        self.biases: dict[int, Buffer] = {}
        self.extra: list[Buffer] = []
        self.k = Kernel()
        self.first_weight = self.first_bias = 0
        """Elements of their operands at which the weights and the bias begin."""

    def _scope(self, role: str) -> str:
        return L1 if role in self.held else DRAM

    def _constants_and_result(self, shape: tuple[int, ...]) -> None:
        """Declare the parameters behind X; the result, and residuals, have ``shape``."""
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

    def _output(self, row: Index, column: Index, buffer: Buffer) -> At:
        """The region of the result (or a residual) from (row, column)."""
        return At(buffer, lambda a, b: (row + a, column + b))

    def _weight(self, j: Index, r: Index, c: Index) -> tuple[Index, ...]:
        """Index of element (r, c) of column panel ``j``."""
        return (self.first_weight + j * (self.op.k * self.t.tn) + r * self.t.tn + c,)

    def _load_x(self, dst: At, i: Index, r: Index) -> None:
        """Load rows ``i * tm ...``, step ``r`` of the reduction, into the region ``dst`` of (row, column)."""
        op, t = self.op, self.t
        box = extent_at(op.m, t.tm, i), extent_at(op.k, t.tk, r)
        self.k.load(box, dst, At(self.x, lambda a, b: (i * t.tm + a, r * t.tk + b)))

    def _load_weights(self, dst: At, j: Index, r: Index, depth: Index) -> None:
        """Load rows ``r * tk ...`` of column panel ``j`` into the region ``dst`` of (row, column)."""
        tk, box = self.t.tk, (depth, extent_at(self.op.n, self.t.tn, j))
        self.k.load(box, dst, At(self.w, lambda a, b: self._weight(j, r * tk + a, b)))

    def _move_x(self, a0: Buffer, box: tuple[Index, Index], i: Index, r: Index, source: At | None) -> None:
        """Move row tile ``i``, step ``r``, from the kernel's tile in L1, or from X there."""
        if source is not None:
            self.k.move(box, At(a0, lambda a, b: (a, b)), source)
        else:
            self.image.patches(self.k, a0, box, i * self.t.tm, r * self.t.tk, self.x)

    def _move_weights(
        self, b0: Buffer, box: tuple[Index, Index], j: Index, r: Index, source: At | None
    ) -> None:
        """Move column panel ``j``, step ``r``, from the kernel's tile in L1, or from W there."""
        source = source or At(self.w, lambda a, b: self._weight(j, r * self.t.tk + a, b))
        self.k.move(box, At(b0, lambda a, b: (a, b)), source)
