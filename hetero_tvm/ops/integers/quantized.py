"""Products and convolutions of 8-bit integers, exact in int32, with requantisation.

Types: X is int8 or uint8, W int8.  A uint8 counts less 128, everywhere here: as it is stored by machines
that have no unsigned type.  Whoever makes a contract folds zero points into the bias (the sum over W
times X's zero point less 128, say) and into ``fill``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand
from hetero_tvm.ops.conv2d import Conv2d

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import Expr, PrimFunc

_FILTERS_TO_SHARE = 16
"""Filters of one channel from which on each is computed by one thread."""
OFFSET = {"int8": 0, "uint8": 128}
"""Amount that is subtracted from a value of each 8-bit type."""


def limits_of(dtype: str) -> tuple[int, int]:
    """Least and largest value of a type of 8 bits."""
    whole = np.iinfo(dtype)
    return int(whole.min), int(whole.max)


def saturated(y: np.ndarray, zero: int, limits: tuple[int, int], dtype: str) -> np.ndarray:
    """Steps of 8 bits: ``y`` rounded half to even, plus the zero point, within the limits."""
    return np.clip(np.rint(y).astype(np.float64) + zero, *limits).astype(dtype)


def rounded(y: Expr, zero: int, limits: tuple[int, int], dtype: str) -> Expr:
    """Scalar expression of :func:`saturated`."""
    from hetero_tvm.host.tvm import tirx

    low, high = (tirx.const(float(limit), "float32") for limit in limits)
    y = tirx.nearbyint(y) + tirx.const(float(zero), "float32")
    return tirx.max(tirx.min(y, high), low).astype(dtype)


@dataclass(frozen=True)
class _Quantized(FusedOp):
    """``Y = out(scale[n] * float32(sum + bias[n]))``, where the sum and its bias are int32 and wrap.

    Parameters
    ----------
    x_dtype : int8 or uint8.
    out : dtype of Y.  int32: the sum with its bias, unscaled.  float32: scaled.  int8, uint8: scaled, rounded
        half to even, plus ``y_zero``, saturated.
    y_zero : zero point of a Y of 8 bits, in its own type.
    relu : whether negative values become 0, before rounding.
    """

    x_dtype: str = "int8"
    out: str = "int32"
    y_zero: int = 0
    relu: bool = False

    bounds = ()  # a field of its subclasses: here it would stand before theirs

    @property
    def columns(self) -> int:
        """Length of the bias and scale: one value per column or filter."""
        raise NotImplementedError

    @property
    def limits(self) -> tuple[int, int]:
        """Least and largest value of a Y of 8 bits."""
        low, high = self.bounds or limits_of(self.out)
        return int(low), int(high)

    @property
    def scaled(self) -> bool:
        return self.out != "int32"

    def _vectors(self) -> tuple[Operand, ...]:
        bias = Operand("bias", (self.columns,), "int32", constant=True)
        scale = Operand("scale", (self.columns,), constant=True)
        return (bias, scale) if self.scaled else (bias,)

    def _suffix(self) -> str:
        return "_relu" * self.relu + f"_{self.x_dtype}_{self.out}"

    def _finished(self, total: np.ndarray, vectors: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        """Turn int64 sums into the result; ``shape`` is that of bias and scale for broadcasting."""
        total = (total + vectors[0].reshape(shape).astype(np.int64)).astype(np.int32)
        if not self.scaled:
            return np.maximum(total, 0) if self.relu else total
        y = total.astype(np.float32) * vectors[1].reshape(shape).astype(np.float32)
        if self.relu:
            y = np.maximum(y, np.float32(0))
        if self.out == "float32":
            return y
        return saturated(y, self.y_zero, self.limits, self.out)

    def _element(self, total: Expr, bias: Expr, scale: Expr | None) -> Expr:
        """Tensor expression that turns one int32 sum into an element of the result."""
        from hetero_tvm.host.tvm import tirx

        y = total + bias
        if not self.scaled:
            return tirx.max(y, tirx.const(0, "int32")) if self.relu else y
        y = y.astype("float32") * scale
        if self.relu:
            y = tirx.max(y, tirx.const(0.0, "float32"))
        if self.out == "float32":
            return y
        return rounded(y, self.y_zero, self.limits, self.out)


@dataclass(frozen=True)
class QuantMatmul(_Quantized):
    """``Y[..., n] = out(X[..., k] @ W[k, n])`` with 8-bit X and W; see :class:`_Quantized`.

    Parameters
    ----------
    lead : leading dimensions of X and Y.
    n, k : columns of the result; reduction length.
    pairs_safe : how many pairs of weights that meet in a CPU's multiplier cannot saturate 16 bits (see
        ``schedules/cpu/dots.py``).
    bounds : least and largest value of a Y of 8 bits, in its own type; empty for those of the type.

    Operands: X [*lead, k], W [k, n] int8, bias [n] int32, and scale [n] float32 unless ``out`` is int32; all
    but X constant.
    """

    kind: ClassVar[str] = "quant_matmul"
    _OMITTED_AT_DEFAULT: ClassVar[tuple[str, ...]] = ("pairs_safe", "bounds")

    lead: tuple[int, ...] = ()
    n: int = 1
    k: int = 1
    pairs_safe: int = 0
    bounds: tuple[int, ...] = ()

    @property
    def m(self) -> int:
        return math.prod(self.lead)

    @property
    def columns(self) -> int:
        return self.n

    @property
    def inputs(self) -> tuple[Operand, ...]:
        x = Operand("X", (*self.lead, self.k), self.x_dtype)
        return (x, Operand("W", (self.k, self.n), "int8", constant=True), *self._vectors())

    @property
    def output(self) -> Operand:
        return Operand("Y", (*self.lead, self.n), self.out)

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def label(self) -> str:
        return f"quant_matmul_{self.m}x{self.k}x{self.n}{self._suffix()}"

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        x, w, *vectors = arrays
        total = (x.astype(np.int64) - OFFSET[self.x_dtype]) @ w.astype(np.int64)
        return self._finished(total, vectors, (-1,))

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te, tirx
        from hetero_tvm.ops.te_workload import prim_func

        offset = tirx.const(OFFSET[self.x_dtype], "int32")

        def compute(x, w, bias, scale=None):
            axis = te.reduce_axis((0, self.k), name="k")
            total = te.compute(
                self.output.shape,
                lambda *i: te.sum(
                    (x[(*i[:-1], axis)].astype("int32") - offset) * w[axis, i[-1]].astype("int32"), axis=axis
                ),
                name="product",
            )
            return te.compute(
                self.output.shape,
                lambda *i: self._element(total(*i), bias[i[-1]], scale if scale is None else scale[i[-1]]),
                name="Y",
            )

        return prim_func(self, compute)


@dataclass(frozen=True)
class QuantConv2d(_Quantized):
    """A convolution of 8-bit images [N, C, H, W]; see :class:`_Quantized` and
    :class:`hetero_tvm.ops.conv2d.Conv2d`, whose fields these are.

    Parameters
    ----------
    fill : value outside of X, counted as this module counts (X's zero point, for uint8 less 128).
    pairs_safe, bounds : as in :class:`QuantMatmul`; :meth:`word_order` says which weights meet in a word.
    residual : type of an image R that is added to Q, the result so far; empty for none.  A Q of 8 bits is
        rounded again: ``Y = final((Q - y_zero) * join[0] + (R - join[1]) * join[2] + join[3])``; a float32
        one only here, and counts in steps of Y: ``Y = final(Q + (R - join[1]) * join[2] + join[3])``.
    final, final_bounds : type of such a sum, and its bounds, as ``bounds``.

    Operands: X, W [filters, channels / groups, *kernel] int8, bias [filters] int32, and scale [filters]
    float32 unless ``out`` is int32, all but X constant; with a residual join [4] float32 (constant) and R.
    """

    kind: ClassVar[str] = "quant_conv2d"
    _OMITTED_AT_DEFAULT: ClassVar[tuple[str, ...]] = (
        "pairs_safe",
        "bounds",
        "residual",
        "final",
        "final_bounds",
    )

    batch: int = 1
    channels: int = 1
    height: int = 1
    width: int = 1
    filters: int = 1
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    fill: int = 0
    groups: int = 1
    pairs_safe: int = 0
    bounds: tuple[int, ...] = ()
    residual: str = ""
    final: str = ""
    final_bounds: tuple[int, ...] = ()

    @property
    def final_limits(self) -> tuple[int, int]:
        """Least and largest value of a sum."""
        whole = np.iinfo(self.final)
        low, high = self.final_bounds or (whole.min, whole.max)
        return int(low), int(high)

    @staticmethod
    def columns_meet(w_shape: Sequence[int]) -> bool:
        """Whether neighbouring columns of the window meet in a word: it has one row and one channel, and
        there are filters enough for threads to share, as rows are not cut then."""
        filters, channels, height, _ = w_shape
        return channels == height == 1 and filters >= _FILTERS_TO_SHARE

    @classmethod
    def word_order(cls, w: np.ndarray) -> np.ndarray:
        """Weights [..., K, filters] of [filters, channels of a group, *kernel]: neighbours along K meet in a
        word.  They are channels of one tap; where a group has one channel, rows of the window, or its
        :meth:`columns <columns_meet>`."""
        if w.shape[1] == 1:
            return w[:, 0].transpose((1, 2, 0) if cls.columns_meet(w.shape) else (2, 1, 0))
        return w.transpose(2, 3, 1, 0)

    @property
    def plain(self) -> Conv2d:
        """The convolution of floats with this geometry."""
        return Conv2d(
            *(self.batch, self.channels, self.height, self.width, self.filters),
            *(self.kernel, self.strides, self.padding, self.dilation),
            groups=self.groups,
        )

    @property
    def columns(self) -> int:
        return self.filters

    @property
    def inputs(self) -> tuple[Operand, ...]:
        image = (self.batch, self.channels, self.height, self.width)
        weights = (self.filters, self.channels // self.groups, *self.kernel)
        x, w = Operand("X", image, self.x_dtype), Operand("W", weights, "int8", constant=True)
        if not self.residual:
            return (x, w, *self._vectors())
        join = Operand("join", (4,), constant=True)
        return (x, w, *self._vectors(), join, Operand("R", self.plain.out_image, self.residual))

    @property
    def output(self) -> Operand:
        return Operand("Y", self.plain.out_image, self.final or self.out)

    @property
    def flops(self) -> int:
        return self.plain.flops

    @property
    def label(self) -> str:
        return f"quant_{self.plain.label}{self._suffix()}" + "_residual" * bool(self.residual)

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        x, w, *vectors = arrays
        vectors, rest = vectors[: 1 + self.scaled], vectors[1 + self.scaled :]
        top, left, bottom, right = self.padding
        pads = ((0, 0), (0, 0), (top, bottom), (left, right))
        x = np.pad(x.astype(np.int64) - OFFSET[self.x_dtype], pads, constant_values=self.fill)
        plain = self.plain
        (sh, sw), (dh, dw) = self.strides, self.dilation
        x = x.reshape(self.batch, self.groups, -1, *x.shape[2:])
        w = w.reshape(self.groups, -1, *w.shape[1:]).astype(np.int64)
        total = np.zeros(plain.out_image, np.int64)
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                rows = slice(i * dh, i * dh + (plain.out_height - 1) * sh + 1, sh)
                columns = slice(j * dw, j * dw + (plain.out_width - 1) * sw + 1, sw)
                taps = np.einsum("ngchw,goc->ngohw", x[..., rows, columns], w[..., i, j])
                total += taps.reshape(total.shape)
        y = self._finished(total, vectors, (-1, 1, 1))
        if not self.residual:
            return y
        join, r = rest[0].astype(np.float32), rest[1].astype(np.float32)
        own = y if self.out == "float32" else (y.astype(np.float32) - np.float32(self.y_zero)) * join[0]
        sums = own + (r - join[1]) * join[2]
        return np.clip(np.rint(sums) + join[3], *self.final_limits).astype(self.final)

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te, tirx
        from hetero_tvm.ops.te_workload import prim_func

        top, left, bottom, right = self.padding
        (sh, sw), (dh, dw) = self.strides, self.dilation
        offset, fill = tirx.const(OFFSET[self.x_dtype], "int32"), tirx.const(self.fill, "int8")
        per, filters = self.channels // self.groups, self.filters // self.groups

        def added(y, join, r):
            low, high = (tirx.const(float(end), "float32") for end in self.final_limits)
            total = y
            if self.out != "float32":
                total = (y.astype("float32") - tirx.const(float(self.y_zero), "float32")) * join[0]
            total = total + (r.astype("float32") - join[1]) * join[2]
            return tirx.max(tirx.min(tirx.nearbyint(total) + join[3], high), low).astype(self.final)

        def compute(x, w, bias, scale=None, join=None, r=None):
            c, i, j = (te.reduce_axis((0, e)) for e in (per, *self.kernel))

            def number(*at):
                return x(*at).astype("int32") - offset

            def bordered(n, c, y, z):
                row, column = y - top, z - left
                inside = te.all(row >= 0, row < self.height, column >= 0, column < self.width)
                return te.if_then_else(inside, number(n, c, row, column).astype("int8"), fill)

            image = number
            if any(self.padding):
                shape = (self.batch, self.channels, self.height + top + bottom, self.width + left + right)
                image = te.compute(shape, bordered, name="padded")
            total = te.compute(
                self.plain.out_image,
                lambda n, o, y, z: te.sum(
                    image(n, o // filters * per + c, y * sh + i * dh, z * sw + j * dw).astype("int32")
                    * w[o, c, i, j].astype("int32"),
                    axis=[c, i, j],
                ),
                name="product",
            )
            done = te.compute(
                self.plain.out_image,
                lambda n, o, y, z: self._element(
                    total[n, o, y, z], bias[o], scale if scale is None else scale[o]
                ),
                name="Y",
            )
            if r is None:
                return done
            return te.compute(self.plain.out_image, lambda *at: added(done(*at), join, r(*at)), name="sum")

        return prim_func(self, compute)
