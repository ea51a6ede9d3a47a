"""Extents of an 8-bit convolution in plain images, and its weights in the order in which they are multiplied.

A word holds the ``group`` values that one lane of an instruction multiplies (``dots.py``): neighbouring
channels of one pixel.  Where a group of the convolution has one channel only (a depthwise one), it holds
neighbouring rows of the window instead, so that a column of three taps is one product; of a window of one
row, as those of sounds have, neighbouring columns.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.integers.quantized import QuantConv2d
from hetero_tvm.schedules.cpu.dots import Dot, dot_for

LINE_WORDS = 16


class ImageWords:
    """Extents of one convolution of words.

    Attributes
    ----------
    channels, filters : of one group.
    by_rows, by_taps : whether words hold rows of the window, columns of its one row.
    flat : a 1x1 convolution of all pixels: the image is one row.
    by_columns : whether the output is one row, of which blocks are parts.
    in_height, in_width, out_height, out_width : extents, of a flat image as one row.
    words : words of one tap; a word of several columns is one tap.
    tap_rows : rows of taps; one where words hold them.
    spread : whether a packed row has one row of words for each column of taps, so that these follow one
        another like those of the rows of taps; else one for each phase of the strides.
    row_step : packed rows from one output row to the next.
    fetch_step : image rows from one packed row to the next.
    """

    def __init__(self, op: QuantConv2d, dot: Dot, spread: bool = False):
        self.op, self.dot, self.spread = op, dot, spread
        (kh, kw), (sh, sw) = op.kernel, op.strides
        self.channels, self.filters = op.channels // op.groups, op.filters // op.groups
        self.by_rows = self.channels == 1 and kh > 1
        meet = op.columns_meet((op.filters, self.channels, kh, kw))
        self.by_taps = meet and kw > 1 and dot.group > 1
        self.flat = op.kernel == op.strides == (1, 1) and not any(op.padding)
        self.in_height, self.in_width = op.height, op.width
        self.out_height, self.out_width = op.output.shape[2:]
        if self.flat:
            self.in_height, self.in_width = 1, op.height * op.width
            self.out_height, self.out_width = 1, self.in_width
        in_word = kh if self.by_rows else min(kw, dot.group) if self.by_taps else self.channels
        self.words = -(-in_word // dot.group)
        self.tap_rows = 1 if self.by_rows else kh
        one_row = self.out_height == self.in_height == self.tap_rows == 1 and not any(op.padding[::2])
        self.by_columns = self.flat or (one_row and not self.by_rows and not self.by_taps)
        self.row_step = sh if self.tap_rows > 1 else 1
        self.fetch_step = 1 if self.tap_rows > 1 else sh
        columns = [j * op.dilation[1] for j in range(0, kw, dot.group if self.by_taps else 1)]
        self.phases = columns if spread else sorted({column % sw for column in columns})
        """Offsets of the first pixels of the rows of words of a packed row."""
        self.taps = [(n, 0) for n in range(len(columns))]
        """(phase, word in its row) of each tap of a row, counted from the output's column."""
        if not spread:
            self.taps = [(self.phases.index(column % sw), column // sw) for column in columns]

    @property
    def sources(self) -> list[int]:
        """Values of each word of a tap: ``group``, the last word's perhaps fewer."""
        if self.by_taps:
            return [min(self.dot.group, self.op.kernel[1])]
        total = self.op.kernel[0] if self.by_rows else self.channels
        return [min(self.dot.group, total - word * self.dot.group) for word in range(self.words)]

    def packed_rows(self, rows: int) -> int:
        """Packed rows that ``rows`` output rows read."""
        if self.tap_rows == 1:
            return rows
        return (rows - 1) * self.row_step + (self.tap_rows - 1) * self.op.dilation[0] + 1

    def pitch(self, columns: int, lanes: int) -> int:
        """Words of one phase of a packed row for ``columns`` output columns."""
        return -(-columns // lanes) * lanes + max(column for _, column in self.taps)

    def plane(self, rows: int, pitch: int, spare: int = 0) -> int:
        """Words from one word of a tap to the next, of which ``spare`` are read but never written; an odd
        number of cache lines, which spreads over L1."""
        lines = -(-(self.packed_rows(rows) * len(self.phases) * pitch + spare) // LINE_WORDS)
        return (lines | 1) * LINE_WORDS

    @functools.cached_property
    def steps(self) -> int:
        """Words of the reduction."""
        return self.tap_rows * len(self.taps) * self.words

    def weight_shape(self, height: int) -> tuple[int, int, int, int]:
        """[groups, tiles of ``height`` filters, steps + 1, height], int32."""
        return self.op.groups, -(-self.filters // height), self.steps + 1, height

    def pack(self, w: np.ndarray, height: int) -> np.ndarray:
        """int8 [filters, channels / groups, *kernel] -> :meth:`weight_shape`: words, and behind them the sums
        of each filter times -128, as what is multiplied is 128 more than what counts."""
        op, group = self.op, self.dot.group
        ordered = op.word_order(w)  # [..., values of a word's axis, filters]
        lead = math.prod(ordered.shape[:-2])
        words = self.steps // lead
        values = np.zeros((lead, words * group, op.filters), np.int64)
        values[:, : ordered.shape[-2]] = ordered.reshape(lead, *ordered.shape[-2:])
        bits = 32 // group
        parts = (values & ((1 << bits) - 1)).reshape(lead, words, group, op.filters)
        shifts = (np.arange(group, dtype=np.int64) * bits).reshape(1, 1, group, 1)
        words = (parts << shifts).sum(2).reshape(self.steps, op.groups, self.filters)
        sums = -128 * w.reshape(op.groups, self.filters, -1).astype(np.int64).sum(-1)
        groups, tiles, rows, _ = self.weight_shape(height)
        packed = np.zeros((groups, rows, tiles * height), np.int64)
        packed[:, : self.steps, : self.filters] = words.transpose(1, 0, 2)
        packed[:, self.steps, : self.filters] = sums
        packed = packed.reshape(groups, rows, tiles, height).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(packed.astype(np.uint32, casting="unsafe")).view(np.int32)


def image_dot(op: QuantConv2d, machine: CpuModel) -> Dot:
    """The way to multiply in ``op``: where a tap has one word, no two are taken at once."""
    dot = dot_for(machine, op.pairs_safe)
    return dot.single if dot.single is not None and ImageWords(op, dot).words == 1 else dot
