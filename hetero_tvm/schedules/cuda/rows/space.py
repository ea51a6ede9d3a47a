"""The design space of operators over rows: one knob, the division of rows among threads."""

from __future__ import annotations

from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.add_norm import AddNorm
from hetero_tvm.ops.embedding_norm import EmbeddingNorm
from hetero_tvm.ops.group_norm import GroupNorm
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cuda.rows.row_tiles import RowShape, shapes
from hetero_tvm.schedules.cuda.values import vector_of

RowOp = Softmax | Normalization | AddNorm | GroupNorm | EmbeddingNorm


class RowSpace(DesignSpace):
    """Points of a kernel over rows (see :mod:`.row_tiles`).

    Knob ``block``: threads of a row, rows of a block; one decision, because not every number of threads goes
    with every number of rows.
    """

    def vector(self, op: RowOp) -> int:
        """Elements of one access."""
        return vector_of(op.output.dtype, op.n)

    def weights(self, op: RowOp) -> int:
        """Vectors (scale, shift) whose elements a thread holds beside its values."""
        return 0

    def knobs(self, op: RowOp, machine: GpuModel) -> tuple[Knob, ...]:
        found = self._shapes(op, machine)
        return (Knob("block", tuple((shape.threads, shape.block_rows) for shape in found)),)

    def default(self, op: RowOp, machine: GpuModel) -> Point:
        best = self._shapes(op, machine)[0]
        return {"block": (best.threads, best.block_rows)}

    def features(self, op: RowOp, point: Point, machine: GpuModel) -> list[float]:
        return self.shape(op, point).features

    def shape(self, op: RowOp, point: Point) -> RowShape:
        """The division that ``point`` stands for."""
        threads, block_rows = point["block"]
        return RowShape(op.rows, op.n, self.vector(op), threads=threads, block_rows=block_rows)

    def _shapes(self, op: RowOp, machine: GpuModel) -> list[RowShape]:
        return shapes(op.rows, op.n, self.vector(op), machine, self.weights(op))
