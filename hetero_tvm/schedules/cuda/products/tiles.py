"""Tiles of products: what fits a GPU, and which of them to try first."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.schedules.cuda.device import WGMMA_COLUMNS

CHUNK = 16
"""Bytes of one copy, one vector access, one row of an ``ldmatrix``."""

_STAGING_PAD = 32
"""Bytes between rows of staged results, so that they start in different banks."""


@dataclass(frozen=True)
class Tile:
    """Shape of a block's work.

    Parameters
    ----------
    rows, columns : of the product.
    depth : values of the reduction in one step.
    warps : down and across the tile.
    stages : tiles of both operands in shared memory at once.
    """

    rows: int
    columns: int
    depth: int
    warps: tuple[int, int]
    stages: int
    group: bool = False
    """Whether groups of four warps multiply together, out of shared memory (``wgmma``)."""

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps[0] * self.warps[1]

    @property
    def warp_rows(self) -> int:
        """Rows of one warp."""
        return self.rows // self.warps[0]

    @property
    def warp_columns(self) -> int:
        """Columns of one warp."""
        return self.columns // self.warps[1]

    @property
    def staging_pitch(self) -> int:
        """Bytes of a row of a warp's results in shared memory (4 a value)."""
        return self.warp_columns * 4 + _STAGING_PAD

    def stage_bytes(self, size: int) -> int:
        """Shared memory of one stage, with values of ``size`` bytes."""
        return (self.rows + self.columns) * self.depth * size

    def shared(self, size: int) -> int:
        """Bytes of shared memory; results pass through that of the pipeline, 16 rows of a warp at a time."""
        needed = max(self.stages * self.stage_bytes(size), self.threads // 32 * 16 * self.staging_pitch)
        return needed + (1024 if self.group else 0)  # to begin at a multiple of 1024

    @property
    def choice(self) -> tuple[int, ...]:
        """The tile as a knob's choice; a seventh number stands for warp groups."""
        plain = (self.rows, self.columns, self.depth, *self.warps, self.stages)
        return (*plain, 4) if self.group else plain

    @classmethod
    def of(cls, choice: tuple[int, ...]) -> Tile:
        """The tile of a knob's choice."""
        rows, columns, depth, down, across, stages, *group = choice
        return cls(rows, columns, depth, warps=(down, across), stages=stages, group=bool(group))


@dataclass(frozen=True)
class Problem:
    """A product as tiles see it.

    Parameters
    ----------
    m, n, k : rows, columns, length of the reduction; of ``batch`` independent products.
    size : bytes of a value.
    tensor_cores : whether tensor cores multiply it.
    across : whether the rows of W's tile lie along its columns, not along the reduction.
    """

    m: int
    n: int
    k: int
    size: int
    tensor_cores: bool = True
    batch: int = 1
    across: bool = False


# fmt: off
_TENSOR_TILES = (
    (128, 128, (2, 2)), (128, 256, (2, 4)), (256, 128, (4, 2)), (128, 64, (2, 2)), (64, 128, (2, 2)),
    (128, 128, (2, 4)), (64, 64, (2, 2)), (64, 32, (2, 2)), (32, 64, (2, 2)), (32, 128, (1, 4)),
    (16, 128, (1, 4)), (16, 64, (1, 4)), (32, 32, (2, 2)),
)
_FMA_TILES = (
    (128, 128, (2, 4)), (128, 64, (2, 2)), (64, 128, (1, 4)), (64, 64, (2, 2)), (64, 64, (1, 2)),
    (32, 64, (1, 2)), (64, 32, (2, 1)), (32, 128, (1, 4)), (16, 64, (1, 2)), (32, 32, (2, 1)),
    (16, 32, (1, 1)),
)
# fmt: on
_KNOWN = 4
"""Number of tiles before the first of warp groups, and of these before the rest."""
_STAGES = (3, 4, 2)
_GROUP_STAGES = (4, 3, 6)
"""Stages of warp groups: one is being multiplied, one may still be, the others are on their way."""


def tiles(problem: Problem, machine: GpuModel) -> list[Tile]:
    """The tiles that can be built for ``problem`` on ``machine``, the most promising first."""
    shapes = _TENSOR_TILES if problem.tensor_cores else _FMA_TILES
    found = [
        Tile(rows, columns, depth=nbytes // problem.size, warps=warps, stages=stages)
        for rows, columns, warps in shapes
        for nbytes in (64, 128)
        for stages in _STAGES
    ]
    steps = {tile: -(-problem.k // tile.depth) for tile in found}
    useful = [tile for tile in found if steps[tile] >= tile.stages]
    useful = useful or [tile for tile in found if tile.stages == 2 and tile.depth == found[0].depth]
    useful = [tile for tile in useful if fits(tile, problem, machine)]

    def order(tile: Tile) -> tuple[float, int]:
        return estimate(problem, tile, machine), -tile.stages

    plain, groups = sorted(useful, key=order), sorted(_group_tiles(problem, machine), key=order)
    return [*plain[:_KNOWN], *groups[:_KNOWN], *plain[_KNOWN:], *groups[_KNOWN:]]


def _group_tiles(problem: Problem, machine: GpuModel) -> list[Tile]:
    """Tiles of warp groups, where the GPU has them.

    No one has timed them: the first of all tiles, and those that are ranked without a GPU, are others; a
    search that measures comes to them next.
    """
    if machine.arch != "sm_90a" or not problem.tensor_cores or problem.across:
        return []
    found = [
        Tile(rows, columns, depth=128 // problem.size, warps=(rows // 16, 1), stages=stages, group=True)
        for rows in (128, 64)
        for columns in WGMMA_COLUMNS
        for stages in _GROUP_STAGES
    ]
    return [tile for tile in found if fits(tile, problem, machine)]


def fits(tile: Tile, problem: Problem, machine: GpuModel) -> bool:
    """Whether the tile divides evenly among warps, and registers and shared memory suffice."""
    down, right = tile.warps
    if tile.rows % (16 * down) or tile.columns % (16 * right) or tile.threads > 1024:
        return False
    if tile.depth * problem.size not in (32, 64, 128):
        return False
    if problem.across and tile.columns * problem.size < 128:  # fewer chunks than the permutation needs
        return False
    if tile.group and (tile.rows % 64 or tile.warps != (tile.rows // 16, 1) or problem.across):
        return False
    sums = tile.warp_rows * tile.warp_columns // 32
    if sums > (128 if problem.tensor_cores else 64):
        return False
    return tile.shared(problem.size) <= machine.shared_per_block


def estimate(problem: Problem, tile: Tile, machine: GpuModel) -> float:
    """Relative time of a product: whole waves of blocks, each bound by arithmetic or by its copies.

    A multiprocessor takes about 48 bytes a cycle from L2, and 128 from shared memory; with fewer than 8
    warps resident part of that is lost.
    """
    rate = _rate(problem, tile, machine)
    shared = tile.shared(problem.size)
    registers = tile.warp_rows * tile.warp_columns // 32 + 72  # of a thread: sums, fragments, addresses
    room = machine.registers_per_sm // (registers * tile.threads)
    resident = max(1, min(machine.shared_per_sm // (shared + 1024), room, 2048 // (tile.threads * 4)))
    blocks = problem.batch * -(-problem.m // tile.rows) * -(-problem.n // tile.columns)
    resident = min(resident, -(-blocks // machine.sms))
    waves = -(-blocks // (machine.sms * resident))
    busy = min(1.0, resident * tile.threads / 256)
    arithmetic = resident * tile.rows * tile.columns * tile.depth / (rate * busy)
    copies = resident * tile.stage_bytes(problem.size) / (48 * min(1.0, busy * tile.stages / 3))
    reads = resident * tile.threads // 32 * _reads(problem, tile)
    steps = -(-problem.k // tile.depth)
    parts = (arithmetic, copies, reads)
    step = max(parts) + 0.25 * (sum(parts) - max(parts))  # they overlap, and not wholly
    return waves * (steps * step + 600 + resident * tile.rows * tile.columns / 64)


def _rate(problem: Problem, tile: Tile, machine: GpuModel) -> float:
    """Multiply-adds of a multiprocessor in a cycle, with sums in 32 bits (the products' data sheets).

    The tensor cores of sm_90 do 4096 / size for warp groups; ``mma.sync`` was seen to reach 62% of that (Luo
    et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024).
    """
    small = machine.capability in (86, 89, 120)
    if not problem.tensor_cores:
        return 128 if small or machine.capability >= 90 else 64
    if small:
        return 1024 / problem.size
    if machine.capability >= 90:
        return 4096 / problem.size * (1.0 if tile.group else 0.62)
    return 2048 / problem.size


def _reads(problem: Problem, tile: Tile) -> float:
    """Cycles that shared memory takes to serve one warp for one step."""
    if tile.group:  # by the tensor cores themselves, beside their work
        return 0.0
    pitch = tile.depth * problem.size
    if problem.tensor_cores:  # 16 rows of 32 bytes in 4 cycles
        return pitch / 32 * (tile.warp_rows + tile.warp_columns) / 16 * 4
    return pitch / CHUNK * (tile.warp_rows / 8 + tile.warp_columns / 4) * 2  # two halves of a warp


def choices(found: Iterable[Tile]) -> tuple[tuple[int, ...], ...]:
    """Tiles as the choices of a knob."""
    return tuple(tile.choice for tile in found)


def features_of(problem: Problem, tile: Tile, machine: GpuModel) -> list[float]:
    """Numbers of a tile that the cost model sees."""
    blocks = problem.batch * -(-problem.m // tile.rows) * -(-problem.n // tile.columns)
    return [
        math.log2(tile.rows),
        math.log2(tile.columns),
        math.log2(tile.depth),
        float(tile.stages),
        math.log2(tile.threads),
        blocks / machine.sms,
        math.log2(max(1, problem.k // tile.depth)),
        tile.shared(problem.size) / machine.shared_per_sm,
        estimate(problem, tile, machine),
    ]
