"""Depthwise convolutions on the matrix unit, channels last.

Some channels at a time, as many as a block of the matrix unit is wide, are a product of patches
[pixels, taps x channels] with a matrix that has one diagonal per tap; the patches are made on the way from
L1 to L0A (``im2col``), which takes those channels out of every pixel.

Loops::

    for channels of a tile:      L0B <- diagonals of its groups
      for pixels:                L1 <- the rows under them, unless the image lies there
        for group, part of the taps:   L0A <- patches;  mmad
        UB <- L0C + bias; epilogue;    DRAM or L1 <- UB

Why it is fast: all but one of a block's columns meet zeros, and still the unit does some ten times as many
useful products per cycle as the vector unit has lanes over the taps.  And the vector unit takes images from
DRAM only: here they stay in L1 between the products around, whole or by strips.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hetero_tvm.host.tvm import Buffer, PrimFunc
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.machines.npu.spec import BANK_BYTES, NPUSpec
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.matmul import RESIDUAL, Matmul
from hetero_tvm.schedules.base import Packer, Point
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.base import RankedSpace, image_layouts, other_layout
from hetero_tvm.schedules.npu.emit import L0A, L0B, L0C, L1, At
from hetero_tvm.schedules.npu.images.depthwise import NpuDepthwiseSpace
from hetero_tvm.schedules.npu.images.image_rows import ImageRows, load_rows, rows_below
from hetero_tvm.schedules.npu.images.windows import Window, WindowTile
from hetero_tvm.schedules.npu.matmul.finish import ProductFinish
from hetero_tvm.schedules.npu.matmul.roles import NOTHING, Roles, on_chip, roles
from hetero_tvm.schedules.npu.matmul.tiles import Tiles, fits_l0c, fits_ub, piece_rows
from hetero_tvm.schedules.npu.patches import Image
from hetero_tvm.schedules.npu.tiles import ISSUE, ceil_div, even, extent_at, least, round_up

_MOST = 32
"""Number of tiles that the space offers."""


def group_width(spec: NPUSpec) -> int:
    """Channels that one product takes: a block's columns, and no less than L1 passes at once."""
    return max(spec.matrix_block[1], BANK_BYTES // 2)


def _as_product(op: Conv2d, spec: NPUSpec) -> Matmul:
    """The convolution as a product: pixels x channels, reduced over taps and the channels of a group."""
    pixels = op.out_height * op.out_width
    return Matmul((pixels,), op.filters, math.prod(op.kernel) * group_width(spec), op.epilogue)


class NpuDepthwiseMatrixSpace(RankedSpace):
    """Depthwise ``ops.Conv2d`` on the matrix unit, where that takes less time than on the vector unit."""

    name = "npu.depthwise_matrix"
    version = 1
    operator = Conv2d
    by_rows = True

    def unsupported(self, op: Conv2d, machine: NpuMachine) -> str | None:
        if not op.depthwise:
            return f"is for depthwise convolutions, not {op.kind}"
        if reason := other_layout(op) or epilogue.supported(op.epilogue):
            return reason
        # Between products on both sides, as everywhere in mobile networks: the image need not leave L1.
        around = frozenset({"x", "y"})
        tiles = _candidates(op, machine.spec)
        here = min((_cost(op, t, machine.spec, around) for t in tiles), default=math.inf)
        if here == math.inf:
            return f"rows of {op.width} pixels do not fit the scratchpads of {machine.spec.name}"
        there = NpuDepthwiseSpace()
        if there.refuses(op, machine) is None:
            tile = WindowTile.of(there.default(op, machine))
            if Window(op).cost(tile, machine.spec) < here:
                return "the vector unit takes less time"
        return None

    def layouts(self, op: Conv2d) -> tuple[tuple[str, ...], str]:
        return image_layouts(op)

    def ranked(self, op: Conv2d, machine: NpuMachine) -> list[tuple[int | str, ...]]:
        tiles = sorted(_candidates(op, machine.spec), key=lambda t: _cost(op, t, machine.spec))
        return [t.choice() for t in tiles[:_MOST]]

    def features(self, op: Conv2d, point: Point, machine: NpuMachine) -> list[float]:
        tiles = Tiles.of(point)
        return [*map(float, tiles.sizes), 1e6 / _cost(op, tiles, machine.spec)]

    def estimate(self, op: Conv2d, point: Point, machine: NpuMachine) -> float | None:
        return _cost(op, Tiles.of(point), machine.spec)

    def pack(self, op: Conv2d, point: Point, machine: NpuMachine) -> dict[int, Packer]:
        """Groups one after the other, each [taps x channels, channels] with a diagonal per tap; a last one of
        fewer channels has as many rows of them per tap, and zeros behind."""
        wide, tn, dtype = group_width(machine.spec), Tiles.of(point).tn, machine.numpy_dtype

        def diagonals(w: np.ndarray) -> np.ndarray:
            channels, taps = round_up(op.channels, tn), math.prod(op.kernel)
            rows = np.zeros((channels, taps), dtype)
            rows[: op.channels] = w.reshape(op.channels, taps)
            packed = np.zeros((channels // wide, taps * wide, wide), dtype)
            for start in range(0, op.channels, wide):
                count = min(wide, op.channels - start)
                tap, channel = np.divmod(np.arange(taps * count), count)
                packed[start // wide, np.arange(taps * count), channel] = rows[start + channel, tap]
            return packed.reshape(-1)

        return {1: diagonals}

    def matrix_cycles(self, op: Conv2d, spec: NPUSpec) -> float:
        product, wide = _as_product(op, spec), group_width(spec)
        return ceil_div(op.channels, wide) * spec.matrix_cycles(product.m, wide, product.k)

    def weight_elements(self, op: Conv2d, machine: NpuMachine) -> int:
        wide = group_width(machine.spec)
        return round_up(op.channels, wide) * wide * math.prod(op.kernel)

    def on_chip(self, op: Conv2d) -> frozenset[int]:
        found = on_chip(op)
        return found if op.batch == 1 else found - {0}

    def fitted(
        self, op: Conv2d, point: Point | None, machine: NpuMachine, held: frozenset[int], l1: int
    ) -> Point | None:
        held_roles, spec = roles(op, held), machine.spec
        given = Tiles.of(point) if point is not None else None
        if given is None or not _fits(op, given, spec, held_roles, l1):
            fitting = _candidates(op, spec, held_roles, l1)
            given = min(fitting, key=lambda t: _cost(op, t, spec, held_roles), default=None)
        if given is None:
            return None
        # Diagonals arrive while the kernel before computes, as far as there is room.
        while given.ring < ceil_div(op.channels, given.tn) and "w" not in held_roles:
            deeper = replace(given, ring=2 * given.ring)
            if not _fits(op, deeper, spec, held_roles, l1):
                break
            given = deeper
        return {"tiles": given.choice()}

    def cost(self, op: Conv2d, point: Point, machine: NpuMachine, held: frozenset[int]) -> float | None:
        return _cost(op, Tiles.of(point), machine.spec, roles(op, held))

    def emit_held(self, op: Conv2d, point: Point, machine: NpuMachine, held: frozenset[int]) -> PrimFunc:
        copied = point.get("copied", 0)
        return _DepthwiseEmitter(op, Tiles.of(point), machine, roles(op, held), copied).run()


def _candidates(op: Conv2d, spec: NPUSpec, held: Roles = NOTHING, l1: int | None = None) -> Iterator[Tiles]:
    """Tiles that fit every scratchpad: of whole output rows, unless the image lies in L1."""
    product, wide = _as_product(op, spec), group_width(spec)
    groups = ceil_div(op.channels, wide)
    for sub in {min(groups, n) for n in (1, 2, 4, 8)}:
        tn = sub * wide
        for tk in dict.fromkeys((product.k, op.kernel[1] * wide, wide)):
            most = min(spec.scratchpad("l0a") // (4 * tk), spec.scratchpad("l0c") // (4 * tn))
            if "x" in held:
                heights = {even(product.m, most, spec.matrix_block[0]), even(product.m, most)}
            else:
                rows = most // op.out_width
                heights = {even(op.out_height, rows) * op.out_width, rows * op.out_width}
            for tm in heights:
                if 0 < tm <= product.m:
                    tiles = Tiles(
                        "w", tm, tn, tk, slices=1, sub=1, ring=2, rows=piece_rows(product, tm, tn, spec)
                    )
                    if _fits(op, tiles, spec, held, l1):
                        yield tiles


def _fits(op: Conv2d, t: Tiles, spec: NPUSpec, held: Roles, l1: int | None) -> bool:
    """Whether the tiles fit every scratchpad, and ``l1`` bytes of L1."""
    product, wide = _as_product(op, spec), group_width(spec)
    if t.tn % wide or t.tk % wide or ("x" not in held and t.tm % op.out_width):
        return False
    own = 0 if "w" in held else 2 * t.ring * t.tn * product.k
    own += 0 if "x" in held else 4 * _loaded_rows(op, t) * op.width * t.tn
    return (
        own + 256 <= (spec.scratchpad("l1") if l1 is None else l1)
        and 4 * t.tm * t.tk <= spec.scratchpad("l0a")
        and 4 * t.tn * product.k <= spec.scratchpad("l0b")
        and fits_l0c(1, t.tm, t.tn, spec)
        and fits_ub(product, t.tn, t.rows, spec)
    )


def _loaded_rows(op: Conv2d, t: Tiles) -> int:
    """Input rows under a tile."""
    return min(op.height, rows_below(op, t.tm // op.out_width))


def _cost(op: Conv2d, t: Tiles, spec: NPUSpec, held: Roles = NOTHING) -> float:
    """Cycles: the busiest of matrix unit, patches, results and DRAM, and the first and last tile."""
    product, wide = _as_product(op, spec), group_width(spec)
    tiles_m, groups = ceil_div(product.m, t.tm), ceil_div(op.channels, wide)
    steps = ceil_div(product.k, t.tk)
    each = spec.matrix_cycles(t.tm, wide, t.tk)
    pieces = t.tm * (t.tk // wide) * ceil_div(2 * wide, BANK_BYTES)
    patches = pieces * BANK_BYTES / spec.l1_to_l0a
    tile = steps * (max(each, patches) + 2 * ISSUE)
    rest = epilogue.split(op.epilogue).rest
    passes = epilogue.passes(rest, spec.transcendental_divisor)
    elements = product.m * op.channels
    out = elements * (4.0 / spec.l0c_to_ub + passes / spec.vector_lanes)
    out += tiles_m * ceil_div(op.channels, t.tn) * ceil_div(t.tm, t.rows) * ISSUE * (1 + len(rest))
    moved = 0 if "w" in held else groups * wide * product.k
    if "x" not in held:
        moved += tiles_m * _loaded_rows(op, t) * op.width * op.channels
    moved += elements * (("y" not in held) + op.epilogue.count(RESIDUAL) - (RESIDUAL in held))
    dram = 2.0 * moved / spec.dram_bytes_per_cycle
    ends = 2 * spec.dram_latency * ("x" not in held) + tile * min(groups, t.tn // wide)
    ends += t.tm * t.tn * (4.0 / spec.l0c_to_ub + passes / spec.vector_lanes)
    return op.batch * max(tiles_m * groups * tile, out, dram) + ends


class _DepthwiseEmitter(ProductFinish):
    """Writes the loops: ``self.op`` is the product of a group, but with all channels for columns."""

    def __init__(self, op: Conv2d, tiles: Tiles, machine: NpuMachine, held: Roles, copied: int):
        super().__init__(_as_product(op, machine.spec), tiles, machine, held, copied=copied)
        self.conv, self.wide = op, group_width(machine.spec)

    def run(self) -> PrimFunc:
        c, k, t = self.conv, self.k, self.t
        with k:
            self.x = k.argument("X", (c.batch, c.height, c.width, c.channels), self.dtype, self._scope("x"))
            self._constants_and_result((c.batch, self.op.m, self.op.n))
            self._load_biases()
            with k.loop(ceil_div(self.op.n, t.tn), buffers=t.ring) as p:
                box, source = self._diagonals(p)
                with k.loop(1, buffers=2):
                    b0 = k.alloc(L0B, (t.tn // self.wide * self.op.k, self.wide), self.dtype)
                    k.move(box, At(b0, lambda a, b: (a, b)), source)
                    with k.loop(c.batch) as n, k.loop(ceil_div(self.op.m, t.tm), buffers=2) as o:
                        self.image_index = n
                        rows = None if "x" in self.held else self._load_image(p, o)
                        with k.loop(1, buffers=self.versions):
                            acc = k.alloc(L0C, (1, self.tile_rows, t.tn), self.accumulator)
                            self._products(p, o, b0, rows, acc)
                            self._finish(o, p, 0, acc)
        return k.function

    def _diagonals(self, p: Index) -> tuple[tuple[Index, int], At]:
        """Extents and region, in L1, of the diagonals of all groups of tile ``p``."""
        k, t, deep = self.k, self.t, self.op.k
        groups = extent_at(ceil_div(self.op.n, self.wide), t.tn // self.wide, p)
        box = (groups * deep, self.wide)
        source = At(self.w, lambda a, b: (p * (t.tn * deep) + a * self.wide + b,))
        if "w" in self.held:
            return box, source
        part = At(k.alloc(L1, (t.tn // self.wide * deep, self.wide), self.dtype), lambda a, b: (a, b))
        k.load(box, part, source)
        return box, part

    def _load_image(self, p: Index, o: Index) -> ImageRows:
        """Load the input rows under a tile, its channels only."""
        c, t = self.conv, self.t
        out_rows = t.tm // c.out_width
        count = extent_at(self.op.n, t.tn, p)
        return load_rows(self.k, c, self.x, self.image_index, o * out_rows, out_rows, p * t.tn, count, t.tn)

    def _products(self, p: Index, o: Index, b0: Buffer, rows: ImageRows | None, acc: Buffer) -> None:
        """Multiply patches of pixel tile ``o`` with the diagonals of every group of tile ``p``; the patches
        come from the rows given, or from X in L1."""
        c, k, t, wide = self.conv, self.k, self.t, self.wide
        high = extent_at(self.op.m, t.tm, o)
        groups = extent_at(ceil_div(self.op.n, wide), t.tn // wide, p)
        taps, step = self.op.k // wide, t.tk // wide
        with k.loop(groups, buffers=2) as s:
            first = p * t.tn + s * wide
            count = wide if self.op.n % wide == 0 else least(wide, self.op.n - first)
            image = Image.of(c, count, c.channels)
            with k.loop(ceil_div(taps, step), buffers=2) as r:
                d, begin = extent_at(taps, step, r) * count, r * step * count
                a0 = k.alloc(L0A, (t.tm, t.tk), self.dtype)
                if rows is None:
                    image.patches(k, a0, (high, d), o * t.tm, begin, self.x, first)
                else:
                    fields = image.fields(rows.count, rows.pad_top, 2 * t.tn)
                    fields |= {"m_start": 0, "k_start": begin, "origin": 2 * s * wide}
                    source = At(rows.buffer, lambda y, x, q: (y, x, s * wide + q))
                    k.im2col((high, d), At(a0, lambda i, j: (i, j)), source, fields)
                sums = At(acc, lambda i, j, q: (0, i, s * wide + j))
                diagonals = At(b0, lambda i, j, q: (s * self.op.k + begin + q, j))
                k.mmad((high, count, d), sums, At(a0, lambda i, j, q: (i, q)), diagonals, r == 0)

    def _output(self, row: Index, column: Index, buffer: Buffer) -> At:
        n = self.image_index
        return At(buffer, lambda a, b: (n, row + a, column + b))
