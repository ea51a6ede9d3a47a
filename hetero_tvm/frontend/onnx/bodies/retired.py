"""Operators that ONNX had for a while (CoreML's converter and Windows ML wrote them), in plain ONNX.

ONNX Runtime runs them still.  Semantics: its core/providers/cpu, where ONNX's own text is gone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import NodeProto, TensorProto

from hetero_tvm.frontend.onnx.graph.body import Body

_FIRST_SLICE_BY_INPUTS = 10
_FIRST_THRESHOLDED_RELU = 10
_FIRST_MEAN_VARIANCE = 9
_LEAST_VARIANCE = 1e-9


def _as_it_is(b: Body) -> None:
    b.nodes.append(NodeProto.FromString(b.node.SerializeToString()))


def _number(b: Body, name: str, default: float) -> str:
    return b.const(float(b.attributes.get(name, default)))


def _affine(b: Body) -> None:
    """``alpha * x + beta``."""
    scaled = b.op("Mul", b.input(0), _number(b, "alpha", 1.0))
    b.op("Add", scaled, _number(b, "beta", 0.0), output=b.wants(0))


def _image_scaler(b: Body) -> None:
    """``scale * x + bias``, with a bias per channel."""
    bias = np.asarray(b.attributes.get("bias", [0.0]), np.float32).reshape(-1, 1, 1)
    scaled = b.op("Mul", b.input(0), _number(b, "scale", 1.0))
    b.op("Add", scaled, b.const(bias), output=b.wants(0))


def _scale(b: Body) -> None:
    b.op("Mul", b.input(0), _number(b, "scale", 1.0), output=b.wants(0))


def _curve(kind: str) -> Callable[[Body], None]:
    """``alpha * curve(beta * x)``."""

    def write(b: Body) -> None:
        inner = b.op("Mul", b.input(0), _number(b, "beta", 1.0))
        b.op("Mul", b.op(kind, inner), _number(b, "alpha", 1.0), output=b.wants(0))

    return write


def _crop(b: Body) -> None:
    """An image without its border (left, top, right, bottom), or so many rows and columns behind it."""
    left, top, right, bottom = map(int, b.attributes["border"])
    ends = [-bottom or 2**31 - 1, -right or 2**31 - 1]
    if scale := list(map(int, b.attributes.get("scale", []))):
        ends = [top + scale[0], left + scale[1]]
    if b.opset < _FIRST_SLICE_BY_INPUTS:
        b.op("Slice", b.input(0), output=b.wants(0), axes=[2, 3], starts=[top, left], ends=ends)
        return
    parts = (b.const(value, "int64") for value in ([top, left], ends, [2, 3]))
    b.op("Slice", b.input(0), *parts, output=b.wants(0))


def _thresholded(b: Body) -> None:
    """ThresholdedRelu from before ONNX had it: x above ``alpha``, 0 elsewhere."""
    if b.opset >= _FIRST_THRESHOLDED_RELU:
        _as_it_is(b)
        return
    alpha = float(b.attributes.get("alpha", 1.0))
    above = b.op("Cast", b.op("Greater", b.input(0), b.const(alpha)), to=TensorProto.FLOAT)
    b.op("Mul", b.op("Clip", b.input(0), min=alpha), above, output=b.wants(0))


def _mean_variance(b: Body) -> None:
    """MeanVarianceNormalization from before opset 9, over images, each channel alone or all together."""
    if b.opset >= _FIRST_MEAN_VARIANCE:
        _as_it_is(b)
        return
    axes = [0, 1, 2, 3] if b.attributes.get("across_channels", 0) else [0, 2, 3]
    centered = b.op("Sub", b.input(0), b.op("ReduceMean", b.input(0), axes=axes, keepdims=1))
    if not b.attributes.get("normalize_variance", 1):
        b.end(0, centered)
        return
    variance = b.op("ReduceMean", b.op("Mul", centered, centered), axes=axes, keepdims=1)
    deviation = b.op("Sqrt", b.op("Add", variance, b.const(_LEAST_VARIANCE)))
    b.op("Div", centered, deviation, output=b.wants(0))


EXPANSIONS: dict[str, Callable[[Body], None]] = {
    "Affine": _affine,
    "Crop": _crop,
    "ImageScaler": _image_scaler,
    "MeanVarianceNormalization": _mean_variance,
    "ParametricSoftplus": _curve("Softplus"),
    "Scale": _scale,
    "ScaledTanh": _curve("Tanh"),
    "ThresholdedRelu": _thresholded,
}
"""Operator of ONNX's domain -> function that writes it out."""
