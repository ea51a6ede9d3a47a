"""The tiled product that all matrix multiplications and convolutions here share.

Loop structure, for a tile of rows x columns of the product and depth of its reduction::

    blockIdx.z over independent products, and parts of the reduction
      blockIdx.x over tiles, in groups of rows that share columns of W in L2
        threadIdx.y over warps, threadIdx.x over lanes
          steps of the reduction, as a pipeline of S stages in shared memory (see :mod:`.pipeline`)
            start copying the tiles of step + S - 1   # cp.async, 16 bytes a thread, permuted chunks
            fragments to registers, multiply          # ldmatrix and mma.sync, or float32 FMA
            wait for the next step's tiles; one barrier
          16 rows at a time: sums to shared memory, the epilogue on whole vectors, 16-byte stores

It is fast because copies run S - 1 steps ahead of the arithmetic and never pass through registers,
because each value read from shared memory is used by a whole row or column of fragments, because no
two lanes meet in a bank, and because results leave once, in whole vectors, with everything fused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from hetero_tvm.host.tvm import Buffer, Expr, T, tirx
from hetero_tvm.schedules.cuda import device
from hetero_tvm.schedules.cuda.products.fragments import SLAB, Element, Warp, warp_of
from hetero_tvm.schedules.cuda.products.operands import Matrix, Part, Reduction, Rows, Source
from hetero_tvm.schedules.cuda.products.pipeline import Stages, StepRange, run
from hetero_tvm.schedules.cuda.products.tiles import Tile
from hetero_tvm.schedules.cuda.values import whole
from hetero_tvm.schedules.emit import Kernel, int32

GRID_Z = 65535
"""Blocks along the third axis of a grid at most."""
_GROUP = 8
"""Tiles down that are worked on together: they share columns of W, and rows of X with their neighbours."""


class Epilogue(ABC):
    """The steps from the sums of one row to its results in memory.

    Attributes
    ----------
    vector : consecutive values that one lane works on; divides 16 columns.
    along_rows : neighbouring lanes take neighbouring rows (the result lies column after column).
    """

    vector: int
    along_rows = False

    def width(self, columns: Expr | int) -> Expr | int:
        """Results that ``columns`` columns of the product make; a number or an expression."""
        return columns

    def take(self, k: Kernel, shared: Expr, at: Expr, column: Expr, dtype: str) -> Buffer:
        """The ``vector`` sums of the results at ``column`` of a staged row, as a local buffer."""
        sums = k.scratch((self.vector,), dtype)
        device.call("htvm_take", shared, at + column * 4, device.pointer(sums), template=str(self.vector))
        return sums

    @abstractmethod
    def store(self, k: Kernel, sums: Buffer, row: Expr, column: Expr) -> None:
        """Finish and store ``vector`` results from ``column`` of ``row``; both may lie beyond the end."""


@dataclass(frozen=True)
class Block:
    """Position of a thread: its block's product, first row and column of the tile; its warp and lane."""

    product: Expr
    row: Expr
    column: Expr
    warp: Expr
    lane: Expr


@contextmanager
def blocks(k: Kernel, m: int, n: int, tile: Tile, products: int = 1) -> Iterator[Block]:
    """A launch of one block a tile, for ``products`` products of ``m`` rows and ``n`` columns."""
    down, across = -(-m // tile.rows), -(-n // tile.columns)
    several = products > GRID_Z  # then they share the first axis of the grid, which is longer
    with (
        T.launch_thread("blockIdx.z", 1 if several else products) as product,
        T.launch_thread("blockIdx.x", down * across * (products if several else 1)) as block,
        T.launch_thread("threadIdx.y", tile.threads // 32) as warp,
        T.launch_thread("threadIdx.x", 32) as lane,
    ):
        if several:
            product = device.fixed(k, block // (down * across))
            block = device.fixed(k, block % (down * across))
        i, j = _place_of(k, block, down, across)
        row, column = device.fixed(k, i * tile.rows), device.fixed(k, j * tile.columns)
        yield Block(product, row, column, warp, lane)


def _place_of(k: Kernel, block: Expr, down: int, across: int) -> tuple[Expr, Expr]:
    """Row and column of the tile that a block of a flat grid works on, groups of rows after each other."""
    if down == 1 or across == 1:
        return (int32(0), block) if down == 1 else (block, int32(0))
    group = min(_GROUP, down)
    number, within = device.fixed(k, block // (group * across)), device.fixed(k, block % (group * across))
    if down % group == 0:
        return device.fixed(k, number * group + within % group), device.fixed(k, within // group)
    height = device.fixed(k, tirx.min(int32(group), down - number * group))
    return device.fixed(k, number * group + within % height), device.fixed(k, within // height)


def packed_sources(
    k: Kernel, x: Buffer, w: Buffer, m: int, length: int, block: Block, tile: Tile, size: int
) -> Callable[[], tuple[Source, Source]]:
    """Sources of X [m, length] as it lies, and of W packed [columns, length], both in whole tiles."""
    packed = whole(length, tile.depth)

    def sources() -> tuple[Source, Source]:
        down = Part(block.row, m, tile.rows)
        across = Part(block.column, None, tile.columns)
        return (
            Rows(k, Matrix(x, 0, length), down, Reduction(length, tile.depth), size),
            Rows(k, Matrix(w, 0, packed), across, Reduction(packed, tile.depth), size),
        )

    return sources


def emit_tile(
    k: Kernel,
    tile: Tile,
    element: Element,
    sources: Callable[[], tuple[Source, Source]],
    steps: StepRange,
    epilogue: Epilogue,
    block: Block,
    across: bool = False,
    rounded: bool = False,
) -> None:
    """Emit the work of one block for one tile, inside of its thread extents.

    Parameters
    ----------
    sources : makes the operands (called once shared memory exists).
    across : whether W's tile is [depth, columns].
    rounded : whether W's values are rounded to tf32 already.
    """
    memory = T.alloc_buffer((tile.shared(element.size),), "uint8", scope="shared.dyn")
    shared = k.let(memory.access_ptr("rw"))
    if tile.group:
        shared = k.let(device.value("htvm_align", shared))
    operands = sources()
    thread = device.fixed(k, block.warp * 32 + block.lane)
    for source in operands:
        source.begin(thread, tile.threads)
    engine = warp_of(k, tile, element, across, rounded)
    engine.begin(block.warp, block.lane, shared)
    x_bytes = tile.rows * tile.depth * element.size
    nbytes = tile.stage_bytes(element.size)
    stages = Stages(k, shared, operands, steps, count=tile.stages, nbytes=nbytes, w_at=x_bytes)
    run(k, stages, engine)
    _finish(k, tile, element, engine, epilogue, shared, block)


def _finish(
    k: Kernel, tile: Tile, element: Element, engine: Warp, epilogue: Epilogue, shared: Expr, block: Block
) -> None:
    """Stage sums in shared memory and store results; each warp has its own rows and meets no barrier."""
    lane = block.lane
    pitch = tile.staging_pitch
    area = device.fixed(k, block.warp * (SLAB * pitch))
    width = epilogue.width(tile.warp_columns)
    across = width // epilogue.vector
    first_row = device.fixed(k, block.row + engine.down * tile.warp_rows)
    first_column = device.fixed(k, epilogue.width(block.column) + engine.right * width)
    for slab in range(tile.warp_rows // SLAB):
        engine.put(slab, shared, area, pitch)
        device.call("htvm_sync_warp")
        with k.unroll(max(1, SLAB * across // 32)) as turn:
            if epilogue.along_rows:
                row, column = (turn * 32 + lane) % SLAB, (turn * 32 + lane) // SLAB
            elif 32 % across == 0:  # the column is the same at every turn, and so is what a bias adds
                row, column = turn * (32 // across) + lane // across, lane % across
            else:
                row, column = (turn * 32 + lane) // across, (turn * 32 + lane) % across
            row, column = device.fixed(k, row), device.fixed(k, column * epilogue.vector)
            with k.when(lane < SLAB * across) if SLAB * across < 32 else nullcontext():
                sums = epilogue.take(k, shared, area + row * pitch, column, element.accumulator)
                epilogue.store(k, sums, first_row + (slab * SLAB + row), first_column + column)
        device.call("htvm_sync_warp")
