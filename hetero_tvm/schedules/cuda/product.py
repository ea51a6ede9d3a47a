"""The tiled product that all matrix multiplications and convolutions here share.

Loop structure, for a tile of rows x columns of the product and depth of its reduction::

    blockIdx.z over independent products, and parts of the reduction
      blockIdx.x over tiles, in groups of rows that share columns of W in L2
        threadIdx.y over warps, threadIdx.x over lanes
          steps of the reduction, as a pipeline of S stages in shared memory
            wait for this step's tiles; one barrier
            start copying the tiles of step + S - 1   # cp.async, 16 bytes a thread, permuted chunks
            fragments to registers, multiply          # ldmatrix and mma.sync, or float32 FMA
          16 rows at a time: sums to shared memory, the epilogue on whole vectors, 16-byte stores

It is fast because copies run S - 1 steps ahead of the arithmetic and never pass through registers,
because each value read from shared memory is used by a whole row or column of fragments, because no
two lanes meet in a bank, and because results leave once, in whole vectors, with everything fused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from hetero_tvm._bootstrap import import_tvm

tvm = import_tvm()

from tvm import tirx  # noqa: E402
from tvm.tirx.script.builder import ir as T  # noqa: E402

from hetero_tvm.schedules.cpu.emit import Kernel, int32  # noqa: E402
from hetero_tvm.schedules.cuda import device  # noqa: E402
from hetero_tvm.schedules.cuda.fragments import SLAB, Element, warp_of  # noqa: E402
from hetero_tvm.schedules.cuda.operands import Source  # noqa: E402
from hetero_tvm.schedules.cuda.tiles import Tile  # noqa: E402

_GROUP = 8
"""Tiles down that are worked on together: they share columns of W, and rows of X with their neighbours."""


class Epilogue(ABC):
    """What becomes of the sums of one row.

    Attributes
    ----------
    vector : consecutive values that one lane works on; divides 16 columns.
    along_rows : neighbouring lanes take neighbouring rows (the result lies column after column).
    """

    vector: int
    along_rows = False

    def width(self, columns: int) -> int:
        """Results that ``columns`` columns of the product make."""
        return columns

    def take(self, k: Kernel, shared: Any, at: Any, column: Any, dtype: str) -> Any:
        """The ``vector`` sums of the results at ``column`` of a staged row, as a local buffer."""
        sums = k.scratch((self.vector,), dtype)
        device.call("htvm_take", shared, at + column * 4, device.pointer(sums), template=str(self.vector))
        return sums

    @abstractmethod
    def store(self, k: Kernel, sums: Any, row: Any, column: Any) -> None:
        """Finish and store ``vector`` results from ``column`` of ``row``; both may lie beyond the end."""


def tiles_of(m: int, n: int, tile: Tile) -> tuple[int, int]:
    """Tiles down and across."""
    return -(-m // tile.rows), -(-n // tile.columns)


def place_of(k: Kernel, block: Any, down: int, across: int) -> tuple[Any, Any]:
    """Row and column of the tile that a block of a flat grid works on, groups of rows after each other."""
    if down == 1 or across == 1:
        return (int32(0), block) if down == 1 else (block, int32(0))
    group = min(_GROUP, down)
    number, within = device.fixed(k, block // (group * across)), device.fixed(k, block % (group * across))
    if down % group == 0:
        return device.fixed(k, number * group + within % group), device.fixed(k, within // group)
    height = device.fixed(k, tirx.min(int32(group), down - number * group))
    return device.fixed(k, number * group + within % height), device.fixed(k, within // height)


def emit_tile(
    k: Kernel,
    tile: Tile,
    element: Element,
    sources: Callable[[], tuple[Source, Source]],
    steps: tuple[Any, Any],
    epilogue: Epilogue,
    place: tuple[Any, Any],
    warp: Any,
    lane: Any,
    across: bool = False,
    rounded: bool = False,
) -> None:
    """What one block does for one tile, inside of its thread extents.

    Parameters
    ----------
    sources : makes the operands (called once shared memory exists).
    steps : first step of the reduction, and how many; ints or expressions.
    place : first row and first column (of the result) of the tile.
    across : W's tile is [depth, columns].
    rounded : W's values need no rounding (tf32).
    """
    first, count = steps
    stages = tile.stages
    memory = T.alloc_buffer((tile.shared(element.size),), "uint8", scope="shared.dyn")
    shared = k.let(memory.access_ptr("rw"))
    if tile.group:
        shared = k.let(device.value("htvm_align", shared))
    x, w = sources()
    thread = device.fixed(k, warp * 32 + lane)
    for source in (x, w):
        source.begin(thread, tile.threads)
    x_bytes = tile.rows * tile.depth * element.size
    stage_bytes = tile.stage_bytes(element.size)
    engine = warp_of(k, tile, element, across, rounded)
    engine.begin(warp, lane)

    def copy(step: Any) -> None:
        at = device.fixed(k, step % stages * stage_bytes)
        x.copy(shared, at, first + step)
        w.copy(shared, at + x_bytes, first + step)

    for step in range(stages - 1):
        if not isinstance(count, int):
            with k.when(int32(step) < count):
                copy(int32(step))
        elif step < count:
            copy(int32(step))
        device.call("htvm_commit")
    with k.serial(count) as step:
        device.call("htvm_wait", template=str(stages - 2))
        if tile.group:
            device.call("htvm_fence_async")
        T.evaluate(tirx.op.tvm_storage_sync("shared"))
        at = device.fixed(k, step % stages * stage_bytes)
        if tile.group:  # it multiplies while the copies are started
            engine.multiply(shared, at, at + x_bytes)
        with k.when(step + (stages - 1) < count):
            copy(step + (stages - 1))
        device.call("htvm_commit")
        if not tile.group:
            engine.multiply(shared, at, at + x_bytes)
        engine.finish()
    device.call("htvm_wait", template="0")
    T.evaluate(tirx.op.tvm_storage_sync("shared"))
    _finish(k, tile, element, engine, epilogue, shared, place, warp, lane)


def _finish(
    k: Kernel, tile: Tile, element: Element, engine: Any, epilogue: Epilogue, shared: Any,
    place: tuple[Any, Any], warp: Any, lane: Any,
) -> None:  # fmt: skip
    """Each warp stages its own rows and needs no barrier with the others."""
    pitch = tile.staging_pitch
    area = device.fixed(k, warp * (SLAB * pitch))
    width = epilogue.width(tile.warp_columns)
    across = width // epilogue.vector
    first_row = device.fixed(k, place[0] + engine.down * tile.warp_rows)
    first_column = device.fixed(k, place[1] + engine.right * width)
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
