"""Tiles of products, and whether they fit the scratchpads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hetero_tvm.ops.matmul import RESIDUAL, Matmul
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.matmul.roles import NOTHING, Roles
from hetero_tvm.schedules.npu.tiles import aligned_rows, round_up

STATIONARY = ("x", "w", "none")


@dataclass(frozen=True)
class Tiles:
    """One choice: sizes in elements."""

    stationary: str
    tm: int
    tn: int
    tk: int
    slices: int
    """L0 steps of the reduction per streamed tile in L1."""
    sub: int
    """Tiles of the stationary operand per panel."""
    ring: int
    rows: int
    """Rows per piece of the epilogue."""
    parts: int = 1
    """Of the reduction, one after the other; the other sizes are those of a part."""

    def point(self) -> tuple[Any, ...]:
        """As the choice of a knob."""
        sizes = (self.stationary, self.tm, self.tn, self.tk, self.slices, self.sub, self.ring, self.rows)
        return sizes if self.parts == 1 else (*sizes, self.parts)


def part_of(op: Matmul, parts: int) -> Matmul:
    """One part of the reduction: the sum of those before it is one residual more."""
    return replace(op, k=op.k // parts, epilogue=(*op.epilogue, RESIDUAL))


def piece_rows(op: Matmul, tm: int, tn: int, spec: Any) -> int:
    """Rows per piece of the epilogue: some thousand elements, so that issue costs little and the last
    piece is short."""
    tiles = 2 * (1 + epilogue.temporaries(epilogue.split(op.epilogue).rest))
    room = spec.scratchpad("ub") * 7 // 8 // (2 * tiles * tn)
    wanted = max(1, 64 * spec.vector_lanes // tn)
    rows = max(1, min(tm, room, wanted))
    step = aligned_rows(1, 4 * tn, spec.alignment)  # pieces begin where a move out of L0C may
    return rows if rows == tm else min(tm, max(step, rows // step * step))


def l1_bytes(op: Matmul, t: Tiles, panels: int, held: Roles = NOTHING) -> int:
    """Of L1, with so many versions of the panel; without what is there anyway."""
    if t.parts > 1:
        return l1_bytes(part_of(op, t.parts), replace(t, parts=1), panels)
    if t.stationary == "w" and "x" in held:
        panels = t.ring  # nothing streams: the ring is one of panels
    part_x, part_w = t.tm * 2, t.tn * 2
    streamed, panel = (part_x, part_w) if t.stationary == "w" else (part_w, part_x)
    names = ("x", "w") if t.stationary == "w" else ("w", "x")
    depth = t.tk * t.slices * t.ring if t.stationary == "none" else panels * round_up(op.k, t.tk)
    total = 0 if names[0] in held else streamed * t.tk * t.slices * t.ring
    total += 0 if names[1] in held else panel * t.sub * depth
    return total


def fits(op: Matmul, t: Tiles, spec: Any, held: Roles = NOTHING, l1: int | None = None) -> bool:
    if t.parts > 1:
        whole = not held and t.stationary != "none" and op.k % t.parts == 0
        return whole and fits(part_of(op, t.parts), replace(t, parts=1), spec, NOTHING, l1)
    return (
        l1_bytes(op, t, 1, held) <= (spec.scratchpad("l1") if l1 is None else l1)
        and 4 * t.tm * t.tk <= spec.scratchpad("l0a")
        and 4 * t.tn * t.tk <= spec.scratchpad("l0b")
        and fits_l0c(t.sub, t.tm, t.tn, spec)
        and fits_ub(op, t.tn, t.rows, spec)
    )


def fits_l0c(sub: int, tm: int, tn: int, spec: Any) -> bool:
    """Whether the accumulators of a panel's tiles do."""
    return 4 * sub * aligned_rows(tm, 4 * tn, spec.alignment) * tn <= spec.scratchpad("l0c")


def fits_ub(op: Matmul, tn: int, rows: int, spec: Any) -> bool:
    """Whether pieces of the epilogue do."""
    tiles = 2 * (1 + epilogue.temporaries(epilogue.split(op.epilogue).rest))
    return 2 * tiles * rows * tn + 16 * tn <= spec.scratchpad("ub") * 15 // 16
