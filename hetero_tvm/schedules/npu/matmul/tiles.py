"""Tiles of products, and whether they fit the scratchpads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.ops.matmul import RESIDUAL, Matmul
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.base import KnobTile
from hetero_tvm.schedules.npu.matmul.roles import NOTHING, Roles
from hetero_tvm.schedules.npu.tiles import aligned_rows, round_up

STATIONARY = ("x", "w", "none")


@dataclass(frozen=True)
class Tiles(KnobTile):
    """Tile sizes of a product, in elements.

    Parameters
    ----------
    stationary : the operand of which a panel stays in L1: ``x``, ``w`` or ``none``.
    tm, tn, tk : rows, columns and depth of what the matrix unit takes from L0.
    slices : L0 steps of the reduction per streamed tile in L1.
    sub : tiles of the stationary operand per panel.
    ring : streamed tiles in L1 at once.
    rows : rows per piece of the epilogue.
    parts : parts of the reduction, one after the other; the other sizes are those of a part.
    """

    stationary: str
    tm: int
    tn: int
    tk: int
    slices: int
    sub: int
    ring: int
    rows: int
    parts: int = 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers without ``parts``, in the order of the knob."""
        return (self.tm, self.tn, self.tk, self.slices, self.sub, self.ring, self.rows)

    def choice(self) -> tuple[int | str, ...]:
        """The choice of the knob, which has ``parts`` only where there are several."""
        return (self.stationary, *self.sizes, *((self.parts,) if self.parts > 1 else ()))


def column_panels(w: np.ndarray, tn: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Weights [k, n] as column panels of ``tn`` one after the other, each contiguous, as ``dtype``: a tile of
    a stream is one run.  The last panel is as wide as the others, with zeros."""
    wide = np.zeros((w.shape[0], round_up(w.shape[1], tn)), dtype)
    wide[:, : w.shape[1]] = w
    return wide.reshape(w.shape[0], -1, tn).transpose(1, 0, 2).reshape(-1)


def part_of(op: Matmul, parts: int) -> Matmul:
    """The product of one part of the reduction: the sum of those before it is one residual more."""
    return replace(op, k=op.k // parts, epilogue=(*op.epilogue, RESIDUAL))


def _epilogue_tiles(op: Matmul) -> int:
    """Tiles of 2-byte elements that a piece of the epilogue takes, in two versions."""
    return 2 * (1 + epilogue.temporaries(epilogue.split(op.epilogue).rest))


def piece_rows(op: Matmul, tm: int, tn: int, spec: NPUSpec) -> int:
    """Rows per piece of the epilogue: some thousand elements, so that issue costs little and the last
    piece is short."""
    room = spec.scratchpad("ub") * 7 // 8 // (2 * _epilogue_tiles(op) * tn)
    wanted = max(1, 64 * spec.vector_lanes // tn)
    rows = max(1, min(tm, room, wanted))
    step = aligned_rows(1, 4 * tn, spec.alignment)  # pieces begin where a move out of L0C may
    return rows if rows == tm else min(tm, max(step, rows // step * step))


def l1_bytes(op: Matmul, t: Tiles, panels: int, held: Roles = NOTHING) -> int:
    """Bytes of L1 with ``panels`` versions of the panel, without operands that are held there anyway."""
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


def fits(op: Matmul, t: Tiles, spec: NPUSpec, held: Roles = NOTHING, l1: int | None = None) -> bool:
    """Whether the tiles fit every scratchpad, and ``l1`` bytes of L1."""
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


def fits_l0c(sub: int, tm: int, tn: int, spec: NPUSpec) -> bool:
    """Whether the accumulators of a panel's tiles fit L0C."""
    return 4 * sub * aligned_rows(tm, 4 * tn, spec.alignment) * tn <= spec.scratchpad("l0c")


def fits_ub(op: Matmul, tn: int, rows: int, spec: NPUSpec) -> bool:
    """Whether pieces of the epilogue fit the unified buffer."""
    return 2 * _epilogue_tiles(op) * rows * tn + 16 * tn <= spec.scratchpad("ub") * 15 // 16
