"""Quantised operators of onnx's evaluator: its own dequantises no constants by blocks, convolves no rows, and
takes minutes for the products of a Transformer."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun

from hetero_tvm.frontend.onnx.evaluator.windows import Conv


class DequantizeLinear(OpRun):
    """Values of quantised tensors in the scale's precision; onnx has none before opset 19."""

    op_domain = ""

    def _run(self, x, scale, zero=None, axis=None, block_size=None, output_dtype=None):
        def spread(values):
            if values.ndim == 0 or values.size == 1 or values.shape == x.shape:
                return values.reshape(()) if values.size == 1 else values
            along = (1 if axis is None else axis) % x.ndim
            if values.ndim == 1:
                return values.reshape([-1 if n == along else 1 for n in range(x.ndim)])
            return np.take(values, np.arange(x.shape[along]) // (block_size or 1), axis=along)

        whole = x.astype(scale.dtype)
        if zero is not None:
            whole = whole - spread(zero).astype(scale.dtype)
        return (whole * spread(scale),)


class QLinearConv(OpRun):
    """Convolution of 8-bit numbers of any rank, exact until it is rounded once."""

    op_domain = ""

    def _run(self, x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias=None, **given):
        image = x.astype(np.float64) - x_zero.astype(np.float64)
        filters = w.astype(np.float64) - _by_filter(w_zero.astype(np.float64), w.ndim - 1)
        (sums,) = Conv._run(self, image, filters, None if bias is None else bias.astype(np.float64), **given)
        factor = x_scale * _by_filter(w_scale, w.ndim - 2) / y_scale  # in float32, as kernels have it
        return (_rounded(sums * factor, y_zero),)


class MatMulInteger(OpRun):
    """Product of 8-bit numbers: onnx's is one of int32, which no library of linear algebra computes."""

    op_domain = ""

    def _run(self, a, b, a_zero=None, b_zero=None):
        return (_product(a, b, a_zero, b_zero).astype(np.int32),)


class QLinearMatMul(OpRun):
    """Product of 8-bit numbers, rounded to 8 bits."""

    op_domain = ""

    def _run(self, a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero):
        factor = _by_rows(a_scale, a.ndim) * b_scale / y_scale
        return (_rounded(_product(a, b, a_zero, b_zero) * factor, y_zero),)


def _rounded(steps: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """Steps in the type of their zero point, saturated."""
    limits = np.iinfo(zero.dtype)
    moved = np.rint(steps) + zero.astype(np.float64)
    return np.clip(moved, limits.min, limits.max).astype(zero.dtype)


def _product(
    a: np.ndarray, b: np.ndarray, a_zero: np.ndarray | None, b_zero: np.ndarray | None
) -> np.ndarray:
    """Product less zero points, int64; sums of products of 8-bit numbers are exact in float64."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    if a_zero is not None:
        left = left - _by_rows(a_zero.astype(np.float64), a.ndim)
    if b_zero is not None:
        right = right - b_zero.astype(np.float64)
    return (left @ right).astype(np.int64)


def _by_rows(values: np.ndarray, rank: int) -> np.ndarray:
    """One value, or one for each row of a matrix, as a factor of the matrix."""
    return values[:, None] if values.ndim == 1 and values.size > 1 and rank > 1 else values


class ConvInteger(OpRun):
    """Convolution of 8-bit numbers, whose sums are exact in float64."""

    op_domain = ""

    def _run(self, x, w, x_zero=None, w_zero=None, **given):
        image, filters = x.astype(np.float64), w.astype(np.float64)
        if x_zero is not None:
            image = image - x_zero.astype(np.float64)
        if w_zero is not None:
            filters = filters - _by_filter(w_zero.astype(np.float64), w.ndim - 1)
        (sums,) = Conv._run(self, image, filters, None, **given)
        return (sums.astype(np.int64).astype(np.int32),)


def _by_filter(values: np.ndarray, behind: int) -> np.ndarray:
    """One value, or one for each filter, as a factor of what has so many axes behind."""
    return values.reshape(-1, *[1] * behind) if values.size > 1 else values.reshape(())
