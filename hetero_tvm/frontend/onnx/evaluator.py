"""Replacements for operators of onnx's evaluator, in the precision of their operands.

Its own evaluator computes Erf in single precision, BatchNormalization of opset 9 to 13 as in
training, the softmaxes from before opset 13 along one axis, convolutions and pools too slowly for real
networks, global maxima of images alone, norms of magnitudes with their signs, LRN for as many channels as
there are images, gathers no elements of long axes, takes no depth of one dimension and no infinity in
OneHot, resizes no axes that count from the end, nor to aligned corners of broken extents, and samples
grids by newer names of modes alone.
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
from onnx.reference.ops.op_resize import Resize as _ResizeByScales


class Erf(OpRun):
    """Error function, exact to the last bit or so, element by element."""

    op_domain = ""

    def _run(self, x):
        values = np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size)
        return (values.reshape(x.shape).astype(x.dtype),)


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


class LpNormalization(OpRun):
    """Division by the norm, whose magnitudes onnx's own leaves out; 0 by 0 is 0."""

    op_domain = ""

    def _run(self, x, axis=None, p=None):
        axis = -1 if axis is None else axis
        norm = np.abs(x).sum(axis, keepdims=True) if p == 1 else np.sqrt((x * x).sum(axis, keepdims=True))
        return (np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm)).astype(x.dtype),)


class BatchNormalization(OpRun):
    """Normalization with the running statistics; raises in training mode, which is not for inference."""

    op_domain = ""

    def _run(self, x, scale, bias, mean, variance, epsilon=None, momentum=None, training_mode=None):
        if training_mode:
            raise NotImplementedError(f"node {self.onnx_node.name!r} is in training mode")
        shape = (-1, *[1] * (x.ndim - 2))
        factor = scale / np.sqrt(variance + np.asarray(1e-5 if epsilon is None else epsilon, variance.dtype))
        return ((x - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape),)


_ONE_AXIS = 13
"""Opset since which Softmax, LogSoftmax and Hardmax are along one axis; before, over all from it on."""


class _OfRows(OpRun):
    """Operator on each row: along an axis, or over all axes from one on, as the opset says."""

    op_domain = ""

    def _run(self, x, axis=None):
        if self.run_params["opsets"][""] >= _ONE_AXIS:
            rows = np.moveaxis(x, -1 if axis is None else axis, -1)
            return (np.moveaxis(self._of_rows(rows), -1, -1 if axis is None else axis),)
        # The evaluator fills in the default of today's Softmax, which is another one.
        given = any(attribute.name == "axis" for attribute in self.onnx_node.attribute)
        axis = axis % max(x.ndim, 1) if given else 1
        rows = x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
        return (self._of_rows(rows).reshape(x.shape),)

    def _of_rows(self, rows):
        raise NotImplementedError


class Softmax(_OfRows):
    """Exponentials that sum to 1."""

    def _of_rows(self, rows):
        powers = np.exp(rows - rows.max(axis=-1, keepdims=True, initial=-np.inf))
        return powers / powers.sum(axis=-1, keepdims=True)


class LogSoftmax(_OfRows):
    """Logarithms of the softmax, finite where that underflows."""

    def _of_rows(self, rows):
        lowered = rows - rows.max(axis=-1, keepdims=True, initial=-np.inf)
        return lowered - np.log(np.exp(lowered).sum(axis=-1, keepdims=True))


class Hardmax(_OfRows):
    """1 at the first largest element, 0 elsewhere."""

    def _of_rows(self, rows):
        result = np.zeros_like(rows)
        if rows.size:
            np.put_along_axis(result, rows.argmax(axis=-1)[..., None], 1, axis=-1)
        return result


class GatherElements(OpRun):
    """Gathering of single elements along an axis of any length."""

    op_domain = ""

    def _run(self, data, indices, axis=None):
        axis = (axis or 0) % data.ndim
        seen = data[tuple(slice(None if d == axis else n) for d, n in enumerate(indices.shape))]
        return (np.take_along_axis(seen, np.where(indices < 0, indices + data.shape[axis], indices), axis),)


class OneHot(OpRun):
    """A choice between two values, infinite or bool ones too; the depth has one element, in any shape."""

    op_domain = ""

    def _run(self, indices, depth, values, axis=None):
        count, rank = int(np.reshape(depth, -1)[0]), indices.ndim + 1
        axis = (-1 if axis is None else axis) % rank
        whole = indices.astype(np.int64)
        whole = np.expand_dims(np.where(whole < 0, whole + count, whole), axis)
        places = np.arange(count).reshape([count if n == axis else 1 for n in range(rank)])
        return (np.where(whole == places, values[1], values[0]),)


class LRN(OpRun):
    """Division by a power of the mean square of neighbouring channels."""

    op_domain = ""

    def _run(self, x, alpha=None, beta=None, bias=None, size=None):
        alpha, beta, bias = (
            float(default if value is None else value)
            for value, default in ((alpha, 1e-4), (beta, 0.75), (bias, 1.0))
        )
        pads = [(0, 0), ((size - 1) // 2, size // 2), *[(0, 0)] * (x.ndim - 2)]
        squares = np.pad(np.square(x), pads)
        total = sum(squares[:, first : first + x.shape[1]] for first in range(size))
        return ((x / (bias + alpha / size * total) ** beta).astype(x.dtype),)


class Resize(_ResizeByScales):
    """Resize, whose aligned corners are those of the result as it is, not of a broken extent before it.

    So the specification, ONNX Runtime and PyTorch have it: 9 elements by 1.5 are 13, the last one the corner.
    Axes may count from the end.
    """

    op_domain = ""

    def _run(self, x, roi=None, scales=None, sizes=None, **attributes):
        if attributes.get("axes"):
            attributes["axes"] = [a % x.ndim for a in attributes["axes"]]
        aligned = attributes.get("coordinate_transformation_mode") in ("align_corners", b"align_corners")
        if aligned and scales is not None and scales.size:
            axes = attributes.get("axes") or range(x.ndim)
            sizes = np.array([int(np.float32(x.shape[a]) * s) for a, s in zip(axes, scales, strict=True)])
            scales = None
        return super()._run(x, roi, scales, sizes, **attributes)


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


class GridSample(OpRun):
    """Pixels at positions of a grid, in images of any rank; onnx's own knows the modes of opset 20 alone,
    takes places in float32, and one pixel at a time."""

    op_domain = ""

    def _run(self, x, grid, mode=None, padding_mode=None, align_corners=None):
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode or "linear")
        extents = x.shape[2:]
        batch = np.arange(len(x)).reshape(-1, *[1] * len(extents))
        taps = []  # per axis: (index, inside, weight) of each pixel that counts
        for axis, extent in enumerate(extents):
            unit = (grid[..., len(extents) - 1 - axis].astype(x.dtype) + 1) / 2
            low, high = (0.0, extent - 1.0) if align_corners else (-0.5, extent - 0.5)
            place = unit * (extent - 1) if align_corners else unit * extent - 0.5
            place = np.rint(place) if mode == "nearest" else place
            if padding_mode == "reflection":  # of "border" the single pixels are taken from there
                place = _reflected(place, low, high)
            base = np.floor(place)
            found = []
            for offset, weight in _weights(mode, place - base):
                at = base + offset
                inside = (at >= 0) & (at < extent) if padding_mode in (None, "zeros") else True
                at = _reflected(at, low, high) if padding_mode == "reflection" else at
                found.append((np.clip(at, 0, extent - 1).astype(np.int64), inside, weight))
            taps.append(found)
        result = np.zeros((len(x), *grid.shape[1:-1], x.shape[1]), x.dtype)
        for chosen in itertools.product(*taps):
            weight = math.prod((np.where(inside, weight, 0) for _, inside, weight in chosen), start=1)
            # The channels come last: the image and its places are indices beside one another.
            pixels = np.moveaxis(x, 1, -1)[(batch, *(at for at, _, _ in chosen))]
            result += weight[..., None].astype(x.dtype) * pixels
        return (np.moveaxis(result, -1, 1),)


def _weights(mode: str, rest: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Offsets of the pixels around a position, ``rest`` behind the first of them, and their weights (cubic
    ones by Keys, 1981, with a = -0.75)."""
    if mode == "nearest":
        return [(0, np.ones_like(rest))]
    if mode == "linear":
        return [(0, 1 - rest), (1, rest)]
    outer, inner = np.poly1d([-0.75, 3.75, -6, 3]), np.poly1d([1.25, -2.25, 0, 1])
    return [(-1, outer(rest + 1)), (0, inner(rest)), (1, inner(1 - rest)), (2, outer(2 - rest))]


def _reflected(place: np.ndarray, low: float, high: float) -> np.ndarray:
    """Places that lie outside, mirrored at the borders until they lie between them."""
    if high <= low:
        return np.full_like(place, 0)
    turns, rest = np.divmod(np.abs(place - low), high - low)
    return np.where(turns % 2 == 0, rest, high - low - rest) + low


#: Classes for the argument ``new_ops`` of :class:`onnx.reference.ReferenceEvaluator`.
REFERENCE_OPS: tuple[type[OpRun], ...] = (
    *(Erf, Conv, ConvTranspose, MaxPool, BatchNormalization, GatherElements, OneHot, LRN),
    *(Softmax, LogSoftmax, Hardmax, AveragePool, GlobalMaxPool, LpNormalization, Resize, DequantizeLinear),
    GridSample,
)


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
