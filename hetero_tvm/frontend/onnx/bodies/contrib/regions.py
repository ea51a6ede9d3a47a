"""ONNX Runtime's operators on matrices, crops and relative positions, written out in plain ONNX.

They come from converters and from its optimiser for transformers: inverses, crops of images (tf2onnx), biases
by distance (T5, WavLM), gates and products of complex numbers.  Semantics: docs/ContribOperators.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.graph.body import Body, as_text

_MOST_ROWS = 32
"""Rows of a matrix that is inverted: each is a step of its own."""


def inverse(b: Body) -> None:
    """Inverse: elimination with the greatest pivot of each column; infinities or NaN where there is none."""
    x, shape = b.input(0), b.shape(b.input(0))
    rows = None if not shape else shape[-1]
    if rows is None or not 0 < rows <= _MOST_ROWS:
        said = "of an unknown size" if rows is None else f"of {rows} rows"
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} (Inverse) has matrices {said}; up to {_MOST_ROWS} are supported.",
            hint="Invert larger matrices before the model; where nothing says how large they are, give the "
            "shapes of the inputs (--shape).",
        )
    unit = b.op("CastLike", b.const(np.eye(rows)), x)
    ones = b.op("Expand", unit, b.op("Shape", x))
    rest = b.op("Concat", x, ones, axis=-1)
    places = b.const(np.arange(rows), "int64")
    zero = b.op("CastLike", b.const(0.0), x)
    for step in range(rows):
        column = b.op("Gather", rest, b.const(step, "int64"), axis=-1)
        open_rows = b.const(np.arange(rows) >= step, "bool")
        sizes = b.op("Where", open_rows, b.op("Abs", column), b.op("CastLike", b.const(-1.0), x))
        best = b.op("Equal", places, b.op("ArgMax", sizes, axis=-1, keepdims=1))
        here = b.const(np.arange(rows) == step, "bool")
        last = b.const([-1], "int64")
        chosen = b.op("Where", b.op("Unsqueeze", best, last), rest, zero)
        pivot = b.reduce("ReduceSum", chosen, [-2], 1, axes_as_input=13)
        first = b.op("Slice", rest, *(b.const([n], "int64") for n in (step, step + 1, -2)))
        swapped = b.op("Where", b.op("Unsqueeze", best, last), first, rest)
        scaled = b.op(
            "Div", pivot, b.op("Slice", pivot, *(b.const([n], "int64") for n in (step, step + 1, -1)))
        )
        factors = b.op("Gather", swapped, b.const([step], "int64"), axis=-1)
        left = b.op("Sub", swapped, b.op("Mul", factors, scaled))
        rest = b.op("Where", b.op("Unsqueeze", here, last), scaled, left)
    b.end(0, b.op("Slice", rest, *(b.const([n], "int64") for n in (rows, 2 * rows, -1))))


def crop_and_resize(b: Body) -> None:
    """CropAndResize: images [N, C, H, W], boxes [R, 4] (y, x, y, x), the image of each, the size of crops."""
    size, mode = b.array(b.input(3)), as_text(b.attributes.get("mode", "bilinear"))
    if size is None:
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} (CropAndResize) has crops of a size that comes at run time.",
            hint="Make the size of the crops a constant of the model.",
        )
    x, rois = b.input(0), b.op("Cast", b.input(1), to=TensorProto.FLOAT)
    images = b.op("Transpose", x, perm=[0, 2, 3, 1])
    inside, near, far, shares = [], [], [], []
    for axis, count in enumerate(int(n) for n in size.reshape(-1)):
        last = b.op("Sub", b.extent(x, 2 + axis), b.const([1], "int64"))
        places = _crop_places(b, rois, axis, count, b.op("Cast", last, to=TensorProto.FLOAT))
        inside.append(
            b.op(
                "And",
                b.op("GreaterOrEqual", places, b.const(0.0)),
                b.op("LessOrEqual", places, b.op("Cast", last, to=TensorProto.FLOAT)),
            )
        )
        low = b.op("Floor", places if mode == "bilinear" else b.op("Add", places, b.const(0.5)))
        shares.append(b.op("Sub", places, low))
        steps = (
            b.op("Cast", low, to=TensorProto.INT64),
            b.op("Cast", b.op("Ceil", places), to=TensorProto.INT64),
        )
        zero = b.const(0, "int64")
        low_place, high_place = (b.op("Min", b.op("Max", step, zero), last) for step in steps)
        near.append(low_place)
        far.append(high_place)

    def read(rows: str, columns: str) -> str:
        """Pixels [R, height, width, C] at rows [R, height] and columns [R, width]."""
        height, width = (b.op("Unsqueeze", p, b.const([n], "int64")) for p, n in ((rows, 2), (columns, 1)))
        still = b.op("Mul", b.op("Add", height, width), b.const(0, "int64"))
        which = b.op("Cast", b.input(2), to=TensorProto.INT64)
        which = b.op("Reshape", which, b.const([-1, 1, 1], "int64"))
        parts = [
            b.op("Unsqueeze", b.op("Add", p, still), b.const([-1], "int64")) for p in (which, height, width)
        ]
        return b.op("GatherND", images, b.op("Concat", *parts, axis=-1))

    if mode == "bilinear":
        down = b.op("Unsqueeze", shares[0], b.const([2, 3], "int64"))
        right = b.op("Unsqueeze", shares[1], b.const([1, 3], "int64"))
        rows = []
        for row in (near[0], far[0]):
            left, other = read(row, near[1]), read(row, far[1])
            rows.append(b.op("Add", left, b.op("Mul", b.op("Sub", other, left), right)))
        found = b.op("Add", rows[0], b.op("Mul", b.op("Sub", rows[1], rows[0]), down))
    else:
        found = read(near[0], near[1])
    seen = b.op(
        "And",
        b.op("Unsqueeze", inside[0], b.const([2, 3], "int64")),
        b.op("Unsqueeze", inside[1], b.const([1, 3], "int64")),
    )
    outside = b.const(float(b.attributes.get("extrapolation_value", 0.0)))
    b.end(0, b.op("Transpose", b.op("Where", seen, found, outside), perm=[0, 3, 1, 2]))


def _crop_places(b: Body, rois: str, axis: int, count: int, last: str) -> str:
    """Places [R, count] along an axis of an image whose last place is ``last``."""
    start, end = (
        b.op("Slice", rois, *(b.const([n], "int64") for n in (c, c + 1, 1))) for c in (axis, axis + 2)
    )
    if count == 1:
        return b.op("Mul", b.op("Mul", b.op("Add", start, end), b.const(0.5)), last)
    step = b.op("Div", b.op("Mul", b.op("Sub", end, start), last), b.const(float(count - 1)))
    return b.op("Add", b.op("Mul", start, last), b.op("Mul", b.const(np.arange(count)[None]), step))


def relative_bias(b: Body) -> None:
    """RelativePositionBias: rows of a table [buckets, heads] by the distance of key and query, as in T5."""
    shape = b.shape(b.input(0))
    if shape is None or shape[0] is None:
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} (RelativePositionBias) has a table of unknown size.",
            hint="Make the table a constant of the model.",
        )
    buckets, both = int(shape[0]), int(b.attributes.get("is_bidirectional", 0))
    query, key = (_counted(b, b.input(n)) for n in (1, 2))
    apart = b.op(
        "Sub", b.op("Unsqueeze", key, b.const([0], "int64")), b.op("Unsqueeze", query, b.const([1], "int64"))
    )
    zero = b.const(0, "int64")
    if both:
        buckets //= 2
        first = b.op("Where", b.op("Greater", apart, zero), b.const(buckets, "int64"), zero)
        apart = b.op("Abs", apart)
    else:
        first, apart = zero, b.op("Neg", b.op("Min", apart, zero))
    exact = buckets // 2
    most = float(b.attributes["max_distance"])
    real = b.op("Cast", b.op("Max", apart, b.const(1, "int64")), to=TensorProto.FLOAT)
    share = b.op(
        "Div", b.op("Log", b.op("Div", real, b.const(float(exact)))), b.const(math.log(most / exact))
    )
    far = b.op("Cast", b.op("Mul", share, b.const(float(buckets - exact))), to=TensorProto.INT64)
    far = b.op("Min", b.op("Add", far, b.const(exact, "int64")), b.const(buckets - 1, "int64"))
    place = b.op("Where", b.op("Less", apart, b.const(exact, "int64")), apart, far)
    rows = b.op("Gather", b.input(0), b.op("Add", place, first), axis=0)
    b.end(0, b.op("Unsqueeze", b.op("Transpose", rows, perm=[2, 0, 1]), b.const([0], "int64")))


def _counted(b: Body, length: str) -> str:
    """The numbers 0, 1, ... below a length [1]."""
    end = b.op("Reshape", b.op("Cast", length, to=TensorProto.INT64), b.const(np.zeros(0), "int64"))
    return b.op("Range", b.const(0, "int64"), end, b.const(1, "int64"))


def gated_bias(b: Body) -> None:
    """GatedRelativePositionBias: a bias by distance, that each query scales by two gates (WavLM)."""
    # query [B, S, N D], its bias, relative bias [1, N, S, S], weight [D, W], bias [W], eco_a [1, N, 1, 1]
    if b.input(6):
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} (GatedRelativePositionBias) has queries without padding; with it they are "
            "supported.",
            hint="Optimise the model without packing.",
        )
    heads = int(b.attributes["num_heads"])
    query = b.op("Reshape", b.op("Add", b.input(0), b.input(1)), b.const([0, 0, heads, -1], "int64"))
    query = b.op("Transpose", query, perm=[0, 2, 1, 3])
    sums = b.op("Add", b.op("MatMul", query, b.input(3)), b.input(4))
    halves = b.op("Reshape", sums, b.const([0, 0, 0, 2, -1], "int64"))
    gates = b.op("Sigmoid", b.reduce("ReduceSum", halves, [-1], 0, axes_as_input=13))
    update, reset = (b.op("Slice", gates, *(b.const([n], "int64") for n in (i, i + 1, 3))) for i in range(2))
    inner = b.op("Sub", b.op("Mul", reset, b.input(5)), b.const(1.0))
    scale = b.op("Add", b.op("Mul", update, inner), b.const(2.0))
    b.end(0, b.op("Mul", scale, b.input(2)))


def complex_product(b: Body, sign: float) -> None:
    """ComplexMul and ComplexMulConj: pairs along the last axis; the second turned over for ``sign`` -1."""
    pairs = [
        [b.op("Slice", b.input(n), *(b.const([k], "int64") for k in (i, i + 1, -1))) for i in range(2)]
        for n in range(2)
    ]
    (real, imaginary), (other, turned) = pairs
    if sign < 0:
        turned = b.op("Neg", turned)
    parts = [
        b.op("Sub", b.op("Mul", real, other), b.op("Mul", imaginary, turned)),
        b.op("Add", b.op("Mul", real, turned), b.op("Mul", imaginary, other)),
    ]
    b.end(0, b.op("Concat", *parts, axis=-1))


def gated_linear(b: Body) -> None:
    """SwiGLU: the gate and what it lets through, two operands or the halves of one, within a limit."""
    gate, up = b.input(0), b.input(1)
    if not up:
        shape = b.shape(gate)
        if shape is None or shape[-1] is None:
            raise UnsupportedOperatorError(
                f"Node {b.node.name!r} (SwiGLU) has an operand of unknown width.",
                hint="Give the shapes of the inputs (--shape).",
            )
        gate, up = b.split(gate, -1, [shape[-1] // 2] * 2)
    limit, shift = (float(b.attributes.get(name, 0.0)) for name in ("limit", "activation_beta"))
    slope = float(b.attributes.get("activation_alpha", 1.0))
    if limit > 0:
        gate = b.op("Min", gate, b.const(limit))
        up = b.op("Max", b.op("Min", up, b.const(limit)), b.const(-limit))
    inner = gate if slope == 1 else b.op("Mul", gate, b.const(slope))
    open_share = b.op("Mul", gate, b.op("Sigmoid", inner))
    b.end(0, b.op("Mul", open_share, b.op("Add", up, b.const(shift)) if shift else up))


def biased_dropout(b: Body) -> None:
    """BiasDropout, which only adds in inference."""
    y = b.op("Add", b.input(0), b.input(1))
    b.end(0, b.op("Add", y, b.input(2)) if b.input(2) else y)
    if b.wants(1):
        b.end(1, b.op("Expand", b.const(True, "bool"), b.op("Shape", b.input(0))))


EXPANSIONS: dict[str, Callable[[Body], None]] = {
    "BiasDropout": biased_dropout,
    "ComplexMul": lambda b: complex_product(b, 1.0),
    "ComplexMulConj": lambda b: complex_product(b, -1.0),
    "CropAndResize": crop_and_resize,
    "GatedRelativePositionBias": gated_bias,
    "Inverse": inverse,
    "RelativePositionBias": relative_bias,
    "SwiGLU": gated_linear,
}
"""Operator of ``com.microsoft`` -> function that writes it out."""
