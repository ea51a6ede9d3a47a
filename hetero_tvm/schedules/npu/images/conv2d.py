"""Convolutions on the matrix unit, channels last.

A convolution is a product of patches [pixels, taps x channels] with the weights; the patches are made
on the way from L1 to L0A (``im2col``), so an image is read from DRAM once per panel and never
unfolded in memory.  Rows of the product are whole rows of output pixels.

Loops as in :mod:`hetero_tvm.schedules.npu.matmul.kernel`, where the stationary operand is either a block of
the image (weights stream: deep layers) or a panel of the weights (the image streams: early layers).
With one tap, no stride and no padding it *is* that product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from hetero_tvm.host.tvm import tirx
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.matmul import RESIDUAL, Matmul
from hetero_tvm.schedules.base import Knob, Packer, Point
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.base import NpuSpace, image_layouts, other_layout
from hetero_tvm.schedules.npu.emit import L0A, L0B, L0C, L1, At
from hetero_tvm.schedules.npu.images.image import Image
from hetero_tvm.schedules.npu.matmul import choices, cost
from hetero_tvm.schedules.npu.matmul.kernel import Emitter
from hetero_tvm.schedules.npu.matmul.roles import Roles, on_chip, roles
from hetero_tvm.schedules.npu.matmul.space import NpuMatmulSpace
from hetero_tvm.schedules.npu.matmul.tiles import Tiles, fits, fits_l0c, fits_ub, piece_rows
from hetero_tvm.schedules.npu.tiles import ceil_div, even, extent_at


def as_product(op: Conv2d) -> Matmul:
    """Pixels x filters, reduced over taps and channels."""
    pixels = op.batch * op.out_height * op.out_width
    return Matmul((pixels,), op.filters, op.channels * op.kernel[0] * op.kernel[1], op.epilogue)


def is_plain(op: Conv2d) -> bool:
    """Whether patches are the pixels themselves."""
    return op.kernel == (1, 1) and op.strides == (1, 1) and not any(op.padding)


class NpuConv2dSpace(NpuSpace):
    """``ops.Conv2d`` without groups on the matrix unit."""

    name = "npu.conv2d"
    version = 1
    by_rows = True

    def refuses(self, op: FusedOp, machine: Any) -> str | None:
        if not isinstance(op, Conv2d):
            return f"is for conv2d, not {op.kind}"
        if reason := other_layout(op):
            return reason
        if op.groups != 1:
            return f"{op.groups} groups: the matrix unit takes convolutions without groups"
        if reason := epilogue.supported(op.epilogue):
            return reason
        if not any(True for _ in self._candidates(op, machine)):
            return f"rows of {op.width} x {op.channels} do not fit the scratchpads of {machine.spec.name}"
        return None

    def layouts(self, op: FusedOp) -> tuple[tuple[str, ...], str]:
        return image_layouts(op)

    def _candidates(self, op: Conv2d, machine: Any) -> Iterator[Tiles]:
        if is_plain(op):
            return choices.candidates(as_product(op), machine.spec)
        return candidates(op, machine.spec)

    def _cost(self, op: Conv2d, t: Tiles, machine: Any) -> float:
        if is_plain(op):
            return cost.estimate(as_product(op), t, machine.spec)
        return estimate(op, t, machine.spec)

    def knobs(self, op: FusedOp, machine: Any) -> tuple[Knob, ...]:
        ranked = sorted(self._candidates(op, machine), key=lambda t: self._cost(op, t, machine))
        return (Knob("tiles", tuple(t.point() for t in ranked[: choices.MOST])),)

    def default(self, op: FusedOp, machine: Any) -> Point:
        return {"tiles": min(self._candidates(op, machine), key=lambda t: self._cost(op, t, machine)).point()}

    def check(self, op: FusedOp, point: Point, machine: Any) -> None:
        value = point.get("tiles")
        possible = isinstance(value, tuple) and len(value) == 8 and (
            fits(as_product(op), Tiles(*value), machine.spec)
            if is_plain(op) else _fits(op, Tiles(*value), machine.spec)
        )  # fmt: skip
        if not possible:
            raise ValueError(f"{self.name}: tiles={value!r} do not fit {machine.spec.name}")

    def features(self, op: FusedOp, point: Point, machine: Any) -> list[float]:
        tiles = Tiles(*point["tiles"])
        return [*cost.queue_cycles(as_product(op), tiles, machine.spec), *map(float, point["tiles"][1:]),
                1e6 / self._cost(op, tiles, machine)]  # fmt: skip

    def pack(self, op: FusedOp, point: Point, machine: Any) -> dict[int, Packer]:
        """Weights as [taps, channels, filters], then as the product packs them."""
        panels = NpuMatmulSpace().pack(as_product(op), point, machine)[1]

        def packed(w: np.ndarray) -> np.ndarray:
            return panels(w.transpose(2, 3, 1, 0).reshape(-1, op.filters))

        return {1: packed}

    def matrix_cycles(self, op: FusedOp, spec: Any) -> float:
        product = as_product(op)
        return spec.matrix_cycles(product.m, product.n, product.k)

    def weight_elements(self, op: FusedOp, machine: Any) -> int:
        return op.filters * op.channels * op.kernel[0] * op.kernel[1]

    def emit(self, op: FusedOp, point: Point, machine: Any) -> Any:
        return self.emit_held(op, point, machine, frozenset())

    def on_chip(self, op: FusedOp) -> frozenset[int]:
        found = on_chip(op)
        # Patches of several images are no rows of one.
        return found if op.batch == 1 or is_plain(op) else found - {0}

    def in_place(
        self, op: FusedOp, machine: Any, held: frozenset[int], l1: int, most: int
    ) -> list[Point]:
        spec, held_roles = machine.spec, roles(op, held)
        if not is_plain(op) and "x" not in held_roles:
            return []
        found = choices.in_place(as_product(op), spec, held_roles, l1, most)
        return [point for point in found if is_plain(op) or _fits(op, Tiles(*point["tiles"]), spec)]

    def fitted(
        self, op: FusedOp, point: Point | None, machine: Any, held: frozenset[int], l1: int
    ) -> Point | None:
        held_roles, spec = roles(op, held), machine.spec
        if is_plain(op) or "x" in held_roles:
            return choices.fitted(as_product(op), point, spec, held_roles, l1)
        if held_roles - {"y"}:
            return None
        given = Tiles(*point["tiles"]) if point is not None else None
        if given is None or not _fits(op, given, spec, l1):
            fitting = [t for t in candidates(op, spec) if _fits(op, t, spec, l1)]
            if not fitting:
                return None
            given = min(fitting, key=lambda t: estimate(op, t, spec))
        return {"tiles": given.point(), "panels": 2 if _l1_bytes(op, given, 2) + 256 <= l1 else 1}

    def emit_held(self, op: FusedOp, point: Point, machine: Any, held: frozenset[int]) -> Any:
        tiles, held_roles, panels = Tiles(*point["tiles"]), roles(op, held), point.get("panels")
        copied = point.get("copied", 0)
        if is_plain(op):
            return Emitter(as_product(op), tiles, machine, held_roles, panels, copied=copied).run()
        if "x" in held_roles:
            image = Image(
                op.height, op.width, op.channels, op.kernel, op.strides, op.dilation, op.padding[:2],
                op.out_width,
            )  # fmt: skip
            return Emitter(as_product(op), tiles, machine, held_roles, panels, image, copied).run()
        return _Emitter(op, tiles, machine, held_roles, panels).run()


def candidates(op: Conv2d, spec: Any) -> Iterator[Tiles]:
    """Tiles of whole output rows that fit every scratchpad."""
    product = as_product(op)
    bn, bk = spec.matrix_block[1], spec.matrix_block[2]
    l0c = spec.scratchpad("l0c") // 4
    sizes = (32, 64, 128, 256, 512, 1024)
    heights = {even(op.out_height, max(1, pixels // op.out_width)) for pixels in sizes}
    for high in sorted(heights):
        tm = high * op.out_width
        for parts_n in (1, 2, 4, 8, 16):
            tn = even(op.filters, bn * parts_n, bn) if op.filters > bn else op.filters
            if tm * tn > l0c:
                continue
            room = min(spec.scratchpad("l0a") // (4 * tm), spec.scratchpad("l0b") // (4 * tn))
            for limit in {room, 256, 128, 64, 32}:
                if limit > room or limit < min(bk, product.k):
                    continue
                tk = even(product.k, max(bk, limit // bk * bk), bk) if product.k > bk else product.k
                for stationary in ("x", "w"):
                    span = ceil_div(op.filters, tn) if stationary == "w" else ceil_div(op.out_height, high)
                    for sub in {1, 2, 3, 4, span}:
                        if sub > span or sub * tm * tn > l0c:
                            continue
                        for slices in (1, 4):
                            if slices > 1 and (slices - 1) * tk >= product.k:
                                continue
                            rows = piece_rows(product, tm, tn, spec)
                            tiles = Tiles(stationary, tm, tn, tk, slices, sub, 2, rows)
                            if _fits(op, tiles, spec):
                                yield tiles


def _image_bytes(op: Conv2d, out_rows: int) -> int:
    return 2 * min(op.height, _rows_below(op, out_rows)) * op.width * op.channels


def _rows_below(op: Conv2d, out_rows: int) -> int:
    """Input rows under that many output rows."""
    return (out_rows - 1) * op.strides[0] + (op.kernel[0] - 1) * op.dilation[0] + 1


def _l1_bytes(op: Conv2d, t: Tiles, panels: int) -> int:
    """Of L1, with so many versions of the panel."""
    k = op.channels * op.kernel[0] * op.kernel[1]
    rows = t.tm // op.out_width
    if t.stationary == "w":
        return 2 * _image_bytes(op, rows) + panels * 2 * t.sub * t.tn * (k + t.tk)
    return panels * (_image_bytes(op, rows * t.sub) + 32) + 2 * t.ring * t.slices * t.tk * t.tn


def _fits(op: Conv2d, t: Tiles, spec: Any, l1: int | None = None) -> bool:
    if t.tm % op.out_width or t.stationary not in ("x", "w"):
        return False
    return (
        _l1_bytes(op, t, 1) + 256 <= (spec.scratchpad("l1") if l1 is None else l1)
        and 4 * t.tm * t.tk <= spec.scratchpad("l0a")
        and 4 * t.tn * t.tk <= spec.scratchpad("l0b")
        and fits_l0c(t.sub, t.tm, t.tn, spec)
        and fits_ub(as_product(op), t.tn, t.rows, spec)
    )


def estimate(op: Conv2d, t: Tiles, spec: Any) -> float:
    """The product's estimate, with the image's bytes in place of the patches'."""
    product = as_product(op)
    dma, move, matrix, vector, ends = cost.queue_cycles(product, t, spec)
    rows = t.tm // op.out_width
    blocks = op.batch * ceil_div(op.out_height, rows * (t.sub if t.stationary == "x" else 1))
    panels = ceil_div(ceil_div(op.filters, t.tn), t.sub) if t.stationary == "w" else 1
    image = blocks * panels * _image_bytes(op, rows * (t.sub if t.stationary == "x" else 1))
    weights = 2.0 * product.k * op.filters * (blocks if t.stationary == "x" else 1)
    out = 2.0 * product.m * op.filters * (1 + op.epilogue.count(RESIDUAL))
    dma = (image + weights + out) / spec.dram_bytes_per_cycle
    ends = 2 * spec.dram_latency + t.tm * t.tn * 4.0 / spec.l0c_to_ub
    ends += _image_bytes(op, rows) / spec.dram_bytes_per_cycle
    queues = (dma, move, matrix, vector)
    busiest = max(queues)
    return busiest + ends + 0.02 * (sum(queues) - busiest)


class _Emitter(Emitter):
    """The product's loops over images: ``self.op`` is the product, ``self.conv`` the convolution."""

    def __init__(
        self, op: Conv2d, tiles: Tiles, machine: Any, held: Roles, panels: int | None = None
    ):
        pixels = op.out_height * op.out_width
        super().__init__(replace(as_product(op), lead=(pixels,)), tiles, machine, held, panels)
        self.conv = op
        both = panels == 2 if panels else _l1_bytes(op, tiles, 2) <= machine.spec.scratchpad("l1")
        self.panels = 2 if both and (op.batch == 1 or tiles.stationary == "x") else 1
        self.batch = op.batch
        self.fill = 0
        """What lies outside of the image, where that is of int8."""

    def run(self) -> Any:
        op, c, k = self.op, self.conv, self.k
        with k:
            self.x = k.argument("X", (c.batch, c.height, c.width, c.channels), self.dtype)
            self._constants_and_result((c.batch, op.m, op.n))
            for_batch = k.loop(c.batch) if c.batch > 1 else _only()
            with for_batch as n:
                self.image_index = n
                self._blocks()
        return k.function

    def _blocks(self) -> None:
        op, c, t, k = self.op, self.conv, self.t, self.k
        rows = t.tm // c.out_width
        steps = ceil_div(op.k, t.tk)
        by_weights = t.stationary == "w"
        m_tiles, n_tiles = ceil_div(c.out_height, rows), ceil_div(op.n, t.tn)
        inner, outer = (n_tiles, m_tiles) if by_weights else (m_tiles, n_tiles)
        self._load_biases()
        with k.loop(ceil_div(inner, t.sub), buffers=self.panels) as p:
            count = extent_at(inner, t.sub, p)
            panel = image = None
            if by_weights:
                panel = k.alloc(L1, (t.sub, steps, t.tk, t.tn), self.dtype)
            else:
                image = self._load_image(p * (t.sub * rows), t.sub * rows)
            with k.loop(outer, buffers=2) as o:
                if by_weights:
                    image = self._load_image(o * rows, rows)
                with k.loop(1, buffers=self.versions):
                    acc = k.alloc(L0C, (t.sub, self.tile_rows, t.tn), self.accumulator)
                    self._products(p, o, count, panel, image, acc)
                    with k.loop(count) as s:
                        i, j = (o, p * t.sub + s) if by_weights else (p * t.sub + s, o)
                        self._finish(i, j, s, acc)

    def _load_image(self, out_row: Any, out_rows: int) -> tuple[Any, dict[str, Any]]:
        """The input rows under output rows ``out_row ...``: the buffer, and how patches lie in it."""
        c, k = self.conv, self.k
        held = min(c.height, _rows_below(c, out_rows))
        buffer = k.alloc(L1, (held, c.width, c.channels), self.dtype)
        first = out_row * c.strides[0] - c.padding[0]
        low = _at_least(first, 0)
        rows = _at_most(first + _rows_below(c, out_rows), c.height) - low
        n = self.image_index
        k.load(
            (rows, c.width, c.channels), At(buffer, lambda y, x, q: (y, x, q)),
            At(self.x, lambda y, x, q: (n, low + y, x, q)),
        )  # fmt: skip
        pixel = (1 if self.dtype == "int8" else 2) * c.channels
        geometry = {
            "fill": self.fill & 0xFF,
            "height": rows, "width": c.width, "channels": c.channels, "row_pitch": pixel * c.width,
            "pixel_pitch": pixel, "kernel_h": c.kernel[0], "kernel_w": c.kernel[1],
            "stride_h": c.strides[0], "stride_w": c.strides[1], "dilation_h": c.dilation[0],
            "dilation_w": c.dilation[1], "pad_top": low - first, "pad_left": c.padding[1],
            "out_width": c.out_width, "image_bytes": rows * (pixel * c.width),
        }  # fmt: skip
        return buffer, geometry

    def _products(self, p: Any, o: Any, count: Any, panel: Any, image: Any, acc: Any) -> None:
        op, t, k = self.op, self.t, self.k
        steps = ceil_div(op.k, t.tk)
        by_weights = t.stationary == "w"
        buffer, geometry = image
        with k.loop(ceil_div(steps, t.slices), buffers=t.ring) as k1:
            deep = t.slices * t.tk
            stream = None
            if by_weights:
                # A single panel serves all images; of several, each image loads its own again.
                once = self.batch > 1 and ceil_div(ceil_div(op.n, t.tn), t.sub) == 1
                fresh = tirx.all(o == 0, self.image_index == 0) if once else o == 0
                with k.when(fresh), k.loop(extent_at(steps, t.slices, k1)) as k0, k.loop(count) as s:
                    r = k1 * t.slices + k0
                    depth = extent_at(op.k, t.tk, r)
                    self._load_weights(At(panel, lambda a, b: (s, r, a, b)), p * t.sub + s, r, depth)
            else:
                stream = k.alloc(L1, (deep, t.tn), self.dtype)
                depth = extent_at(op.k, deep, k1)
                self._load_weights(At(stream, lambda a, b: (a, b)), o, k1 * t.slices, depth)
            with k.loop(extent_at(steps, t.slices, k1), buffers=2) as k0:
                r = k1 * t.slices + k0
                d = extent_at(op.k, t.tk, r)
                a0 = b0 = None
                if by_weights:
                    high = extent_at(op.m, t.tm, o)
                    a0 = k.alloc(L0A, (t.tm, t.tk), self.dtype)
                    self._patches(a0, high, d, r, 0, buffer, geometry)
                else:
                    width = extent_at(op.n, t.tn, o)
                    b0 = k.alloc(L0B, (t.tk, t.tn), self.dtype)
                    k.move(
                        (d, width), At(b0, lambda a, b: (a, b)),
                        At(stream, lambda a, b: (k0 * t.tk + a, b)),
                    )  # fmt: skip
                with k.loop(count, buffers=2) as s:
                    if by_weights:
                        width = extent_at(op.n, t.tn, p * t.sub + s)
                        b0 = k.alloc(L0B, (t.tk, t.tn), self.dtype)
                        k.move(
                            (d, width), At(b0, lambda a, b: (a, b)), At(panel, lambda a, b: (s, r, a, b))
                        )
                    else:
                        high = extent_at(op.m, t.tm, p * t.sub + s)
                        a0 = k.alloc(L0A, (t.tm, t.tk), self.dtype)
                        self._patches(a0, high, d, r, s * t.tm, buffer, geometry)
                    k.mmad(
                        (high, width, d), At(acc, lambda i, j, q: (s, i, j)),
                        At(a0, lambda i, j, q: (i, q)), At(b0, lambda i, j, q: (q, j)), r == 0,
                    )  # fmt: skip

    def _patches(self, a0: Any, high: Any, d: Any, r: Any, start: Any, buffer: Any, geometry: Any) -> None:
        fields = {**geometry, "m_start": start, "k_start": r * self.t.tk}
        self.k.im2col(
            (high, d), At(a0, lambda i, j: (i, j)), At(buffer, lambda y, x, q: (y, x, q)), fields
        )  # fmt: skip

    def _output(self, row: Any, column: Any, buffer: Any) -> At:
        n = self.image_index
        return At(buffer, lambda a, b: (n, row + a, column + b))


class _only:
    """A loop of one iteration that is not written down."""

    def __enter__(self) -> int:
        return 0

    def __exit__(self, *exc: Any) -> None:
        return None


def _at_least(value: Any, bound: int) -> Any:
    return max(value, bound) if isinstance(value, int) else tirx.max(value, bound)


def _at_most(value: Any, bound: int) -> Any:
    return min(value, bound) if isinstance(value, int) else tirx.min(value, bound)
