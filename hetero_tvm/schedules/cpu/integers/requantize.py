"""The way out of integer accumulators: scale, activation, rounding, saturation, in registers.

Bounds come before rounding, less the zero point: they are whole numbers, so that the result is the same, and
what is converted always fits.  A kernel imports ``codegen.saturation``.

One result is a chain of twelve to twenty instructions of four cycles and more, each waiting for the one
before.  A processor with room for some hundred waiting instructions has a few such chains in flight, and
waits: so several vectors take every step together.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from hetero_tvm.codegen.saturation import between, greater, nearest
from hetero_tvm.host.tvm import Expr, tirx
from hetero_tvm.ops.integers.quantized import QuantConv2d, QuantMatmul
from hetero_tvm.schedules.emit import Kernel, int32

CHAINS = 4
"""Vectors that take every step together."""


def side_by_side(
    count: int,
    vectors: int,
    loop: Callable[[int], AbstractContextManager[Expr]],
    put: Callable[[list[Expr]], None],
) -> None:
    """``put(numbers)`` of all numbers below ``count``: in a ``loop`` as many at once as have :data:`CHAINS`
    vectors, each ``vectors`` of them, and then those that are left."""
    many = max(1, CHAINS // vectors)
    full, rest = divmod(count, many)
    if full:
        with loop(full) as group:
            put([group * many + n for n in range(many)])
    if rest:
        put([int32(full * many + n) for n in range(rest)])


class Steps:
    """Steps of several vectors side by side.

    Attributes
    ----------
    widths : lanes of each vector.
    """

    def __init__(self, k: Kernel, op: QuantMatmul | QuantConv2d, widths: list[int]):
        self.k, self.op, self.widths = k, op, widths

    def each(self, step: Callable[..., Expr], *values: list[Expr]) -> list[Expr]:
        """``step(width, value, ...)`` of every vector, before anything else of any of them."""
        return [self.k.let(step(*given)) for given in zip(self.widths, *values, strict=True)]

    def requantized(self, totals: list[Expr], scales: list[Expr] | None, whole: bool = False) -> list[Expr]:
        """Results from int32 sums with their bias, as ``_Quantized._finished`` has them; with ``whole`` those
        of 8 bits as whole float32 numbers less their zero point."""
        k, op = self.k, self.op
        if scales is None:
            return self.each(lambda w, v: tirx.max(v, k.splat(int32(0), w)), totals) if op.relu else totals
        values = self.each(lambda w, v: v.astype(_lanes("float32", w)), totals)
        values = self.each(lambda w, v, scale: v * scale, values, scales)
        if op.out == "float32":
            return self.each(lambda w, v: greater(v, k.splat(0.0, w)), values) if op.relu else values
        low, high = (limit - op.y_zero for limit in op.limits)
        if op.relu:
            low = min(max(low, 0), high)  # a bound below zero comes behind relu, and wins
        values = self.each(lambda w, v: between(v, low, high, w), values)
        if whole:
            return self.each(lambda w, v: tirx.nearbyint(v), values)
        return self._narrow(values, int32(op.y_zero) if op.y_zero else None, op.out)

    def with_residual(self, values: list[Expr], residuals: list[Expr], join: tuple[Expr, ...]) -> list[Expr]:
        """Results of a convolution with its residual added, from the rounded ones as :meth:`requantized` has
        them whole; ``join`` is that of :func:`joined`."""
        k, op = self.k, self.op
        own, zero, other, final, low, high = join
        added = self.each(lambda w, r: r.astype(_lanes("int32", w)).astype(_lanes("float32", w)), residuals)
        added = self.each(lambda w, r: r - k.splat(zero, w), added)
        added = self.each(lambda w, r: r * k.splat(other, w), added)
        if op.out != "float32":
            values = self.each(lambda w, v: v * k.splat(own, w), values)
        values = self.each(lambda w, v, r: v + r, values, added)
        values = self.each(lambda w, v: between(v, low, high, w), values)
        return self._narrow(values, final, op.final)

    def _narrow(self, values: list[Expr], zero: Expr | None, dtype: str) -> list[Expr]:
        whole = self.each(lambda w, v: nearest(v, w), values)
        if zero is not None:
            whole = self.each(lambda w, v: v + self.k.splat(zero, w), whole)
        return self.each(lambda w, v: v.astype(_lanes(dtype, w)), whole)


def joined(k: Kernel, op: QuantConv2d, numbers: list[Expr]) -> tuple[Expr, ...]:
    """Numbers for :meth:`Steps.with_residual` from the four of ``op``'s operand *join*: the last one, a zero
    point and so whole, as an integer, and the bounds less it."""
    own, zero, other, final = (k.let(number) for number in numbers)
    low, high = (k.let(tirx.const(float(limit), "float32") - final) for limit in op.final_limits)
    return own, zero, other, k.let(final.astype("int32")), low, high


def _lanes(dtype: str, width: int) -> str:
    return f"{dtype}x{width}" if width > 1 else dtype
