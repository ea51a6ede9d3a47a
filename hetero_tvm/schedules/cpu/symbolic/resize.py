"""Images of another size, of weighted neighbours along each axis, whose extents come at run time.

Loop structure::

    for each column after: its two neighbours and their weights             (once for all planes)
    parallel planes x blocks of rows:
        for each row after:
            of the two rows before that it needs, those that are not there yet: their pixels along the columns
                (in vectors of each phase where these are twice or four times as many)
            in vectors: the weighted sum of both

A row before lies in one of two lines, by its parity: neighbours never meet, and rows that follow each other
find what the last one has left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.images.resize import MODES, Phases, Row, along_columns, neighbours, phases
from hetero_tvm.schedules.emit import Index, Kernel, constant, for_graph, int32, vector_loop

_ROWS = 16
"""Rows after of a block: each block finds two lines anew."""
_FACTORS = (2, 4)
"""Times that images usually grow: looked for at the call, by phases where they do."""
_ALONE = 16384
"""Pixels after that are not worth another thread."""


def emit_open_resize(
    machine: CpuModel, image: tuple[int, int, int, int], after: tuple[int, int], mode: str
) -> PrimFunc | None:
    """The kernel of X, which gives neighbours [2, W'] and weights [2, W'] of the columns, and Y.

    The loops are the same at all extents.

    Parameters
    ----------
    image : [N, C, H, W] of X, which is float32.
    after : height and width of Y.
    mode : how pixels are placed, in the names of ONNX; None is given for others than the kernel's.
    """
    return _Emitter(machine, image, after, mode).emit() if mode in MODES else None


class _Neighbours(NamedTuple):
    """Two pixels and their weights; one that is alone counts twice by half its weight."""

    low: Expr
    high: Expr
    weight_of_low: Expr
    weight_of_high: Expr


class _Emitter:
    """Emits one kernel."""

    def __init__(
        self, machine: CpuModel, image: tuple[int, int, int, int], after: tuple[int, int], mode: str
    ):
        self.lanes, self.mode = machine.lanes, mode
        self.image, self.after = image, after
        axes = (neighbours(8, 8 * factor, mode) for factor in _FACTORS)  # any extents tell the phases
        self.grown = [several for axis in axes if axis is not None and (several := phases(axis, 8))]
        self.k = Kernel()

    def emit(self) -> PrimFunc:
        k, across = self.k, self.after[1]
        with k:
            x = k.argument("X", self.image)
            self.places = k.argument("places", (2, across), "int32")
            self.weights = k.argument("weights", (2, across))
            y = k.argument("Y", (*self.image[:2], *self.after))
            images, channels, self.height, self.width, self.down, self.across = k.counted(
                *self.image, *self.after
            )
            planes = k.let(images * channels)
            self._columns()
            blocks = k.let(tirx.truncdiv(self.down + (_ROWS - 1), int32(_ROWS)))
            alone = planes * self.down * self.across < _ALONE

            def block(item: Expr) -> None:
                plane = k.let(tirx.truncdiv(item, blocks))
                first = k.let((item - plane * blocks) * _ROWS)
                image = k.let(tirx.truncdiv(plane, channels))
                where = [image, k.let(plane - image * channels)]
                self._block(x, y, where, first, tirx.min(int32(_ROWS), self.down - first))

            k.shared_unless(alone, planes * blocks, block)
        return for_graph(k.function)

    def _columns(self) -> None:
        """Write the neighbours of all columns."""
        k = self.k
        with k.serial(self.across) as column:
            found = self._neighbours(column, self.width, self.across)
            for n, (place, weight) in enumerate(zip(found[:2], found[2:], strict=True)):
                k.store(self.places, place, [int32(n), column])
                k.store(self.weights, weight, [int32(n), column])

    def _block(self, x: Buffer, y: Buffer, plane: list[Expr], first: Expr, count: Expr) -> None:
        k = self.k
        lines, kept = k.scratch((2, self.after[1])), k.scratch((2,), "int32")
        for n in range(2):
            k.store(kept, int32(-1), [n])
        with k.serial(count) as row:
            found = self._neighbours(first + row, self.height, self.down)
            for place in found[:2]:
                self._line(x, plane, place, lines, kept)
            slots = [tirx.bitwise_and(place, int32(1)) for place in found[:2]]

            def put(at: Index, many: int) -> None:
                upper, lower = (
                    k.load(lines, [slot, k.ramp(at, many)]) * k.splat(weight, many)
                    for slot, weight in zip(slots, found[2:], strict=True)
                )
                k.store(y, upper + lower, [*plane, first + row, k.ramp(at, many)])

            vector_loop(k, self.across, self.lanes, put)

    def _line(self, x: Buffer, plane: list[Expr], row: Expr, lines: Buffer, kept: Buffer) -> None:
        """Bring the pixels of a row before into its line, unless they are there."""
        k = self.k
        slot = tirx.bitwise_and(row, int32(1))
        with k.when(k.load(kept, [slot]) != row):
            k.store(kept, row, [slot])
            rows = Row(x, [*plane, row], self.width), Row(lines, [slot], self.across)
            self._along_columns(*rows, self.grown)

    def _along_columns(self, source: Row, target: Row, grown: Sequence[Phases]) -> None:
        """The pixels of a row before along the columns, by those phases whose number is that of times the row
        has grown; one by one elsewhere."""
        several, *others = grown or [()]

        def emit() -> None:
            along_columns(self.k, (self.places, self.weights), several, self.lanes, source, target)

        if not several:
            emit()
            return
        exactly = self.across == self.width * len(several)
        self.k.branch(exactly, emit, lambda: self._along_columns(source, target, others))

    def _neighbours(self, at: Expr, before: Expr, after: Expr) -> _Neighbours:
        """Neighbours of a pixel along an axis: its place is a ratio of integers, so that whole numbers are
        whole."""
        k = self.k
        at, before, after = (tirx.Cast("int64", value) for value in (at, before, after))
        one = tirx.const(1, "int64")
        if self.mode == "align_corners":
            over, under = at * (before - 1), tirx.max(after - 1, one)
        elif self.mode == "asymmetric":
            over, under = at * before, after
        else:
            over, under = (2 * at + 1) * before - after, 2 * after
            if self.mode == "pytorch_half_pixel":
                over = tirx.Select(after > 1, over, one - 1)
        under = k.let(under)
        over = k.let(tirx.min(tirx.max(over, one - 1), (before - 1) * under))
        place = k.let(tirx.truncdiv(over, under))
        low = k.named(tirx.Cast("int32", place))
        kept = k.scratch((1,))  # a quotient that is bound ends TVM's analysis of ranges with an error
        k.store(kept, tirx.Cast("float32", over - place * under) / tirx.Cast("float32", under), [0])
        part = k.let(k.load(kept, [0]))
        alone = part == constant(0.0)
        return _Neighbours(
            low,
            k.named(tirx.Select(alone, low, low + 1)),
            k.let(tirx.Select(alone, constant(0.5), constant(1.0) - part)),
            k.let(tirx.Select(alone, constant(0.5), part)),
        )
