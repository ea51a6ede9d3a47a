"""Operators of onnx's evaluator on elements, rows and places, in the precision of their operands.

Its own evaluator computes Erf in single precision, BatchNormalization of opset 9 to 13 as in training, the
softmaxes from before opset 13 along one axis, norms of magnitudes with their signs, LRN for as many channels
as there are images, gathers no elements of long axes, takes no depth of one dimension and no infinity in
OneHot, cuts nothing by negative pads, and resizes no axes that count from the end, nor to aligned corners of
broken extents.
"""

from __future__ import annotations

import math

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_resize import Resize as _ResizeByScales


class Erf(OpRun):
    """Error function, exact to the last bit or so, element by element."""

    op_domain = ""

    def _run(self, x):
        values = np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size)
        return (values.reshape(x.shape).astype(x.dtype),)


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


class Pad(OpRun):
    """Padding; what is negative is cut off first, as ONNX Runtime has it."""

    op_domain = ""

    def _run(self, x, pads=None, constant_value=None, axes=None, mode=None, value=None, paddings=None):
        pads = np.asarray(paddings if pads is None else pads, np.int64).reshape(2, -1)
        widths = np.zeros((x.ndim, 2), np.int64)
        widths[range(x.ndim) if axes is None else np.asarray(axes) % x.ndim] = pads.T
        cut = tuple(slice(max(0, -a), n - max(0, -b)) for n, (a, b) in zip(x.shape, widths, strict=True))
        form = {"mode": mode or "constant"}
        if form["mode"] == "constant":
            given = value if constant_value is None else constant_value
            form["constant_values"] = 0 if given is None else np.reshape(given, -1)[0]
        return (np.pad(x[cut], np.maximum(widths, 0), **form).astype(x.dtype),)


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
