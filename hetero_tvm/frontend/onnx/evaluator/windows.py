"""Operators of onnx's evaluator on windows: its own are too slow for real networks, give all groups of a
transposed convolution the first one's bias, and know global maxima of images alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_average_pool import AveragePool_19 as _SlowAveragePool
from onnx.reference.ops.op_conv_transpose import ConvTranspose as _ConvTransposeOfGroups
from onnx.reference.ops.op_max_pool import MaxPool as _SlowMaxPool


class Conv(OpRun):
    """Convolution of any rank, with groups: one matrix product per position of the kernel."""

    op_domain = ""

    def _run(
        self,
        x,
        weight,
        bias=None,
        auto_pad=None,
        dilations=None,
        group=None,
        kernel_shape=None,
        pads=None,
        strides=None,
    ):
        spatial = x.ndim - 2
        kernel = weight.shape[2:]
        strides, dilations = strides or [1] * spatial, dilations or [1] * spatial
        x = _padded(x, kernel, strides, dilations, pads, auto_pad, fill=0)
        sizes = _output_sizes(x.shape[2:], kernel, strides, dilations)
        batch, channels = x.shape[:2]
        group = group or 1
        weight = weight.reshape(group, weight.shape[0] // group, channels // group, *kernel)
        result = np.zeros((batch, group, weight.shape[1], math.prod(sizes)), x.dtype)
        for position, window in _windows(x, kernel, strides, dilations, sizes):
            columns = window.reshape(batch, group, channels // group, -1)
            taps = weight[(..., *position)]
            # depthwise: a product per channel is faster than many 1 x 1 matrix products
            result += taps * columns if channels == group else np.matmul(taps, columns)
        result = result.reshape(batch, -1, *sizes)
        if bias is not None:
            result += bias.reshape(-1, *[1] * spatial)
        return (result,)


class ConvTranspose(_ConvTransposeOfGroups):
    """Transposed convolution; onnx's own gives all groups the first one's bias, and wants one filter each."""

    op_domain = ""

    def _run(self, x, weight, bias=None, group=None, **given):
        parts = []
        for image, filters in zip(np.split(x, group or 1, 1), np.split(weight, group or 1), strict=True):
            parts += super()._run(image, filters, None, group=1, **given)
        y = np.concatenate(parts, axis=1)
        return (y if bias is None else y + bias.reshape(-1, *[1] * (x.ndim - 2)),)


class MaxPool(_SlowMaxPool):
    """Maxima of windows, and their places, which onnx counts within a plane.

    ``ceil_mode`` pads the image for a last window that is not whole, which begins in the image or in the
    borders before it; onnx forgets the borders.
    """

    op_domain = ""

    def _run(
        self,
        x,
        auto_pad=None,
        ceil_mode=None,
        dilations=None,
        kernel_shape=None,
        pads=None,
        storage_order=None,
        strides=None,
    ):
        spatial = x.ndim - 2
        strides, dilations = strides or [1] * spatial, dilations or [1] * spatial
        if ceil_mode and auto_pad in (None, "NOTSET"):
            pads = _whole_windows(x.shape[2:], kernel_shape, strides, dilations, pads or [0] * (2 * spatial))
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        plane = x.shape[2:]
        x = _padded(x, kernel_shape, strides, dilations, pads, auto_pad, fill=lowest)
        sizes = _output_sizes(x.shape[2:], kernel_shape, strides, dilations)
        result = np.full((*x.shape[:2], *sizes), lowest, x.dtype)
        windows = _windows(x, kernel_shape, strides, dilations, sizes)
        if len(self.onnx_node.output) == 1:
            for _, window in windows:
                np.maximum(result, window, out=result)
            return (result,)
        # Places in a plane, by rows or (storage_order 1) by columns; -1 outside.
        place = np.arange(math.prod(plane)).reshape(plane, order="F" if storage_order else "C")[None, None]
        place = _padded(place, kernel_shape, strides, dilations, pads, auto_pad, fill=-1)
        found = np.full(result.shape, -1)
        for (_, window), (_, at) in zip(
            windows, _windows(place, kernel_shape, strides, dilations, sizes), strict=True
        ):
            found = np.where((at >= 0) & ((found < 0) | (window > result)), at, found)
            np.maximum(result, window, out=result)
        planes = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * spatial)
        return result, (found + planes * math.prod(plane)).astype(np.int64)


class AveragePool(_SlowAveragePool):
    """Means of windows.  A single window over the whole image is one mean here: onnx pads the image to the
    window, which is slow, and takes the mean of another part."""

    op_domain = ""

    def _run(self, x, **given):
        kernel, strides = given["kernel_shape"], given.get("strides") or [1] * (x.ndim - 2)
        reach = strides if given.get("ceil_mode") else [1] * len(strides)
        beyond = [k - extent for k, extent in zip(kernel, x.shape[2:], strict=True)]
        reaches = all(0 <= rest < most for rest, most in zip(beyond, reach, strict=True))
        unpadded = not any(given.get("pads") or ()) and given.get("auto_pad") in (None, "NOTSET")
        if reaches and unpadded and {*(given.get("dilations") or ()), 1} == {1}:
            return (x.mean(axis=tuple(range(2, x.ndim)), keepdims=True),)
        return super()._run(x, **given)


class GlobalMaxPool(OpRun):
    """Maximum of each channel; onnx's own takes other axes but of images."""

    op_domain = ""

    def _run(self, x):
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


def _padded(
    x: np.ndarray,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int] | None,
    auto_pad: str | None,
    *,
    fill: float,
) -> np.ndarray:
    """``x`` [batch, channels, *spatial] with ``fill`` around it, as ``pads`` or ``auto_pad`` say."""
    spatial = x.ndim - 2
    pads = list(pads or [0] * (2 * spatial))
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        for axis in range(spatial):
            size, reach = x.shape[2 + axis], (kernel[axis] - 1) * dilations[axis] + 1
            total = max(0, (math.ceil(size / strides[axis]) - 1) * strides[axis] + reach - size)
            small, large = total // 2, total - total // 2
            before, after = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
            pads[axis], pads[axis + spatial] = before, after
    elif auto_pad == "VALID":
        pads = [0] * (2 * spatial)
    if not any(pads):
        return x
    return np.pad(
        x, [(0, 0), (0, 0), *zip(pads[:spatial], pads[spatial:], strict=True)], constant_values=fill
    )


def _whole_windows(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
) -> list[int]:
    """``pads`` with as much more behind an image that a last window, begun before its end, is whole."""
    spatial = len(sizes)
    before, after = pads[:spatial], list(pads[spatial:])
    for n in range(spatial):
        reach = (kernel[n] - 1) * dilations[n] + 1
        count = -(-(before[n] + sizes[n] + after[n] - reach) // strides[n]) + 1
        if (count - 1) * strides[n] >= before[n] + sizes[n]:
            count -= 1
        after[n] = max(after[n], (count - 1) * strides[n] + reach - sizes[n] - before[n])
    return [*before, *after]


def _output_sizes(
    sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[int, ...]:
    """Spatial extents of a result, from those of the padded input."""
    return tuple(
        (n - (k - 1) * d - 1) // s + 1 for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
    )


def _windows(
    x: np.ndarray,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    sizes: Sequence[int],
) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Pairs of a position in the kernel and the values of ``x`` that it meets: [batch, channels, *sizes]."""
    for position in itertools.product(*map(range, kernel)):
        cut = tuple(
            slice(p * d, p * d + (n - 1) * s + 1, s)
            for p, d, s, n in zip(position, dilations, strides, sizes, strict=True)
        )
        yield position, x[(slice(None), slice(None), *cut)]
