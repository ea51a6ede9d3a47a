"""Tiles of rows on the vector unit, and the part of a design space that chooses them."""

from __future__ import annotations

from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import Point
from hetero_tvm.schedules.npu.base import RankedSpace
from hetero_tvm.schedules.npu.tiles import ceil_div, even

_LIKELY_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def tile_rows(columns: int, rows: int, tiles: int, spec: NPUSpec, *, shared: int = 0) -> list[int]:
    """Rows per tile for an operand of ``rows`` rows, the best guess first; none when one row does not fit.

    ``tiles`` is the number of buffers of 2-byte elements per tile, ``shared`` the bytes of the unified buffer
    that all tiles share.
    """
    room = (spec.scratchpad("ub") - shared) // (2 * (2 * tiles * columns + 32))
    if room < 1:
        return []
    wanted = max(1, min(room, rows, ceil_div(64 * spec.vector_lanes, columns)))
    wanted = min(wanted, max(1, ceil_div(rows, 4))) if rows * columns > 16 * spec.vector_lanes else wanted
    first = even(rows, wanted)
    others = {even(rows, min(room, r)) for r in _LIKELY_ROWS if r <= room}
    return [first, *sorted(others - {first})]


class RowSpace(RankedSpace):
    """A design space with one knob: the rows of a tile.  Its operators have ``rows`` rows of length ``n``."""

    knob = "rows"

    def does_not_fit(self, op: FusedOp, machine: NpuMachine) -> str | None:
        """Reason why no tile of rows fits; None when one does."""
        if not self.ranked(op, machine):
            return f"a row of {op.n} elements does not fit the unified buffer of {machine.spec.name}"
        return None

    def features(self, op: FusedOp, point: Point, machine: NpuMachine) -> list[float]:
        return [float(point["rows"]), float(ceil_div(op.rows, point["rows"])), float(op.n)]
