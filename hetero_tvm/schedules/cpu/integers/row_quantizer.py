"""Rows of float32 turned into 8 bits inside a kernel, with a scale and a zero point each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hetero_tvm.codegen.saturation import between, greater, lesser, nearest
from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.ops.integers.dynamic_matmul import INFINITY_BITS, LEAST_SPAN, LEVELS
from hetero_tvm.schedules.cpu.rows.row_reduction import RowReduction, each_vector, maximum
from hetero_tvm.schedules.emit import Index, Kernel, constant, int32, vector_loop


def magnitude_bits(value: Expr, width: int) -> Expr:
    """Bits of float32 values without their sign, as int32: they order as the magnitudes do."""
    bits = tirx.reinterpret("int32" if width == 1 else f"int32x{width}", value)
    mask = int32(0x7FFFFFFF)
    return tirx.bitwise_and(bits, mask if width == 1 else tirx.Broadcast(mask, width))


def _smaller(a: Expr, b: Expr) -> Expr:
    """Smaller of two values; NaN is found by its bits."""
    return lesser(b, a)


def _larger(a: Expr, b: Expr) -> Expr:
    return greater(b, a)


@dataclass
class QuantizedRows:
    """Rows in 8 bits, in memory of the kernel's own.

    Attributes
    ----------
    values : [rows, length], the values, 0 to 255; what lies behind the reduction length is never written.
    scale : float32 [rows]; NaN for a row that is not finite.
    zero : int32 [rows].
    """

    values: Buffer
    scale: Buffer
    zero: Buffer

    @classmethod
    def of(cls, k: Kernel, rows: int, length: int, dtype: str) -> QuantizedRows:
        """Memory for ``rows`` rows of ``length`` values each."""
        return cls(k.scratch((rows, length), dtype), k.scratch((rows,)), k.scratch((rows,), "int32"))

    def take(
        self, k: Kernel, row: Expr, extent: int, lanes: int, value_at: Callable[[Index, int], Expr]
    ) -> None:
        """Quantise one row: ``value_at(column, width)`` for ``extent`` columns; two passes over it.

        The integers are those of :func:`hetero_tvm.ops.integers.dynamic_matmul.quantized_rows`: bounds come
        before rounding, less the zero point.  The kernel imports ``codegen.saturation``.
        """
        low = RowReduction(k, lanes, _smaller, 0.0)
        high = RowReduction(k, lanes, _larger, 0.0)
        bits = RowReduction(k, lanes, maximum, 0, "int32")  # of |x|: what is not finite has the largest

        def measure(column: Index, width: int, slot: int) -> None:
            value = k.let(value_at(column, width))
            low.take(value, width, slot)
            high.take(value, width, slot)
            bits.take(magnitude_bits(value, width), width, slot)

        each_vector(k, extent, lanes, measure)
        smallest = k.let(low.finish())
        span = k.let(high.finish() - smallest)
        levels = constant(float(LEVELS))
        inverse = k.let(tirx.Select(span > constant(LEAST_SPAN), levels / span, constant(0.0)))
        finite = k.let(bits.finish() < int32(INFINITY_BITS))
        zero = k.let(tirx.nearbyint(tirx.Select(finite, (constant(0.0) - smallest) * inverse, constant(0.0))))
        k.store(self.scale, tirx.Select(finite, span / levels, constant(float("nan"))), [row])
        k.store(self.zero, zero.astype("int32"), [row])
        dtype = self.values.dtype

        least, most = k.let(constant(0.0) - zero), k.let(levels - zero)
        whole_zero = k.let(zero.astype("int32"))

        def write(column: Index, width: int) -> None:
            value = between(value_at(column, width) * k.splat(inverse, width), least, most, width)
            whole = nearest(value, width) + k.splat(whole_zero, width)
            narrow = whole.astype(f"{dtype}x{width}" if width > 1 else dtype)
            k.store(self.values, narrow, [row, k.ramp(column, width)])

        vector_loop(k, extent, lanes, write, unroll=2)
