"""Pixels of an 8-bit image as words, for one block of output pixels: the operand that comes at run time.

Each word has one value in every byte (or half word, or word) that an instruction multiplies, 0 to 255.  The
padding around the image is written as its fill value, and the columns of a convolution with strides lie phase
by phase, so that the pixels of a vector are neighbours whatever the stride.
"""

from __future__ import annotations

import numpy as np

from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.schedules.cpu.integers.image_words import ImageWords
from hetero_tvm.schedules.emit import Index, Kernel, int32, vector_loop

_BYTES = 64
"""Bytes of a vector that is copied, at most."""
_ONES = {4: 0x01010101, 2: 0x00010001, 1: 1}
"""Word with 1 in each of its values."""


class ImagePacker:
    """Writes words of the image X, viewed as [planes, pixels], to ``target`` [words, plane].

    Parameters
    ----------
    rows : most output rows of a block.
    columns : most output columns of a block.
    pitch : words of one phase of a packed row.
    words : words that there is memory for; those behind a tap's are never written.
    spare : words behind each word's plane that may be read.
    """

    def __init__(
        self,
        k: Kernel,
        shape: ImageWords,
        x: Buffer,
        rows: int,
        columns: int,
        lanes: int,
        pitch: int,
        words: int = 0,
        spare: int = 0,
    ):
        self.k, self.shape, self.x, self.lanes, self.pitch = k, shape, x, lanes, pitch
        plane = shape.plane(rows, pitch, spare)
        self.target = k.scratch((max(words, shape.words), plane), "int32")
        self.wide = min(columns, shape.out_width) < shape.out_width
        """Whether a block has part of a row only."""

    def pack(self, plane: Expr, first_row: Index, rows: Index, first_column: Index, columns: Index) -> None:
        """Emit the words of ``rows`` output rows from ``first_row``, and ``columns`` from ``first_column``.

        Columns other than all of them are taken of images of one row only.
        """
        shape, sources = self.shape, self.shape.sources
        full = len(sources) - (sources[-1] != shape.dot.group)
        if full:
            with self.k.serial(full) as word:
                self._word(plane, word, shape.dot.group, first_row, rows, first_column, columns)
        if full < len(sources):
            self._word(plane, int32(full), sources[-1], first_row, rows, first_column, columns)

    def _word(
        self, plane: Expr, word: Expr, count: int, first: Index, rows: Index, column: Index, columns: Index
    ) -> None:
        k, shape, op = self.k, self.shape, self.shape.op
        group, top, dilation = shape.dot.group, op.padding[0], op.dilation[0]
        if shape.by_taps:
            self._rows_of_taps(plane, first, rows)
            return
        packed = rows
        if shape.tap_rows > 1:
            packed = (rows - 1) * shape.row_step + (shape.tap_rows - 1) * dilation + 1
        with k.serial(packed) as r:
            at = r * (len(shape.phases) * self.pitch)
            if shape.by_rows:
                y = (first + r) * op.strides[0] - top + word * (group * dilation)
                ys = [y + source * dilation for source in range(count)]
                planes = [plane] * count
            else:
                y = first * op.strides[0] - top + r * shape.fetch_step
                ys = [y] * count
                planes = [plane + word * group + source for source in range(count)]
            inside = tirx.all(ys[0] >= 0, ys[-1] < shape.in_height)
            outside = tirx.any(ys[-1] < 0, ys[0] >= shape.in_height)

            def loaded(planes=planes, ys=ys, at=at, checked=False) -> None:
                self._row(word, at, planes, ys, column, columns, checked)

            if top == 0 and op.padding[2] == 0:
                loaded()
            elif shape.by_rows:
                k.branch(inside, loaded, lambda: loaded(checked=True))
            else:
                k.branch(outside, lambda: self._fill(word, at, len(shape.phases) * self.pitch), loaded)

    def _rows_of_taps(self, plane: Expr, first: Expr, rows: Index) -> None:
        """Emit words of several columns: a row between its padding is copied, and read at each of them."""
        k, shape, op, lanes = self.k, self.shape, self.shape.op, self.lanes
        left, step, reach = op.padding[1], op.strides[1], (shape.dot.group - 1) * op.dilation[1]
        longest = max(shape.phases) + self.pitch * step + reach + step
        pixels = max(0, min(shape.in_width, longest - left))
        row = k.scratch((longest + lanes,), "uint8")
        filler = tirx.const(self._bits_outside, "uint8")

        def fill(begin: int, end: int) -> None:
            def piece(at: Index, width: int) -> None:
                k.store(row, k.splat(filler, width), [k.ramp(begin + at, width)])

            vector_loop(k, end - begin, _BYTES, piece)

        def copy(y: Expr) -> None:
            def piece(at: Index, width: int) -> None:
                value = k.load(self.x, [plane, k.ramp(y * shape.in_width + at, width)])
                if op.x_dtype == "int8":
                    value = tirx.reinterpret(f"uint8x{width}" if width > 1 else "uint8", value)
                k.store(row, value, [k.ramp(left + at, width)])

            vector_loop(k, pixels, _BYTES, piece)

        with k.serial(rows) as r:
            y = k.let((first + r) * op.strides[0] - op.padding[0])
            fill(0, left)
            if op.padding[0] or op.padding[2]:
                exists = tirx.all(y >= 0, y < shape.in_height)
                k.branch(exists, lambda: copy(y), lambda: fill(left, left + pixels))
            else:
                copy(y)
            fill(left + pixels, longest + lanes)
            for number, phase in enumerate(shape.phases):
                at = (r * len(shape.phases) + number) * self.pitch

                def put(place: Index, width: int, at: Expr = at, phase: int = phase) -> None:
                    values = [
                        self._spaced(row, phase + place * step + n * op.dilation[1], width)
                        for n in range(shape.sources[0])
                    ]
                    k.store(self.target, self._joined(values, width), [int32(0), k.ramp(at + place, width)])

                vector_loop(k, self.pitch, lanes if step <= 2 else 1, put)

    def _spaced(self, row: Buffer, first: Index, width: int) -> Expr:
        """``width`` bytes of a row as int32, as far apart as the strides of columns."""
        many = f"int32x{width}" if width > 1 else "int32"
        if self.shape.op.strides[1] == 2 and width > 1:
            return self._lower_of_pairs(self.k.load(row, [self.k.ramp(first, 2 * width)]), width)
        return self.k.load(row, [self.k.ramp(first, width)]).astype(many)

    def _lower_of_pairs(self, pairs: Expr, width: int) -> Expr:
        """The first of each pair of bytes, as int32."""
        value = tirx.reinterpret(f"uint16x{width}", pairs)
        lower = self.k.splat(tirx.const(255, "uint16"), width)
        return tirx.bitwise_and(value, lower).astype(f"int32x{width}")

    def _fill(self, word: Expr, at: Expr, count: int) -> None:
        """Emit ``count`` words of padding."""

        def put(place: Index, width: int) -> None:
            self.k.store(
                self.target, self.k.splat(self._filler, width), [word, self.k.ramp(at + place, width)]
            )

        vector_loop(self.k, count, self.lanes, put)

    @property
    def _filler(self) -> Expr:
        value = (self.shape.op.fill + 128) * _ONES[self.shape.dot.group]
        return int32(int(np.array(value, np.uint32).view(np.int32)))

    def _row(
        self,
        word: Expr,
        at: Expr,
        planes: list[Expr],
        ys: list[Expr],
        column: Index,
        columns: Index,
        checked: bool,
    ) -> None:
        """Emit one packed row: every phase from its padding on the left to that on the right."""
        shape, width = self.shape, self.shape.in_width
        left, step = shape.op.padding[1], shape.op.strides[1]
        for number, phase in enumerate(shape.phases):
            start = at + number * self.pitch
            if self.wide:
                self._part_of_row(word, start, planes, ys, phase + step * column - left, columns)
                continue
            place = max(0, -((phase - left) // step))  # the first word that is a pixel, and which
            first = place * step + phase - left
            count = min(-(-(width - first) // step), self.pitch - place)
            if count <= 0:
                self._fill(word, start, self.pitch)
                continue
            if place:
                self._fill(word, start, place)
            self._pixels(word, start + place, planes, ys, first, count, step, checked)
            if self.pitch - place - count and (left or shape.op.padding[3] or len(shape.taps) > 1):
                self._fill(word, start + place + count, self.pitch - place - count)

    def _part_of_row(
        self, word: Expr, at: Expr, planes: list[Expr], ys: list[Expr], first: Expr, columns: Index
    ) -> None:
        """Emit the words of a phase for ``columns`` output columns, of which the first reads pixel ``first``:
        padding where that is none."""
        k, shape, step = self.k, self.shape, self.shape.op.strides[1]
        reach = max(place for _, place in shape.taps)
        if not reach and not any(shape.op.padding[1::2]):
            self._pixels(word, at, planes, ys, first, columns, step, False)
            return

        def fill(begin: Expr, end: Expr) -> None:
            with k.serial(end - begin) as place:
                k.store(self.target, self._filler, [word, at + begin + place])

        total = columns + reach
        low = k.let(tirx.min(tirx.max(-tirx.floordiv(first, int32(step)), int32(0)), total))
        end = tirx.floordiv(shape.in_width - first + (step - 1), int32(step))
        high = k.let(tirx.max(tirx.min(end, total), low))
        fill(int32(0), low)
        self._pixels(word, at + low, planes, ys, first + low * step, high - low, step, False)
        fill(high, total)

    def _pixels(
        self,
        word: Expr,
        at: Expr,
        planes: list[Expr],
        ys: list[Expr],
        first: Index,
        count: Index,
        step: int,
        checked: bool,
    ) -> None:
        """Emit the words of pixels ``first``, ``first + step``, ... of a row."""
        k, shape, lanes = self.k, self.shape, self.lanes

        def put(place: Index, width: int, stride: int = step) -> None:
            values = [
                self._values(plane, y, first + place * step, width, stride, checked)
                for plane, y in zip(planes, ys, strict=True)
            ]
            k.store(self.target, self._joined(values, width), [word, k.ramp(at + place, width)])

        if not isinstance(count, int):  # up to the end of a block
            whole = count
            if step == 2:  # a vector reads pairs, of which the last may be beyond the image
                whole = tirx.min(count, tirx.floordiv(shape.in_width - first, int32(2)))
            full = tirx.floordiv(whole, int32(lanes)) if step <= 2 else int32(0)
            with k.serial(full) as piece:
                put(piece * lanes, lanes)
            with k.serial(count - full * lanes) as rest:
                put(full * lanes + rest, 1)
        elif step == 1:
            vector_loop(k, count, lanes, put, unroll=2)
        elif step == 2:
            pairs = min(count, (shape.in_width - first) // 2)
            vector_loop(k, pairs, lanes, put)
            if pairs < count:
                put(pairs, 1, 1)
        else:
            with k.serial(count) as place:
                put(place, 1, 1)

    def _values(self, plane: Expr, y: Expr, x: Index, width: int, stride: int, checked: bool) -> Expr:
        """``width`` values of a row as int32, 0 to 255 (of int8: what their bits are worth unsigned)."""
        k, shape = self.k, self.shape
        many = f"x{width}" if width > 1 else ""
        row = tirx.max(tirx.min(y, int32(shape.in_height - 1)), int32(0)) if checked else y
        at = row * shape.in_width + x
        if stride == 2 and width > 1:  # both of each pair in one half word: the first is the lower byte
            value = self._lower_of_pairs(k.load(self.x, [plane, k.ramp(at, 2 * width)]), width)
        else:
            value = k.load(self.x, [plane, k.ramp(at, width)])
            if self.shape.op.x_dtype == "int8":
                value = tirx.reinterpret(f"uint8{many}", value)
            value = value.astype(f"int32{many}")
        if not checked:
            return value
        exists = tirx.all(y >= 0, y < shape.in_height)
        mask = tirx.Select(exists, int32(-1), int32(0))
        return tirx.bitwise_or(
            tirx.bitwise_and(value, k.splat(mask, width)),
            k.splat(tirx.bitwise_and(tirx.bitwise_xor(mask, int32(-1)), int32(self._bits_outside)), width),
        )

    @property
    def _bits_outside(self) -> int:
        """Bits of a pixel of the padding, as X has them."""
        return (self.shape.op.fill + 128) ^ (128 if self.shape.op.x_dtype == "int8" else 0)

    def _joined(self, values: list[Expr], width: int) -> Expr:
        """One word of each lane's values."""
        k, group = self.k, self.shape.dot.group
        word = values[0]
        for n, value in enumerate(values[1:], 1):
            word = tirx.bitwise_or(word, tirx.shift_left(value, k.splat(int32(n * (32 // group)), width)))
        if self.shape.op.x_dtype == "int8":
            mask = int(np.array(128 * _ONES[group], np.uint32).view(np.int32))
            word = tirx.bitwise_xor(word, k.splat(int32(mask), width))
        return word
