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
from typing import Any

import numpy as np

from hetero_tvm.host.tvm import tirx
from hetero_tvm.machines.npu.spec import BANK_BYTES
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.matmul import RESIDUAL, Matmul
from hetero_tvm.schedules.base import Knob, Packer, Point
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.base import NpuSpace, image_layouts, other_layout
from hetero_tvm.schedules.npu.emit import L0A, L0B, L0C, L1, At
from hetero_tvm.schedules.npu.images.windows import NpuDepthwiseSpace, Window
from hetero_tvm.schedules.npu.matmul.finish import Finish
from hetero_tvm.schedules.npu.matmul.roles import Roles, on_chip, roles
from hetero_tvm.schedules.npu.matmul.tiles import Tiles, fits_l0c, fits_ub, piece_rows
from hetero_tvm.schedules.npu.patches import Image
from hetero_tvm.schedules.npu.tiles import ceil_div, even, extent_at, round_up

_ISSUE = 12
"""Cycles that an instruction costs its queue beyond its work: its own issue and its flags'."""


def group_width(spec: Any) -> int:
    """Channels that one product takes: a block's columns, and no less than L1 passes at once."""
    return max(spec.matrix_block[1], BANK_BYTES // 2)


def as_product(op: Conv2d, spec: Any) -> Matmul:
    """Pixels x channels, reduced over taps and the channels of a group."""
    pixels = op.out_height * op.out_width
    return Matmul((pixels,), op.filters, math.prod(op.kernel) * group_width(spec), op.epilogue)


class NpuDepthwiseMatrixSpace(NpuSpace):
    """Depthwise ``ops.Conv2d`` on the matrix unit, where that takes less time than on the vector unit."""

    name = "npu.depthwise_matrix"
    version = 1
    by_rows = True

    def refuses(self, op: FusedOp, machine: Any) -> str | None:
        if not isinstance(op, Conv2d) or not op.depthwise:
            return f"is for depthwise convolutions, not {op.kind}"
        if reason := other_layout(op):
            return reason
        if reason := epilogue.supported(op.epilogue):
            return reason
        # Between products on both sides, as everywhere in mobile networks: the image need not leave L1.
        around = frozenset({"x", "y"})
        tiles = _candidates(op, machine.spec)
        here = min((_cost(op, t, machine.spec, around) for t in tiles), default=math.inf)
        if here == math.inf:
            return f"rows of {op.width} pixels do not fit the scratchpads of {machine.spec.name}"
        there = NpuDepthwiseSpace()
        if there.refuses(op, machine) is None:
            tile = there.default(op, machine)["tile"]
            if Window(op).cost(tile, machine.spec) < here:
                return "the vector unit takes less time"
        return None

    def layouts(self, op: FusedOp) -> tuple[tuple[str, ...], str]:
        return image_layouts(op)

    def knobs(self, op: FusedOp, machine: Any) -> tuple[Knob, ...]:
        ranked = sorted(_candidates(op, machine.spec), key=lambda t: _cost(op, t, machine.spec))
        return (Knob("tiles", tuple(t.point() for t in ranked[:32])),)

    def default(self, op: FusedOp, machine: Any) -> Point:
        return {"tiles": min(_candidates(op, machine.spec), key=lambda t: _cost(op, t, machine.spec)).point()}

    def features(self, op: FusedOp, point: Point, machine: Any) -> list[float]:
        tiles = Tiles(*point["tiles"])
        return [*map(float, point["tiles"][1:]), 1e6 / _cost(op, tiles, machine.spec)]

    def pack(self, op: FusedOp, point: Point, machine: Any) -> dict[int, Packer]:
        """Groups one after the other, each [taps x channels, channels] with a diagonal per tap; a last one of
        fewer channels has as many rows of them per tap, and zeros behind."""
        from hetero_tvm.machines.npu.numbers import numpy_dtype

        wide, tn = group_width(machine.spec), Tiles(*point["tiles"]).tn
        dtype = numpy_dtype(machine.short)

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

    def matrix_cycles(self, op: FusedOp, spec: Any) -> float:
        product, wide = as_product(op, spec), group_width(spec)
        return ceil_div(op.channels, wide) * spec.matrix_cycles(product.m, wide, product.k)

    def weight_elements(self, op: FusedOp, machine: Any) -> int:
        wide = group_width(machine.spec)
        return round_up(op.channels, wide) * wide * math.prod(op.kernel)

    def on_chip(self, op: FusedOp) -> frozenset[int]:
        found = on_chip(op)
        return found if op.batch == 1 else found - {0}

    def fitted(
        self, op: FusedOp, point: Point | None, machine: Any, held: frozenset[int], l1: int
    ) -> Point | None:
        held_roles, spec = roles(op, held), machine.spec
        given = Tiles(*point["tiles"]) if point is not None else None
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
        return {"tiles": given.point()}

    def cost(self, op: FusedOp, point: Point, machine: Any, held: frozenset[int]) -> float | None:
        return _cost(op, Tiles(*point["tiles"]), machine.spec, roles(op, held))

    def emit(self, op: FusedOp, point: Point, machine: Any) -> Any:
        return self.emit_held(op, point, machine, frozenset())

    def emit_held(self, op: FusedOp, point: Point, machine: Any, held: frozenset[int]) -> Any:
        tiles = Tiles(*point["tiles"])
        return _Emitter(op, tiles, machine, roles(op, held), point.get("copied", 0)).run()


def _candidates(
    op: Conv2d, spec: Any, held: Roles = frozenset(), l1: int | None = None
) -> Iterator[Tiles]:
    """Tiles that fit every scratchpad: of whole output rows, unless the image lies in L1."""
    product, wide = as_product(op, spec), group_width(spec)
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
                    tiles = Tiles("w", tm, tn, tk, 1, 1, 2, piece_rows(product, tm, tn, spec))
                    if _fits(op, tiles, spec, held, l1):
                        yield tiles


def _fits(op: Conv2d, t: Tiles, spec: Any, held: Roles, l1: int | None) -> bool:
    product, wide = as_product(op, spec), group_width(spec)
    if t.tn % wide or t.tk % wide or ("x" not in held and t.tm % op.out_width):
        return False
    own = 0 if "w" in held else 2 * t.ring * t.tn * product.k
    own += 0 if "x" in held else 4 * _rows_below(op, t.tm // op.out_width) * op.width * t.tn
    return (
        own + 256 <= (spec.scratchpad("l1") if l1 is None else l1)
        and 4 * t.tm * t.tk <= spec.scratchpad("l0a")
        and 4 * t.tn * product.k <= spec.scratchpad("l0b")
        and fits_l0c(1, t.tm, t.tn, spec)
        and fits_ub(product, t.tn, t.rows, spec)
    )


def _rows_below(op: Conv2d, out_rows: int) -> int:
    """Input rows under that many output rows."""
    reach = (out_rows - 1) * op.strides[0] + (op.kernel[0] - 1) * op.dilation[0] + 1
    return min(op.height, reach)


def _cost(op: Conv2d, t: Tiles, spec: Any, held: Roles = frozenset()) -> float:
    """Cycles: the busiest of matrix unit, patches, results and DRAM, and the first and last tile."""
    product, wide = as_product(op, spec), group_width(spec)
    tiles_m, groups = ceil_div(product.m, t.tm), ceil_div(op.channels, wide)
    steps = ceil_div(product.k, t.tk)
    each = spec.matrix_cycles(t.tm, wide, t.tk)
    pieces = t.tm * (t.tk // wide) * ceil_div(2 * wide, BANK_BYTES)
    patches = pieces * BANK_BYTES / spec.l1_to_l0a
    tile = steps * (max(each, patches) + 2 * _ISSUE)
    rest = epilogue.split(op.epilogue).rest
    passes = epilogue.passes(rest, spec.transcendental_divisor)
    elements = product.m * op.channels
    out = elements * (4.0 / spec.l0c_to_ub + passes / spec.vector_lanes)
    out += tiles_m * ceil_div(op.channels, t.tn) * ceil_div(t.tm, t.rows) * _ISSUE * (1 + len(rest))
    moved = 0 if "w" in held else groups * wide * product.k
    if "x" not in held:
        moved += tiles_m * _rows_below(op, t.tm // op.out_width) * op.width * op.channels
    moved += elements * (("y" not in held) + op.epilogue.count(RESIDUAL) - (RESIDUAL in held))
    dram = 2.0 * moved / spec.dram_bytes_per_cycle
    ends = 2 * spec.dram_latency * ("x" not in held) + tile * min(groups, t.tn // wide)
    ends += t.tm * t.tn * (4.0 / spec.l0c_to_ub + passes / spec.vector_lanes)
    return op.batch * max(tiles_m * groups * tile, out, dram) + ends


class _Emitter(Finish):
    """``self.op`` is the product of a group, but with all channels for columns."""

    def __init__(self, op: Conv2d, tiles: Tiles, machine: Any, held: Roles, copied: int):
        super().__init__(as_product(op, machine.spec), tiles, machine, held, copied=copied)
        self.conv, self.wide = op, group_width(machine.spec)

    def run(self) -> Any:
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
                        image = None if "x" in self.held else self._rows(p, o)
                        with k.loop(1, buffers=self.versions):
                            acc = k.alloc(L0C, (1, self.tile_rows, t.tn), self.accumulator)
                            self._products(p, o, b0, image, acc)
                            self._finish(o, p, 0, acc)
        return k.function

    def _diagonals(self, p: Any) -> tuple[tuple[Any, int], At]:
        """Those of all groups of a tile in L1: extents and region."""
        k, t, deep = self.k, self.t, self.op.k
        groups = extent_at(ceil_div(self.op.n, self.wide), t.tn // self.wide, p)
        box = (groups * deep, self.wide)
        source = At(self.w, lambda a, b: (p * (t.tn * deep) + a * self.wide + b,))
        if "w" in self.held:
            return box, source
        part = k.alloc(L1, (t.tn // self.wide * deep, self.wide), self.dtype)
        k.load(box, At(part, lambda a, b: (a, b)), source)
        return box, At(part, lambda a, b: (a, b))

    def _rows(self, p: Any, o: Any) -> tuple[Any, dict[str, Any]]:
        """The input rows under a tile in L1: the buffer, and how patches lie in it."""
        c, k, t, n = self.conv, self.k, self.t, self.image_index
        out_rows = t.tm // c.out_width
        count = extent_at(self.op.n, t.tn, p)
        buffer = k.alloc(L1, (_rows_below(c, out_rows), c.width, t.tn), self.dtype)
        first = o * out_rows * c.strides[0] - c.padding[0]
        low = tirx.max(first, 0)
        reach = (out_rows - 1) * c.strides[0] + (c.kernel[0] - 1) * c.dilation[0] + 1
        rows = tirx.min(first + reach, c.height) - low
        k.load(
            (rows, c.width, count), At(buffer, lambda y, x, q: (y, x, q)),
            At(self.x, lambda y, x, q: (n, low + y, x, p * t.tn + q)),
        )  # fmt: skip
        pixel = 2 * t.tn
        return buffer, {
            "height": rows, "width": c.width, "row_pitch": pixel * c.width, "pixel_pitch": pixel,
            "kernel_h": c.kernel[0], "kernel_w": c.kernel[1], "stride_h": c.strides[0],
            "stride_w": c.strides[1], "dilation_h": c.dilation[0], "dilation_w": c.dilation[1],
            "pad_top": low - first, "pad_left": c.padding[1], "out_width": c.out_width, "m_start": 0,
            "image_bytes": rows * (pixel * c.width),
        }  # fmt: skip

    def _products(self, p: Any, o: Any, b0: Any, image: Any, acc: Any) -> None:
        c, k, t, wide = self.conv, self.k, self.t, self.wide
        high = extent_at(self.op.m, t.tm, o)
        groups = extent_at(ceil_div(self.op.n, wide), t.tn // wide, p)
        taps, step = self.op.k // wide, t.tk // wide
        with k.loop(groups, buffers=2) as s:
            first = p * t.tn + s * wide
            count = wide if self.op.n % wide == 0 else tirx.min(wide, self.op.n - first)
            whole = Image(
                c.height, c.width, count, c.kernel, c.strides, c.dilation, c.padding[:2], c.out_width,
                c.channels,
            )  # fmt: skip
            with k.loop(ceil_div(taps, step), buffers=2) as r:
                d, begin = extent_at(taps, step, r) * count, r * step * count
                a0 = k.alloc(L0A, (t.tm, t.tk), self.dtype)
                if image is None:
                    whole.patches(k, a0, (high, d), o * t.tm, begin, self.x, first)
                else:
                    buffer, geometry = image
                    fields = {**geometry, "channels": count, "k_start": begin, "origin": 2 * s * wide}
                    k.im2col(
                        (high, d), At(a0, lambda i, j: (i, j)),
                        At(buffer, lambda y, x, q: (y, x, s * wide + q)), fields,
                    )  # fmt: skip
                k.mmad(
                    (high, count, d), At(acc, lambda i, j, q: (0, i, s * wide + j)),
                    At(a0, lambda i, j, q: (i, q)),
                    At(b0, lambda i, j, q: (s * self.op.k + begin + q, j)), r == 0,
                )  # fmt: skip

    def _output(self, row: Any, column: Any, buffer: Any) -> At:
        n = self.image_index
        return At(buffer, lambda a, b: (n, row + a, column + b))


