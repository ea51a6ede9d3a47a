"""Estimated cycles of a product, from its tiles."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from hetero_tvm.machines.npu.banks import bank_cycles
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.ops.matmul import RESIDUAL, Matmul
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.matmul.roles import NOTHING, Roles
from hetero_tvm.schedules.npu.matmul.tiles import Tiles, part_of
from hetero_tvm.schedules.npu.tiles import ISSUE, ceil_div

_ISSUE_MATRIX = 24
"""Cycles that a product costs the matrix unit's queue beyond its work."""


@dataclass(frozen=True)
class QueueCycles:
    """Estimated cycles of work of the queues, in the order of their fields.

    Parameters
    ----------
    dma : loads and stores of DRAM together.
    move : from L1 to L0A and L0B.
    matrix : products.
    vector : the way out of the accumulators, and the epilogue.
    ends : start and end of the kernel, which nothing overlaps.
    """

    dma: float
    move: float
    matrix: float
    vector: float
    ends: float

    @property
    def queues(self) -> tuple[float, float, float, float]:
        """Cycles of every queue, without the ends."""
        return self.dma, self.move, self.matrix, self.vector


def queue_cycles(op: Matmul, t: Tiles, spec: NPUSpec, held: Roles = NOTHING) -> QueueCycles:
    """Estimate the work of every queue with the operands ``held`` in L1."""
    if t.parts > 1:
        part = queue_cycles(part_of(op, t.parts), replace(t, parts=1), spec)
        dma, move, matrix, vector = (t.parts * cycles for cycles in part.queues)
        return QueueCycles(dma, move, matrix, vector, part.ends)
    m, n, k = op.m, op.n, op.k
    m_tiles, n_tiles, k_tiles = ceil_div(m, t.tm), ceil_div(n, t.tn), ceil_div(k, t.tk)
    inner, outer = (n_tiles, m_tiles) if t.stationary == "w" else (m_tiles, n_tiles)
    panels, blocks = ceil_div(inner, t.sub), outer
    x, w = ("x" not in held) * 2.0 * m * k, ("w" not in held) * 2.0 * k * n
    moved = {"x": x + w * panels, "w": w + x * panels, "none": x * blocks + w * panels}[t.stationary]
    residuals = op.epilogue.count(RESIDUAL) - (RESIDUAL in held)
    out = 2.0 * m * n
    dma = (moved + out * (("y" not in held) + residuals)) / spec.dram_bytes_per_cycle
    mmads = m_tiles * n_tiles * k_tiles
    depth = k - (k_tiles - 1) * t.tk
    last = m - (m_tiles - 1) * t.tm

    def column(rows: int) -> int:
        return (k_tiles - 1) * spec.matrix_cycles(rows, t.tn, t.tk) + spec.matrix_cycles(rows, t.tn, depth)

    matrix = float(n_tiles * ((m_tiles - 1) * column(t.tm) + column(last)) + mmads * _ISSUE_MATRIX)
    shared = mmads // max(1, min(t.sub, inner))
    a_moves, b_moves = (shared, mmads) if t.stationary == "w" else (mmads, shared)
    move = a_moves * (2.0 * t.tm * t.tk / spec.l1_to_l0a + ISSUE)
    move += b_moves * (2.0 * t.tn * t.tk / spec.l1_to_l0b + ISSUE)
    divisor = spec.transcendental_divisor
    rest = epilogue.split(op.epilogue).rest
    pieces = m_tiles * n_tiles * ceil_div(t.tm, t.rows)
    per_element = 4.0 / spec.l0c_to_ub + epilogue.passes(rest, divisor) / spec.vector_lanes
    vector = m * n * per_element
    # Narrow tiles of a matrix in L1 meet in few of its banks.
    in_banks = n_tiles * _banks(m, t.tn, n, spec.l1_to_l0a)
    if RESIDUAL in held:
        vector += max(0.0, in_banks - 4.0 * m * n / spec.l0c_to_ub)
    if "y" in held:
        vector = max(vector, in_banks)
    vector += pieces * ISSUE * (1 + len(rest))
    versions = 2 if 8 * t.sub * t.tm * t.tn <= spec.scratchpad("l0c") else 1
    store_rate = spec.l0c_to_ub if "y" in held else spec.dram_bytes_per_cycle
    if versions == 1:  # the next block's products wait until the accumulators are out
        out_rate = max(4.0 / spec.l0c_to_ub, 2.0 / store_rate)
        matrix += 1.2 * panels * blocks * t.sub * t.tm * t.tn * out_rate
    lines = ("x" not in held) * t.tm + ("w" not in held) * t.tn
    begin = lines * t.tk * t.slices * 2.0 / spec.dram_bytes_per_cycle + 2 * spec.dram_latency * (lines > 0)
    end = t.tm * t.tn * per_element
    end += t.rows * t.tn * 2.0 / store_rate
    if t.stationary != "none" and t.stationary not in held:
        # A panel is loaded while less than usual can run.
        width = t.sub * (t.tn if t.stationary == "w" else t.tm)
        begin += 0.25 * panels * width * k * 2.0 / spec.dram_bytes_per_cycle
    return QueueCycles(dma, move, matrix, vector, begin + end)


@functools.lru_cache(maxsize=1024)
def _banks(rows: int, columns: int, pitch: int, bytes_per_cycle: int) -> float:
    return bank_cycles((rows, columns), (2 * pitch, 2), 2, bytes_per_cycle)


def estimate(op: Matmul, t: Tiles, spec: NPUSpec, held: Roles = NOTHING) -> float:
    """Cycles of the kernel: the busiest queue, some of the others' work, and what does not overlap."""
    cycles = queue_cycles(op, t, spec, held)
    if "w" in held:
        # What is loaded and stored in a chain overlaps with the kernels around.
        rest = cycles.queues[1:]
        return max(rest) + 0.2 * sum(rest) + 0.02 * cycles.dma + cycles.ends
    busiest = max(cycles.queues)
    # The nearer the DMA is to the busiest queue, the more a deep ring is worth.
    jitter = 0.3 * busiest * (cycles.dma / busiest) ** 3 / (t.ring * t.slices)
    return busiest + cycles.ends + 0.02 * (sum(cycles.queues) - busiest) + jitter
