"""Matrix product in 8-bit integers whose left operand is quantised row by row when the model runs.

Weights are int8 with a scale per column, found when the model is compiled.  Every row of X becomes uint8
with a scale and a zero point of its own (the range of its values with zero in it, as ONNX's
DynamicQuantizeLinear has it, but by row), the products are added up exactly, and the sum is scaled back to
float32: X and Y, and all that surrounds the product, stay float32.  Rows of their own matter: a
Transformer's activations have outliers in few rows, and one scale for all would leave the others three or
four bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.ops.base import Operand
from hetero_tvm.ops.matmul import ConstantProduct, finished, finished_workload

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import Expr, PrimFunc, TETensor

LEAST_SPAN = 2.0**-100
"""Rows whose values span less count as zero: the inverse of their step would overflow."""
LEVELS = 255
"""Steps between the smallest and the largest value of a row."""
INFINITY_BITS = 0x7F800000
"""Bits of a float32 infinity; a NaN without its sign has more."""
MOST_PAIRS = 2
"""Most pairs of weights that are added up in 16 bits."""
MOST_K = 2**31 // (255 * 128)
"""Reduction length whose sums surely fit int32."""


class _Dynamic(ConstantProduct):
    """Base of the two products: operands, quantised sums."""

    if TYPE_CHECKING:
        smoothed: bool

    @property
    def own(self) -> int:
        """Number of operands before those of the epilogue."""
        return 3 + self.smoothed

    def _quantized_operands(self, columns: int) -> list[Operand]:
        smooth = [Operand("smooth", (self.k,), constant=True)] if self.smoothed else []
        return [
            Operand("X", (*self.lead, self.k)),
            Operand("W", (self.k, columns), "int8", constant=True),
            Operand("scale", (columns,), constant=True),
            *smooth,
        ]

    def _scaled(
        self, x: np.ndarray, w: np.ndarray, scale: np.ndarray, smooth: np.ndarray | None = None
    ) -> np.ndarray:
        if smooth is not None:
            x = (x.astype(np.float32) * smooth.astype(np.float32)).astype(x.dtype)
        u, row_scale, zero = quantized_rows(x)
        total = (u.astype(np.float64) - zero) @ w.astype(np.float64)  # exact: below 2**53
        return total.astype(x.dtype) * (row_scale.astype(x.dtype) * scale)

    def _scaled_workload(
        self, x: TETensor, w: TETensor, scale: TETensor, smooth: TETensor | None = None
    ) -> TETensor:
        from hetero_tvm.host.tvm import te

        if smooth is not None:
            plain, factors = x, smooth
            x = te.compute(x.shape, lambda *i: plain(*i) * factors[i[-1]], name="smoothed")
        rows, shape = _RowsWorkload(x), (*self.lead, w.shape[1])
        axis = te.reduce_axis((0, self.k), name="k")
        total = te.compute(
            shape,
            lambda *i: te.sum(rows.centered(*i[:-1], axis) * w[axis, i[-1]].astype("int32"), axis=axis),
            name="product",
        )
        return te.compute(
            shape,
            lambda *i: total(*i).astype("float32") * (rows.scale(*i[:-1]) * scale[i[-1]]),
            name="scaled",
        )


@dataclass(frozen=True)
class DynamicMatmul(_Dynamic):
    """``Y[..., n] = epilogue(scale_row * scale[n] * ((U[..., k] - zero_row) @ W[k, n]))``.

    U is X in 8 bits, see :func:`quantized_rows`; everything behind the sum is float32.

    Parameters
    ----------
    lead, n, k, epilogue : as in :class:`hetero_tvm.ops.matmul.Matmul`.
    pairs_safe : how many pairs of weights that meet have none of equal sign that sum up to more than 128
        (:func:`sums_of_pairs`; see ``schedules/cpu/dots.py``): 0, 1 or 2.
    smoothed : whether X is multiplied with a vector before it is quantised (SmoothQuant's, by which the rows
        of W were divided).

    Operands: X [*lead, k] float32, W [k, n] int8 (constant), scale [n] float32 (constant), smooth [k] float32
    (constant) when ``smoothed``, then one per ``bias`` / ``residual`` in the order of the epilogue.
    """

    kind: ClassVar[str] = "dynamic_matmul"
    _OMITTED_AT_DEFAULT: ClassVar[tuple[str, ...]] = ("smoothed",)

    epilogue: tuple[str, ...] = ()
    pairs_safe: int = 0
    dtype: str = "float32"
    smoothed: bool = False

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return (*self._quantized_operands(self.n), *self._epilogue_operands(self.epilogue))

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def label(self) -> str:
        name = "smooth_matmul" if self.smoothed else "dynamic_matmul"
        return "_".join([name, f"{self.m}x{self.k}x{self.n}", *self.epilogue])

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        return finished(self._scaled(*arrays[: self.own]), self.epilogue, arrays[self.own :])

    def workload(self) -> PrimFunc:
        from hetero_tvm.ops.te_workload import prim_func

        def compute(*operands):
            total = self._scaled_workload(*operands[: self.own])
            return finished_workload(total, self.epilogue, operands[self.own :])

        return prim_func(self, compute)


@dataclass(frozen=True)
class DynamicGatedMatmul(_Dynamic):
    """``Y = activation(P[..., :n] + bias) * (P[..., n:] + bias)`` where P is the product of 8-bit integers.

    Parameters
    ----------
    lead, n, k, activation, biased : as in :class:`hetero_tvm.ops.gated_matmul.GatedMatmul`.
    pairs_safe, smoothed : as in :class:`DynamicMatmul`.

    Operands: X [*lead, k] float32, W [k, 2 * n] int8 with the columns of the gate first (constant), scale
    [2 * n] (constant), smooth [k] (constant) when ``smoothed``, and bias [2 * n] (constant) when ``biased``.
    """

    kind: ClassVar[str] = "dynamic_gated_matmul"
    _OMITTED_AT_DEFAULT: ClassVar[tuple[str, ...]] = ("smoothed",)

    activation: str = "silu"
    biased: bool = False
    pairs_safe: int = 0
    dtype: str = "float32"
    smoothed: bool = False

    @property
    def inputs(self) -> tuple[Operand, ...]:
        bias = [Operand("bias", (2 * self.n,), constant=True)] if self.biased else []
        return (*self._quantized_operands(2 * self.n), *bias)

    @property
    def flops(self) -> int:
        return 4 * self.m * self.n * self.k

    @property
    def label(self) -> str:
        bias = "_bias" if self.biased else ""
        name = "smooth_gated_matmul" if self.smoothed else "dynamic_gated_matmul"
        return f"{name}_{self.m}x{self.k}x{self.n}{bias}_{self.activation}"

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        bias = arrays[self.own :]
        both = self._scaled(*arrays[: self.own]) + (bias[0] if bias else 0)
        return ACTIVATIONS[self.activation](both[..., : self.n]) * both[..., self.n :]

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te
        from hetero_tvm.ops.te_workload import activation, prim_func

        def compute(*operands):
            both, bias = self._scaled_workload(*operands[: self.own]), operands[self.own :]

            def value(lead, column):
                y = both(*lead, column)
                return y + bias[0][column] if bias else y

            def gated(*i):
                return activation(self.activation, value(i[:-1], i[-1])) * value(i[:-1], i[-1] + self.n)

            return te.compute(self.output.shape, gated, name="gated")

        return prim_func(self, compute)


def quantized_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of ``x`` in 8 bits, the way every kernel does it: (U, scale, zero), all of them whole or float32.

    In float32, step by step, so that a kernel gives the same integers::

        span = max(x, 0) - min(x, 0);  scale = span / 255;  zero = round(-min(x, 0) * (255 / span))
        U = clip(round(x * (255 / span)) + zero, 0, 255)            (rounding half to even)

    A row with a NaN or an infinity has scale NaN: its results are NaN.

    Parameters
    ----------
    x : float [..., k].

    Returns
    -------
    U [..., k] int64, scale [..., 1] float32 and zero [..., 1] float32.
    """
    x = x.astype(np.float32)
    bad = ~np.isfinite(x).all(-1, keepdims=True)
    finite = np.where(np.isfinite(x), x, np.float32(0))
    low = np.minimum(finite.min(-1, keepdims=True, initial=0), np.float32(0))
    high = np.maximum(finite.max(-1, keepdims=True, initial=0), np.float32(0))
    with np.errstate(over="ignore"):
        span = high - low
    wide = span > np.float32(LEAST_SPAN)
    inverse = np.where(wide, np.float32(LEVELS) / np.where(wide, span, np.float32(1)), np.float32(0))
    zero = np.rint(-low * inverse)
    u = np.clip(np.rint(finite * inverse) + zero, 0, LEVELS)
    scale = np.where(bad, np.float32(np.nan), span / np.float32(LEVELS))
    return u.astype(np.int64), scale, zero


def quantized_weights(w: np.ndarray, pairs_safe: int) -> tuple[np.ndarray, np.ndarray]:
    """(int8 [k, n], scale [n] float32) whose product is nearest to ``w``, symmetric, a scale per column.

    With ``pairs_safe`` the scale of a column grows (:func:`safe_range`).
    """
    scale = (safe_range(w, pairs_safe) / 127).astype(np.float32)
    steps = np.where(scale > 0, scale, np.float32(1))
    return np.clip(np.rint(w / steps), -127, 127).astype(np.int8), scale


def safe_range(w: np.ndarray, pairs: int) -> np.ndarray:
    """Values [N] that 127 stands for: the largest weights of ``w`` [..., K, N] by column, or what makes so
    many ``pairs`` safe once each weight is rounded, which may add a half.

    On a trained Transformer it grows by a quarter for one pair and by two thirds for two, and the accuracy
    hardly changes.
    """
    w = w.astype(np.float64)
    largest = np.abs(w).max(tuple(range(w.ndim - 1)), initial=0)
    if pairs:
        for part in sums_of_pairs(w, pairs):
            most = part.reshape(-1, w.shape[-1]).max(0, initial=0)
            largest = np.maximum(largest, most * 127 / (128 - pairs))
    return largest


def sums_of_pairs(w: np.ndarray, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums of the positive and of the negative weights, the latter without their sign, of each ``pairs``
    pairs of ``w`` [..., K, N] that are added up in 16 bits: [..., K / 2 / pairs, N].

    A word has two pairs of neighbours; two pairs that meet are those at the same place of two words.
    """
    pairs = int(pairs)  # contracts of older files say true
    width = 4 * pairs
    lead, (k, n) = w.shape[:-2], w.shape[-2:]
    whole = np.zeros((*lead, k + -k % width, n), w.dtype)
    whole[..., :k, :] = w
    words = whole.reshape(*lead, -1, pairs, 2, 2, n)
    sums = [np.maximum(part, 0).sum((-4, -2)) for part in (words, -words)]
    return sums[0].reshape(*lead, -1, n), sums[1].reshape(*lead, -1, n)


class _RowsWorkload:
    """Rows of X in 8 bits as tensor expressions: :meth:`centered` is U less the zero point."""

    def __init__(self, x: TETensor):
        from hetero_tvm.host.tvm import te, tirx

        lead, k = x.shape[:-1], x.shape[-1]

        def extreme(combine, name):
            axis = te.reduce_axis((0, k), name="k")
            return te.compute(lead, lambda *i: combine(x[(*i, axis)], axis=axis), name=name)

        zero_f = tirx.const(0.0, "float32")
        low, high = extreme(te.min, "low"), extreme(te.max, "high")
        axis = te.reduce_axis((0, k), name="k")
        mask = tirx.const(0x7FFFFFFF, "int32")
        bits = te.compute(
            lead,
            lambda *i: te.max(tirx.bitwise_and(tirx.reinterpret("int32", x[(*i, axis)]), mask), axis=axis),
            name="bits",
        )
        self._x = x
        self._low = te.compute(lead, lambda *i: tirx.min(low(*i), zero_f), name="floor")
        self._span = te.compute(lead, lambda *i: tirx.max(high(*i), zero_f) - self._low(*i), name="span")
        self._bits = bits

    def scale(self, *i: Expr) -> Expr:
        from hetero_tvm.host.tvm import tirx

        step = self._span(*i) / tirx.const(float(LEVELS), "float32")
        return tirx.Select(self._bits(*i) < INFINITY_BITS, step, tirx.const(math.nan, "float32"))

    def centered(self, *i: Expr) -> Expr:
        from hetero_tvm.host.tvm import tirx

        span = self._span(*i[:-1])
        levels, none = tirx.const(float(LEVELS), "float32"), tirx.const(0.0, "float32")
        inverse = tirx.Select(span > tirx.const(LEAST_SPAN, "float32"), levels / span, none)
        zero = tirx.nearbyint((none - self._low(*i[:-1])) * inverse)
        u = tirx.max(tirx.min(tirx.nearbyint(self._x(*i) * inverse) + zero, levels), none)
        return (u - zero).astype("int32")
