"""Choices of the packed matrix product, and an estimate of the time that each takes."""

from __future__ import annotations

import functools

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.cpu.register_tile import RegisterTile

_MAX_ROWS = 14
_MAX_VECTORS = 8


@functools.lru_cache(maxsize=256)  # each point of a space asks for them
def tile_choices(op: Matmul, machine: CpuModel, parts: int = 1) -> tuple[RegisterTile, ...]:
    """Register tiles that fit the register file, the best estimate first.

    ``parts`` is how many products of equal width lie side by side in one tile.
    """
    choices = []
    vectors_of_n = parts * -(-op.n // parts // machine.lanes)
    for vectors in range(parts, min(_MAX_VECTORS, vectors_of_n) + 1, parts):
        for rows in range(1, min(_MAX_ROWS, op.m) + 1):
            if (tile := RegisterTile(rows, vectors)).fits(machine):
                choices.append(tile)
    blocks = row_block_choices(op, machine)
    return tuple(sorted(choices, key=lambda t: min(estimate(op, t, b, machine) for b in blocks)))


def k_block_choices(op: Matmul, machine: CpuModel) -> list[int]:
    """Numbers of equal pieces that the reduction may be cut into; partial sums lie in Y."""
    if len(row_block_choices(op, machine)) == 1:
        return [1]
    return [b for b in (1, 2, 3, 4, 6, 8) if op.k % b == 0 and (b == 1 or op.k // b >= 256)]


def row_block_choices(op: Matmul, machine: CpuModel) -> list[int]:
    """Numbers of blocks that the rows may be cut into; every block has at least one row tile."""
    most = max(1, op.m // 4)
    wanted = {1, machine.threads, 2 * machine.threads, 4 * machine.threads}
    return sorted(b for b in wanted if b <= most)


def estimate(op: Matmul, tile: RegisterTile, row_blocks: int, machine: CpuModel, k_blocks: int = 1) -> float:
    """Cycles of one call on the busiest thread, from a port model of the register tile.

    Per k a tile of r rows costs the larger of FMA issue, load issue and FMA latency; 24 cycles per
    tile and piece of K go to its prologue and epilogue, and more to partial sums that come back.  X is
    streamed once per panel: when a block of it does not fit L2, that traffic is added.  Every further
    block of rows reads the weights again.  When every thread reads all rows, most of X comes from other
    cores' caches once.  A panel beyond L1 comes from L2 for every tile of rows.
    """
    rows, vectors, columns = tile.rows, tile.vectors, tile.columns(machine.lanes)
    far = max(0.0, 1.0 - machine.l2 / 2 / (op.m * op.n * 4 / row_blocks))  # share of Y beyond L2

    def per_k(r: int) -> float:
        issue = r * vectors / machine.fma_units
        loads = 0.5 * r + machine.load_cycles * vectors
        # Each row is a stream of its own, and rows a power of two apart share few sets of an 8-way L1.
        crowded = 1.0 + 0.02 * max(0, r - 8)
        # With few accumulators more than the bare latency shows: 8 of the needed 8 reach 91%.
        spare = 1.5 * machine.fma_latency * machine.fma_units
        thin = 1.0 + 0.25 * max(0.0, 1.0 - r * vectors / spare)
        once = 24 + (k_blocks - 1) * (48 + far * r * columns * 8 / 12.0)
        from_l2 = columns * 4 / machine.l2_bytes if op.k * columns * 4 > machine.l1 else 0.0
        return max(issue, loads, machine.fma_latency, from_l2) * crowded * thin + once / op.k

    full, rest = divmod(op.m, rows)
    panels = -(-op.n // columns)
    row_cost = full * per_k(rows) + (per_k(rest) if rest else 0.0)
    pieces = panels * row_blocks
    imbalance = -(-pieces // machine.threads) * machine.threads / pieces
    if row_blocks > 1:
        tiles = full + bool(rest)
        imbalance *= -(-tiles // row_blocks) * row_blocks / tiles
    block_bytes = op.m * op.k * 4 / row_blocks / k_blocks
    spill = max(0.0, 1.0 - machine.l2 / 2 / max(block_bytes, 1))
    traffic = spill * op.m * 4 / 80.0  # most of it is hidden by the hardware's prefetcher
    other = 1 - 1 / machine.threads
    foreign = 0.0 if row_blocks >= machine.threads else op.m * op.k * 4 * other / machine.far_bytes
    rereads = max(0.0, row_blocks / machine.threads - 1) * op.n * op.k * 4 / 50.0
    compute = (row_cost + traffic) * op.k * panels * imbalance / machine.threads + foreign + rereads
    # A panel and the next one, which is being fetched, push each other and X out of L2.
    compute *= 1.0 + 0.06 * max(0.0, 1.0 - 0.75 * machine.l2 / (2 * columns * op.k * 4 / k_blocks))
    # With few rows the weights' way from memory is what takes time; blocks of rows read all of them.
    weights = op.n * op.k * 4 / (machine.threads if row_blocks == 1 else 1) / machine.far_bytes
    return machine.beside_fetches(compute, weights)
