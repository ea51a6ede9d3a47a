"""Independent rows in parallel chunks: the base of this folder's design spaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.emit import Kernel

LAUNCH_WORTH = 16 << 10
"""Bytes below which waking the other threads (1 to 5 us) costs more than it saves."""


class RowSpace(DesignSpace):
    """Base of spaces with one knob: into how many parallel chunks the independent rows are cut."""

    def row_count(self, op: Any, machine: CpuModel) -> int:
        """Independent rows that chunks are made of."""
        return op.rows

    def traffic(self, op: FusedOp) -> int:
        """Bytes that tell whether other threads are worth waking."""
        return op.nbytes

    def knobs(self, op: FusedOp, machine: CpuModel) -> tuple[Knob, ...]:
        """1 chunk (no launch), one per thread, and a few more."""
        rows = self.row_count(op, machine)
        choices = sorted({min(rows, c) for c in (1, machine.threads, 4 * machine.threads)})
        return (Knob("chunks", tuple(choices)),)

    def default(self, op: FusedOp, machine: CpuModel) -> Point:
        few = self.traffic(op) < LAUNCH_WORTH
        return {"chunks": 1 if few else min(self.row_count(op, machine), machine.threads)}

    def estimate(self, op: FusedOp, point: Point, machine: CpuModel) -> float:
        """Bytes of the busiest thread, and what waking the others takes in such bytes."""
        chunks, rows = point["chunks"], self.row_count(op, machine)
        if chunks == 1:
            return self.traffic(op)
        largest = -(-rows // chunks) / rows * -(-chunks // machine.threads)
        return self.traffic(op) * largest + LAUNCH_WORTH / 2 * (1 + 0.001 * chunks)


def each_row(k: Kernel, rows: int, chunks: int, body: Callable[[Expr], None]) -> None:
    """``body(row)`` over all rows, in ``chunks`` contiguous parallel pieces of nearly equal size."""
    with k.parallel(chunks) as chunk:
        if chunks == rows:
            body(chunk)
            return
        first = k.let(tirx.floordiv(chunk * rows, chunks))
        count = tirx.floordiv((chunk + 1) * rows, chunks) - first
        with k.serial(rows if chunks == 1 else count) as i:
            body(first + i)
