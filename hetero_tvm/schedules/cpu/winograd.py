"""Winograd's minimal filtering: convolutions of 3x3 and of rows of taps with fewer products.

``Y = A^T ((G g G^T) * (B^T d B)) A`` gives m x m outputs of a 3x3 filter g from an (m + 2) x (m + 2)
input tile d with (m + 2)^2 products instead of 9 m^2: 2.25 times fewer for m = 2, 4 times for m = 4.
A row of three taps needs m + 2 products instead of 3 m: 1.5 and 2 times fewer.  With the same points two
taps have one more output: 1.5 times fewer for m = 3, 1.67 times for m = 5.
The matrices come from the Toom-Cook construction (Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks", 2015) over m + 1 finite points and infinity.

Rounding depends on the points.  For m = 4 the usual 0, +-1, +-2 have errors of 5e-6 of the largest value
over 64 channels; 0, +-3/4, +-3/2 have 1.2e-6, against 3e-7 of a plain sum, and all their matrices of
inputs and outputs are exact in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.schedules.emit import Index, Kernel, as_index, pieces_of

_POINTS = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2)),
}

FILTER = 3


class Winograd:
    """The matrices of F(m x m, r x r), of the points that F(``size`` x ``size``, 3 x 3) has.

    Attributes
    ----------
    size : outputs of a tile per side (m).
    reach : inputs of a tile per side (m + r - 1).
    """

    def __init__(self, size: int, taps: int = FILTER):
        points = _POINTS[size]
        self.reach = len(points) + 1
        size = self.size = self.reach - taps + 1
        outputs = [[p**i for p in points] + [Fraction(int(i == size - 1))] for i in range(size)]
        filters, inputs = [], []
        for j, p in enumerate(points):
            others = [q for i, q in enumerate(points) if i != j]
            scale = Fraction(1)
            for q in others:
                scale *= p - q
            filters.append([p**i / scale for i in range(taps)])
            inputs.append([*_polynomial(others), Fraction(0)])
        filters.append([Fraction(0)] * (taps - 1) + [Fraction(1)])
        inputs.append(_polynomial(points))
        self.filters = np.array(filters, dtype="float64")
        self._inputs = np.array(inputs, dtype="float64")
        self._outputs = np.array(outputs, dtype="float64")

    def filter(self, w: np.ndarray) -> np.ndarray:
        """``G g G^T`` in float64: [O, C, 3, 3] -> [O, C, reach, reach]."""
        return self.filters @ w.astype("float64") @ self.filters.T

    def input_side(self, k: Kernel, values: Sequence[Expr]) -> list[Expr]:
        """``B^T d`` along one axis; rows of points p and -p are sum and difference of two halves."""
        rows, result = self._inputs, [_combination(k, self._inputs[0], values)]
        for j in range(1, self.reach - 1, 2):
            even = _combination(k, (rows[j] - rows[j + 1]) / 2, values)
            odd = _combination(k, (rows[j] + rows[j + 1]) / 2, values)
            result += [k.let(odd + even), k.let(odd - even)]
        return [*result, _combination(k, rows[-1], values)]

    def output_side(self, k: Kernel, values: Sequence[Expr]) -> list[Expr]:
        """``A^T m`` along one axis, from sums and differences of the values at p and -p."""
        halves, columns = [values[0]], [self._outputs[:, 0]]
        for j in range(1, self.reach - 1, 2):
            halves += [k.let(values[j] + values[j + 1]), k.let(values[j] - values[j + 1])]
            pair = self._outputs[:, j], self._outputs[:, j + 1]
            columns += [(pair[0] + pair[1]) / 2, (pair[0] - pair[1]) / 2]
        halves.append(values[-1])
        matrix = np.stack([*columns, self._outputs[:, -1]], axis=1)
        return [_combination(k, row, halves) for row in matrix]


@functools.cache
def winograd(size: int, taps: int = FILTER) -> Winograd:
    """The matrices of a number of taps with the points of tiles of ``size`` x ``size`` outputs of 3x3."""
    return Winograd(size, taps)


def parts_of(taps: int, stride: int = 1) -> list[slice]:
    """Parts of a filter along an axis, of the same number of taps each, the last ones perhaps past its end.

    Each reads pixels of one remainder modulo the stride.  Three taps have the fewest products per output,
    but for two and four.
    """
    every = -(-taps // stride)
    each = 1 if every == 1 else 2 if every in (2, 4) else FILTER
    starts = [(phase, n * each) for phase in range(min(stride, taps)) for n in range(-(-every // each))]
    return [slice(phase + n * stride, phase + (n + each) * stride, stride) for phase, n in starts]


class TileAxis:
    """Tiles along one axis of the output.

    Attributes
    ----------
    form : the method along the axis; None where the filter has one tap.
    size, reach : outputs and points of a tile.
    apart : outputs from one of a tile to the next.
    parts, taps : of the filter; of each part.
    tiles, extent : in an image; outputs along the axis.
    """

    def __init__(self, taps: int, stride: int, apart: int, extent: Index, size: int):
        self.parts, self.stride = parts_of(taps, stride), stride
        self.taps = len(range(self.parts[0].start, self.parts[0].stop, stride))
        self.form = winograd(size, self.taps) if self.taps > 1 else None
        self.size, self.reach = (self.form.size, self.form.reach) if self.form else (1, 1)
        self.apart, self.extent = apart if self.form else 1, extent
        self.tiles = self.apart * pieces_of(extent, self.size * self.apart)

    @property
    def filters(self) -> np.ndarray:
        """Matrix from the taps of a part to points."""
        return self.form.filters if self.form else np.ones((1, 1))

    def first(self, k: Kernel, tile: Expr) -> Expr:
        """First output of a tile; those of dilated taps lie between one another."""
        if self.apart == 1:
            return k.let(tile * self.size)
        step = self.size * self.apart
        return k.let(tirx.floordiv(tile, self.apart) * step + tirx.floormod(tile, self.apart))

    def pixels(self, k: Kernel, first: Expr, part: slice, before: int, extent: Index) -> list[Expr]:
        """Places of what the points of a part are made from, of ``extent``, with ``before`` ahead of the
        first tap; the last place again instead of what lies outside."""
        taps = [part.start + n * self.stride for n in range(self.reach)]
        places = [first * self.stride + (before + tap * self.apart) for tap in taps]
        furthest = (
            before + (self.tiles * self.size - 1) * self.stride + (part.stop - self.stride) * self.apart + 1
        )
        if isinstance(furthest, int) and isinstance(extent, int) and furthest <= extent:
            return places
        return [k.let(tirx.min(place, as_index(extent - 1))) for place in places]

    def inside(self, first: Expr, number: int) -> list[Expr]:
        """Conditions under which output ``number`` of a tile exists."""
        whole = isinstance(self.extent, int) and self.extent % (self.size * self.apart) == 0
        if whole or (number == 0 and self.apart == 1):
            return []
        return [first + number * self.apart < self.extent]

    def input_side(self, k: Kernel, values: list[Expr]) -> list[Expr]:
        """Transformed pixels of a tile."""
        return self.form.input_side(k, values) if self.form else values

    def output_side(self, k: Kernel, values: list[Expr]) -> list[Expr]:
        """Outputs of a tile from the sums of its points."""
        return self.form.output_side(k, values) if self.form else values


def _polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of the product of (x - root), the constant first."""
    result = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *result], [*(root * c for c in result), Fraction(0)]
        result = [a - b for a, b in zip(shifted, scaled, strict=True)]
    return result


def _combination(k: Kernel, row: np.ndarray, values: Sequence[Expr]) -> Expr:
    """Sum of ``row[i] * values[i]`` without the zeros, ones last so that they start no multiplication."""
    lanes = None
    total = None
    terms = sorted((i for i, c in enumerate(row) if c != 0), key=lambda i: abs(row[i]) != 1 or row[i] < 0)
    for i in terms:
        value, factor = values[i], float(row[i])
        if lanes is None:
            lanes = _lanes(value)
        if total is None:
            total = value if factor == 1 else value * k.splat(factor, lanes)
        elif factor == 1:
            total = total + value
        elif factor == -1:
            total = total - value
        else:
            total = total + value * k.splat(factor, lanes)
    return k.let(total)


def _lanes(value: Expr) -> int:
    text = str(value.ty.dtype)
    return int(text.partition("x")[2] or 1)
