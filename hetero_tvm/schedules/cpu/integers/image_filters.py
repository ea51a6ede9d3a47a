"""8-bit convolutions with vectors of filters: images whose rows do not fill vectors, plain NCHW in and out.

Loop structure::

    parallel over images, groups, blocks of rows, parts of the filters:
        pixels of the block as words of four channels                       (image_packing.py; in L2)
        for each tile of filters:                                           a multiple of 16
            for each tile of pixels, of one row or of whole rows:
                acc[pixels][vectors of filters] = 0                                         int32
                for each tap, for each word of channels:
                    acc[p][v] += dot(splat(word of pixel p), words of W[16 v ...])          dots.py
                bias, scale, bounds, rounding: 16 filters of a pixel at a time
                16 x 16 bytes transposed in registers; stored as rows of pixels

The other kernel's vectors run along the pixels of a row: of 7 pixels nine lanes of sixteen are idle, of 56
eight of 64.  Here every lane has a filter, and a tile has as many pixels as divide the row.  That costs the
transposition of the results (of a residual too), 250 cycles for 256 of them, so that it pays where sums are
long or rows fit badly.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from hetero_tvm.codegen.transpose import BYTES, BYTES_NAME, bytes_ir
from hetero_tvm.host.tvm import Buffer, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.integers.quantized import QuantConv2d
from hetero_tvm.schedules.cpu.dots import Dot
from hetero_tvm.schedules.cpu.integers.image_kernel import (
    ImageDecisions,
    ImageKernel,
    OutputTile,
    whole_vectors,
)
from hetero_tvm.schedules.cpu.integers.image_words import LINE_WORDS, ImageWords, image_dot
from hetero_tvm.schedules.cpu.integers.integer_tile import step_cycles
from hetero_tvm.schedules.cpu.integers.requantize import Steps, joined, side_by_side
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.emit import Index, int32

_FINISH, _TRANSPOSE = 9, 90
"""Cycles of 16 results, and of a transposition and its stores."""
_ONE_VECTOR = 1.07
"""Time of products that have a broadcast each."""


def applies(op: QuantConv2d, machine: CpuModel) -> bool:
    """Whether filters fill vectors of 16, and results are bytes."""
    shape = ImageWords(op, image_dot(op, machine))
    whole = machine.lanes == BYTES and shape.filters % BYTES == 0 and not shape.by_rows
    return whole and shape.dot.words == 1 and op.output.dtype in ("int8", "uint8")


def pixel_tile(shape: ImageWords, pixels: int) -> tuple[int, int]:
    """Rows and columns of a tile of up to ``pixels`` pixels: part of a row, or whole rows."""
    rows = min(pixels // shape.out_width, shape.out_height)
    return (rows, shape.out_width) if rows else (1, pixels)


def tile_cycles(shape: ImageWords, pixels: int, vectors: int, machine: CpuModel) -> float:
    """Estimate of one register tile of so many pixels and vectors of filters."""
    per_word = step_cycles(RegisterTile(pixels, vectors), shape.dot, machine)
    finish = vectors * (_FINISH * pixels + _TRANSPOSE) * (2 if shape.op.residual else 1)
    if vectors == 1:
        per_word *= _ONE_VECTOR
    return shape.steps * per_word + 20 + 8 * shape.tap_rows + finish


def image_cycles(shape: ImageWords, pixels: int, vectors: int, machine: CpuModel) -> float:
    """Estimate of ``vectors`` vectors of filters for all pixels of an image."""
    rows, columns = pixel_tile(shape, pixels)

    def row(many: int) -> float:
        full, rest = divmod(shape.out_width, columns)
        cycles = full * tile_cycles(shape, many * columns, vectors, machine)
        return cycles + (tile_cycles(shape, many * rest, vectors, machine) if rest else 0)

    full, rest = divmod(shape.out_height, rows)
    return full * row(rows) + (row(rest) if rest else 0)


class FilterImageKernel(ImageKernel):
    """Emits one convolution; of a point's register tile the filters are pixels, and the vectors filters."""

    def __init__(self, op: QuantConv2d, decisions: ImageDecisions, machine: CpuModel):
        shape = ImageWords(op, image_dot(op, machine))
        rows, columns = pixel_tile(shape, decisions.filters)
        filters = decisions.rows * decisions.vectors * machine.lanes
        tile = dataclasses.replace(decisions, filters=filters, rows=rows, vectors=1)
        super().__init__(op, tile, machine, columns)

    @property
    def imports(self) -> tuple[str, ...]:
        return (*super().imports, bytes_ir())

    def _tile(self, t: OutputTile) -> None:
        k, lanes = self.k, self.lanes
        vectors = t.height // lanes
        acc = self._accumulators(t.rows * t.columns, vectors)
        place_of = self._places(t)

        def step(way: Dot, word: Index, i: Index, place: Index, number: Index) -> None:
            with k.unroll(t.rows) as r, k.unroll(t.columns) as c, k.unroll(vectors) as v:
                words = k.splat(k.load(self.words, [word, place_of(i, place, r) + c]), lanes)
                weights = k.load(self.w, [t.group, t.tile, number, k.ramp(v * lanes, lanes)])
                target = [r * t.columns + c, k.ramp(v * lanes, lanes)]
                k.store(acc, way.add(k.load(acc, target), lanes, words, weights), target)

        self._each_step(step, self._fetching(t))
        sums = self._out_of_registers(acc)
        for v in range(vectors):
            self._finish(sums, v, t)

    def _fetching(self, t: OutputTile) -> Callable[[Index], None] | None:
        """Code that asks, at a word, for a pixel tile's share of the next filters' weights, which come from
        far in a network; None where there are no next."""
        k, unroll = self.k, self.decisions.unroll
        if self.filter_tiles == 1 or self.shape.words < 2 * unroll:
            return None
        _, _, rows, height = self.weight_shape
        w = k.view(self.w, (self.op.groups, self.filter_tiles, rows * height))
        last = rows * height // LINE_WORDS - 1
        lines = -(-height // LINE_WORDS * unroll // math.prod(self.pixel_tiles))
        bodies = -(-self.shape.steps // unroll)
        number = self.tile_number(t)
        following = tirx.min(t.tile + 1, int32(self.filter_tiles - 1))

        def fetch(word: Index) -> None:
            body = number * bodies + tirx.floordiv(word, int32(unroll))
            for line in range(lines):
                at = tirx.min(body * lines + line, int32(last)) * LINE_WORDS
                k.prefetch(w, [t.group, following, at])

        return fetch

    def _out_of_registers(self, acc: Buffer) -> Buffer:
        """``acc`` in memory, where the way out is a loop: written out, LLVM has its factors and bounds in
        registers while sums are made, and the sums on the stack."""
        k, lanes = self.k, self.lanes
        rows, columns = (int(extent) for extent in acc.shape)
        sums = k.scratch((rows, columns), "int32")
        with k.unroll(rows) as r, k.unroll(columns // lanes) as v:
            at = [r, k.ramp(v * lanes, lanes)]
            k.store(sums, k.load(acc, at), at)
        return sums

    def _finish(self, sums: Buffer, vector: int, t: OutputTile) -> None:
        """Emit the way out of one vector of filters."""
        k, op, shape, lanes, result = self.k, self.op, self.shape, self.lanes, self.result
        own, own_sums = t.first + vector * lanes, k.ramp(vector * lanes, lanes)
        filters, planes = t.group * shape.filters + own, t.plane * shape.filters + own
        pixels, pixel = t.rows * t.columns, t.y * shape.out_width + t.x
        start = k.load(self.w, [t.group, t.tile, int32(shape.steps), own_sums])
        start = k.let(start + k.load(result.bias, [k.ramp(filters, lanes)]))
        scale = k.let(k.load(result.scale, [k.ramp(filters, lanes)]))
        by_pixel = k.scratch((BYTES * BYTES,), op.output.dtype)
        by_filter = k.scratch((BYTES * BYTES,), op.output.dtype)
        pieces = whole_vectors(pixels, BYTES)
        if op.residual:
            join = joined(k, op, [k.load(result.join, [int32(n)]) for n in range(4)])
            other = k.scratch((BYTES * BYTES,), op.residual)
            others = k.scratch((BYTES * BYTES,), op.residual)
            with k.serial(lanes) as f:
                for at, many in pieces:
                    value = k.load(result.residual, [planes + f, k.ramp(pixel + at, many)])
                    k.store(other, value, [k.ramp(f * BYTES + at, many)])
            self._transpose(others, other)

        def put(some: list[Index]) -> None:
            steps = Steps(k, op, [lanes] * len(some))
            totals = steps.each(lambda w, p: k.load(sums, [p, own_sums]) + start, some)
            values = steps.requantized(totals, [scale] * len(some), whole=bool(op.residual))
            places = [[k.ramp(p * BYTES, lanes)] for p in some]
            if op.residual:
                values = steps.with_residual(values, [k.load(others, place) for place in places], join)
            for value, place in zip(values, places, strict=True):
                k.store(by_pixel, value, place)

        side_by_side(pixels, 1, k.serial, put)
        self._transpose(by_filter, by_pixel)
        with k.serial(lanes) as f:
            for at, many in pieces:
                value = k.load(by_filter, [k.ramp(f * BYTES + at, many)])
                k.store(result.y, value, [planes + f, k.ramp(pixel + at, many)])

    def _transpose(self, target: Buffer, source: Buffer) -> None:
        """Emit the transposition of a block of bytes; its last bytes keep TVM from shortening the buffers."""
        k, last = self.k, int32(BYTES * BYTES - 1)
        ends = [k.address(buffer, [at]) for buffer in (target, source) for at in (int32(0), last)]
        k.call(BYTES_NAME, *ends)
