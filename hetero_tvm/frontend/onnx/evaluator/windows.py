"""Operators of onnx's evaluator on windows: its own are too slow for real networks, give all groups of a
transposed convolution the first one's bias and cut all that is more than a wanted shape off its end, and know
global maxima of images alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_average_pool import AveragePool_19 as _SlowAveragePool
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


class ConvTranspose(OpRun):
    """Transposed convolution of any rank, with groups: one matrix product per position of the kernel.

    Borders are cut off: ``pads``, or what is more than ``output_shape`` or ``auto_pad`` ask for.
    """

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
        output_padding=None,
        output_shape=None,
        pads=None,
        strides=None,
    ):
        spatial, group = x.ndim - 2, group or 1
        kernel, images = weight.shape[2:], x.shape[2:]
        strides, dilations = strides or [1] * spatial, dilations or [1] * spatial
        more = output_padding or [0] * spatial
        whole = [
            (n - 1) * s + (k - 1) * d + 1
            for n, s, k, d in zip(images, strides, kernel, dilations, strict=True)
        ]
        begins, sizes = _cut_off(images, strides, whole, more, pads, output_shape, auto_pad)
        batch, channels = x.shape[:2]
        columns = x.reshape(batch, group, channels // group, -1)
        filters = weight.reshape(group, channels // group, *weight.shape[1:])
        extents = [max(n, b + size) for n, b, size in zip(whole, begins, sizes, strict=True)]
        result = np.zeros((batch, group * weight.shape[1], *extents), x.dtype)
        for position, window in _windows(result, kernel, strides, dilations, images):
            taps = filters[(..., *position)].swapaxes(1, 2)
            window += np.matmul(taps, columns).reshape(window.shape)
        cut = tuple(slice(b, b + size) for b, size in zip(begins, sizes, strict=True))
        result = result[(slice(None), slice(None), *cut)]
        return (result if bias is None else result + bias.reshape(-1, *[1] * spatial),)


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
    """Means of windows, a sum for each position of the kernel: onnx goes from window to window.

    A single window over the whole image is one mean here: onnx pads the image to the window, which is slow,
    and takes the mean of another part, as it does of windows that ``ceil_mode`` adds.  Borders of
    ``auto_pad`` are left to onnx.
    """

    op_domain = ""

    def _run(self, x, **given):
        spatial = x.ndim - 2
        kernel, strides = given["kernel_shape"], given.get("strides") or [1] * spatial
        reach = strides if given.get("ceil_mode") else [1] * len(strides)
        beyond = [k - extent for k, extent in zip(kernel, x.shape[2:], strict=True)]
        reaches = all(0 <= rest < most for rest, most in zip(beyond, reach, strict=True))
        unpadded = not any(given.get("pads") or ()) and given.get("auto_pad") in (None, "NOTSET")
        if reaches and unpadded and {*(given.get("dilations") or ()), 1} == {1}:
            return (x.mean(axis=tuple(range(2, x.ndim)), keepdims=True),)
        if given.get("auto_pad") not in (None, "NOTSET"):
            return super()._run(x, **given)
        dilations = given.get("dilations") or [1] * spatial
        pads = list(given.get("pads") or [0] * (2 * spatial))
        whole = (
            _whole_windows(x.shape[2:], kernel, strides, dilations, pads) if given.get("ceil_mode") else pads
        )
        beyond = [more - own for more, own in zip(whole, pads, strict=True)]

        def sums(values: np.ndarray, border: int) -> np.ndarray:
            values = _padded(values, kernel, strides, dilations, pads, None, fill=border)
            values = _padded(values, kernel, strides, dilations, beyond, None, fill=0)
            sizes = _output_sizes(values.shape[2:], kernel, strides, dilations)
            total = np.zeros((*values.shape[:2], *sizes), values.dtype)
            for _, window in _windows(values, kernel, strides, dilations, sizes):
                total += window
            return total

        # What a last window has beyond the borders counts never.
        counts = sums(np.ones((1, 1, *x.shape[2:]), x.dtype), int(bool(given.get("count_include_pad"))))
        return (sums(x, 0) / counts,)


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


def _cut_off(
    images: Sequence[int],
    strides: Sequence[int],
    whole: Sequence[int],
    more: Sequence[int],
    pads: Sequence[int] | None,
    wanted: Sequence[int] | None,
    auto_pad: str | None,
) -> tuple[list[int], list[int]]:
    """Elements cut off before a transposed convolution of extents ``whole``, ``more`` behind; its sizes."""
    spatial = len(images)
    same = auto_pad in ("SAME_UPPER", "SAME_LOWER")
    if not wanted and not same:
        pads = pads or [0] * (2 * spatial)
        begins, ends = pads[:spatial], pads[spatial:]
        return list(begins), [n + m - b - e for n, m, b, e in zip(whole, more, begins, ends, strict=True)]
    sizes = list(wanted or [n * s for n, s in zip(images, strides, strict=True)])[-spatial:]
    surplus = [max(0, n + m - size) for n, m, size in zip(whole, more, sizes, strict=True)]
    return [over // 2 if auto_pad == "SAME_UPPER" else over - over // 2 for over in surplus], sizes


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
