"""Convolutions on the matrix unit, channels last.

A convolution is a product of patches [pixels, taps x channels] with the weights; the patches are made
on the way from L1 to L0A (``im2col``), so an image is read from DRAM once per panel and never
unfolded in memory.  Rows of the product are whole rows of output pixels.

Loops as in :mod:`hetero_tvm.schedules.npu.matmul.kernel`, where the stationary operand is either a block of
the image (weights stream: deep layers) or a panel of the weights (the image streams: early layers)::

    for panel:                       L1 <- panel: rows of the image, or weights
      for block of the stream:       L1 <- rows of the image, where weights are the panel
        for k:                       L1 <- weights, tile by tile of the reduction
          for k0, s in sub:          L0A <- patches;  L0B <- weights;  mmad
        for s in sub, rows of the tile: UB <- L0C + bias; epilogue; DRAM <- UB
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from hetero_tvm.host.tvm import Buffer, PrimFunc, tirx
from hetero_tvm.machines.npu.machine import NpuMachine
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu.emit import L0A, L0B, L0C, L1, At
from hetero_tvm.schedules.npu.images.conv2d_tiles import as_product, l1_bytes
from hetero_tvm.schedules.npu.images.image_rows import ImageRows, load_rows
from hetero_tvm.schedules.npu.matmul.kernel import ProductEmitter
from hetero_tvm.schedules.npu.matmul.roles import NOTHING, Roles
from hetero_tvm.schedules.npu.matmul.tiles import Tiles
from hetero_tvm.schedules.npu.patches import Image
from hetero_tvm.schedules.npu.tiles import ceil_div, extent_at


class Conv2dEmitter(ProductEmitter):
    """Writes the product's loops over images: ``self.op`` is the product, ``self.conv`` the convolution."""

    def __init__(
        self,
        op: Conv2d,
        tiles: Tiles,
        machine: NpuMachine,
        held: Roles = NOTHING,
        panels: int | None = None,
    ):
        pixels = op.out_height * op.out_width
        super().__init__(replace(as_product(op), lead=(pixels,)), tiles, machine, held, panels)
        self.conv = op
        both = panels == 2 if panels else l1_bytes(op, tiles, 2) <= machine.spec.scratchpad("l1")
        self.panels = 2 if both and (op.batch == 1 or tiles.stationary == "x") else 1
        self.fill = 0
        """Value of the padding around images of int8."""

    def run(self) -> PrimFunc:
        op, c, k = self.op, self.conv, self.k
        with k:
            self.x = k.argument("X", (c.batch, c.height, c.width, c.channels), self.dtype)
            self._constants_and_result((c.batch, op.m, op.n))
            with k.loop(c.batch) if c.batch > 1 else nullcontext(0) as n:
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

    def _load_image(self, out_row: Index, out_rows: int) -> ImageRows:
        """Load the input rows under output rows ``out_row ...``."""
        c = self.conv
        return load_rows(self.k, c, self.x, self.image_index, out_row, out_rows, 0, c.channels, c.channels)

    def _products(
        self, p: Index, o: Index, count: Index, panel: Buffer | None, image: ImageRows, acc: Buffer
    ) -> None:
        """Reduce the ``count`` tiles of panel ``p`` for block ``o`` of the stream into ``acc``."""
        op, t, k = self.op, self.t, self.k
        steps = ceil_div(op.k, t.tk)
        by_weights = t.stationary == "w"
        with k.loop(ceil_div(steps, t.slices), buffers=t.ring) as k1:
            deep = t.slices * t.tk
            stream = None
            if by_weights:
                # A single panel serves all images; of several, each image loads its own again.
                once = self.conv.batch > 1 and ceil_div(ceil_div(op.n, t.tn), t.sub) == 1
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
                    self._patches(a0, (high, d), r, 0, image)
                else:
                    width = extent_at(op.n, t.tn, o)
                    b0 = k.alloc(L0B, (t.tk, t.tn), self.dtype)
                    source = At(stream, lambda a, b: (k0 * t.tk + a, b))
                    self._move_weights(b0, (d, width), o, r, source)
                with k.loop(count, buffers=2) as s:
                    if by_weights:
                        j = p * t.sub + s
                        width = extent_at(op.n, t.tn, j)
                        b0 = k.alloc(L0B, (t.tk, t.tn), self.dtype)
                        self._move_weights(b0, (d, width), j, r, At(panel, lambda a, b: (s, r, a, b)))
                    else:
                        high = extent_at(op.m, t.tm, p * t.sub + s)
                        a0 = k.alloc(L0A, (t.tm, t.tk), self.dtype)
                        self._patches(a0, (high, d), r, s * t.tm, image)
                    self._multiply((high, width, d), a0, b0, acc, s, r == 0)

    def _patches(self, a0: Buffer, box: tuple[Index, Index], r: Index, start: Index, rows: ImageRows) -> None:
        """Move the patches of output pixels ``start ...`` of the rows, step ``r`` of the reduction."""
        pixel_bytes = (1 if self.dtype == "int8" else 2) * self.conv.channels
        fields = Image.of(self.conv).fields(rows.count, rows.pad_top, pixel_bytes)
        fields |= {"fill": self.fill & 0xFF, "m_start": start, "k_start": r * self.t.tk}
        source = At(rows.buffer, lambda y, x, c: (y, x, c))
        self.k.im2col(box, At(a0, lambda i, j: (i, j)), source, fields)

    def _output(self, row: Index, column: Index, buffer: Buffer) -> At:
        n = self.image_index
        return At(buffer, lambda a, b: (n, row + a, column + b))
