"""Resize whose scales, sizes or region come at run time: coordinates and weights computed by the model.

The extents of the result are promised (see ``promised.py``); the scale that ONNX divides coordinates by is
not, since many scales round to one extent.  ``resize.py`` has the same formulas for constants.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.bodies.promised import PromisedBody
from hetero_tvm.frontend.onnx.bodies.resize import HALFWAY, OLD_NEAREST
from hetero_tvm.frontend.onnx.graph.body import as_text
from hetero_tvm.frontend.onnx.graph.products import sparse_product

_MOST_WEIGHTS = 1 << 22
"""Largest matrix of an axis, in elements: it is computed with every run."""


def resize(b: PromisedBody) -> bool:
    """Write out a Resize with values that come at run time."""
    given, wanted = b.shape(b.input(0)), b.promised()
    if given is None or wanted is None or 0 in given or 0 in wanted:
        return False
    axes = [int(a) % len(given) for a in b.attributes.get("axes", range(len(given)))]
    by_sizes = bool(b.input(3))
    policy = _text(b, "keep_aspect_ratio_policy", "stretch")
    coordinates = _text(b, "coordinate_transformation_mode", "half_pixel")
    crops = coordinates == "tf_crop_and_resize"
    if by_sizes and policy == "stretch" and not (crops and b.value(1) is None):
        sizes = [wanted[a] for a in axes]
        b.again({0: b.guard(b.input(0), b.same(b.input(3), sizes)), 3: b.ints(sizes)})
        return True
    scales, x = _scales(b, given, wanted, axes, by_sizes, policy)
    mode, outside = _text(b, "mode", "nearest"), ""
    for place, axis in enumerate(axes):
        ends = None
        if crops:
            ends = b.at(b.input(1), place), b.at(b.input(1), place + len(axes))
        elif wanted[axis] == given[axis] and by_sizes:
            continue
        scale = b.at(scales, place)
        at = _coordinates(b, coordinates, given[axis], wanted[axis], scale, ends)
        x = _interpolated(b, x, axis, at, given[axis], scale, mode)
        if crops:
            beyond = b.op(
                "Or", b.op("Less", at, b.const(0.0)), b.op("Greater", at, b.const(given[axis] - 1.0))
            )
            beyond = b.op("Reshape", beyond, b.ints([-1 if n == axis else 1 for n in range(len(given))]))
            outside = b.op("Or", outside, beyond) if outside else beyond
    if outside:
        filling = b.const(b.attributes.get("extrapolation_value", 0.0), b.dtype(b.input(0)))
        x = b.op("Where", outside, filling, x)
    b.end(0, x)
    return True


def _text(b: PromisedBody, name: str, default: str) -> str:
    return as_text(b.attributes.get(name, default))


def _scales(
    b: PromisedBody,
    given: tuple[int, ...],
    wanted: tuple[int, ...],
    axes: list[int],
    by_sizes: bool,
    policy: str,
) -> tuple[str, str]:
    """Scales of ``axes`` as float32, and the operand behind a check of what they give."""
    lengths = b.const([given[a] for a in axes])
    extents = b.const([wanted[a] for a in axes])
    if not by_sizes:
        scales = b.op("Cast", b.input(2), to=TensorProto.FLOAT)
        exact = b.op("Mul", lengths, scales)
        counted = b.op("Floor", exact)
        if _text(b, "coordinate_transformation_mode", "") == "align_corners":
            # It is not agreed where the corners of an axis are that shrinks to a broken extent.
            counted = b.op("Where", b.op("Less", scales, b.const(1.0)), exact, counted)
        return scales, b.guard(b.input(0), b.op("Equal", counted, extents))
    sizes = b.op("Cast", b.input(3), to=TensorProto.FLOAT)
    ratios = b.op("Div", sizes, lengths)
    if policy != "stretch":
        kind = "ReduceMin" if policy == "not_larger" else "ReduceMax"
        ratios = b.op("Expand", b.reduce(kind, ratios, [0], 1, axes_as_input=18), b.ints([len(axes)]))
        sizes = b.op("Floor", b.op("Add", b.op("Mul", ratios, lengths), b.const(0.5)))
    return ratios, b.guard(b.input(0), b.op("Equal", sizes, extents))


def _coordinates(
    b: PromisedBody, mode: str, length: int, extent: int, scale: str, ends: tuple[str, str] | None
) -> str:
    """Places in the operand, in float32, of the elements of an axis of the result."""
    steps = np.arange(extent, dtype=np.float32)
    half = b.const(0.5)
    if mode == "asymmetric":
        return b.op("Div", b.const(steps), scale)
    if mode == "align_corners":
        return b.const(steps * np.float32(length - 1) / np.float32(max(extent - 1, 1)))
    if mode == "pytorch_half_pixel" and extent == 1:
        return b.const(np.zeros(1))
    middle = b.op("Div", b.const(steps + np.float32(0.5)), scale)
    if mode == "tf_half_pixel_for_nn":
        return middle
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return b.op("Sub", middle, half)
    if mode == "half_pixel_symmetric":
        share = b.op("Div", b.const(float(extent)), b.op("Mul", scale, b.const(float(length))))
        offset = b.op("Mul", b.const(length / 2), b.op("Sub", b.const(1.0), share))
        return b.op("Sub", b.op("Add", offset, middle), half)
    if mode == "tf_crop_and_resize" and ends is not None:
        start, end = (b.op("Mul", b.op("Cast", e, to=TensorProto.FLOAT), b.const(length - 1.0)) for e in ends)
        if extent == 1:
            return b.op("Reshape", b.op("Mul", half, b.op("Add", start, end)), b.ints([1]))
        step = b.op("Div", b.op("Sub", end, start), b.const(extent - 1.0))
        return b.op("Add", start, b.op("Mul", b.const(steps), step))
    raise UnsupportedOperatorError(
        f"Node {b.node.name!r} (Resize) has coordinate_transformation_mode={mode}, which is not supported."
    )


def _interpolated(b: PromisedBody, x: str, axis: int, at: str, length: int, scale: str, mode: str) -> str:
    """``x`` resized along an axis, to the places ``at``."""
    if mode == "nearest":
        place = b.op("Cast", _rounded(b, at, scale), to=TensorProto.INT64)
        return b.op("Gather", x, b.op("Max", b.op("Min", place, b.ints(length - 1)), b.ints(0)), axis=axis)
    rank, dtype = len(b.shape(b.input(0)) or ()), b.dtype(b.input(0))
    if not (b.attributes.get("antialias", 0) or b.attributes.get("exclude_outside", 0)):
        return _gathered(
            b, x, at, length, mode == "cubic", dtype, [-1 if n == axis else 1 for n in range(rank)]
        )
    extent = (b.promised() or ())[axis]
    if length * extent > _MOST_WEIGHTS:
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} (Resize) resizes {length} elements by a scale that comes at run time.",
            hint="Make its scales, or sizes, constants.",
        )
    weights = _weights(b, at, length, scale, mode == "cubic")
    if dtype != "float32":
        weights = b.op("CastLike", weights, b.const(0, dtype))
    order = [*(n for n in range(rank) if n != axis), axis]
    rows = b.op("Transpose", x, perm=order)
    floats = dtype.startswith("float")
    y = sparse_product(b, rows, weights, dtype) if floats else b.op("MatMul", rows, weights)
    return b.op("Transpose", y, perm=[int(n) for n in np.argsort(order)])


def _gathered(
    b: PromisedBody, x: str, at: str, length: int, cubic: bool, dtype: str, along: list[int]
) -> str:
    """Sum of the two or four neighbours of the places ``at``; ``along`` is the shape of their weights.

    On a place, the element there stands for all of them: others have no weight, and may be NaN.
    """
    reach, low = 2 if cubic else 1, b.op("Floor", at)
    on = b.op("Equal", low, at)
    terms = []
    for step in range(1 - reach, 1 + reach):
        place = b.op("Where", on, low, b.op("Add", low, b.const(float(step))))
        distance = b.op("Abs", b.op("Sub", place, at))
        factor = _cubic(b, distance) if cubic else b.op("Sub", b.const(1.0), distance)
        factor = b.op("Where", on, b.const(0.5 / reach), factor)
        if dtype != "float32":
            factor = b.op("CastLike", factor, b.const(0, dtype))
        index = b.op("Cast", place, to=TensorProto.INT64)
        index = b.op("Max", b.op("Min", index, b.ints(length - 1)), b.ints(0))
        taken = b.op("Gather", x, index, axis=along.index(-1))
        terms.append(b.op("Mul", taken, b.op("Reshape", factor, b.ints(along))))
    while len(terms) > 1:
        terms[:2] = [b.op("Add", *terms[:2])]
    return terms[0]


def _rounded(b: PromisedBody, at: str, scale: str) -> str:
    """The nearest whole places."""
    rounding = _text(b, "nearest_mode", "round_prefer_floor")
    if rounding in ("round_prefer_floor", "round_prefer_ceil"):
        half, down = b.const(0.5), b.op("Floor", at)
        distance = b.op("Abs", b.op("Sub", b.op("Sub", at, down), half))
        halfway = b.op("LessOrEqual", distance, b.const(HALFWAY))
        if rounding == "round_prefer_floor":
            return b.op("Where", halfway, down, b.op("Ceil", b.op("Sub", at, half)))
        return b.op("Where", halfway, b.op("Add", down, b.const(1.0)), b.op("Floor", b.op("Add", at, half)))
    if rounding == OLD_NEAREST:
        return b.op("Where", b.op("Less", scale, b.const(1.0)), b.op("Ceil", at), b.op("Floor", at))
    return b.op("Floor" if rounding == "floor" else "Ceil", at)


def _weights(b: PromisedBody, at: str, length: int, scale: str, cubic: bool) -> str:
    """Matrix [operand, result] of an axis; what lies outside counts for the element at the edge."""
    exclude = bool(b.attributes.get("exclude_outside", 0))
    one, narrow = b.const(1.0), b.const(1.0)
    reach = 2 if cubic else 1
    if b.attributes.get("antialias", 0):
        narrow = b.op("Min", scale, one)
        # At most as many elements take part as there are: those beyond the edges fold onto them.
        reach = length * (2 if cubic else 1) + 1
    margin = 0 if exclude else reach
    places = b.const(np.arange(-margin, length + margin)[:, None])
    distance = b.op("Mul", b.op("Abs", b.op("Sub", places, at)), narrow)
    factors = _cubic(b, distance) if cubic else b.op("Max", b.op("Sub", one, distance), b.const(0.0))
    if exclude or b.attributes.get("antialias", 0):
        total = b.reduce("ReduceSum", factors, [0], 1, axes_as_input=13)
        factors = b.op("Div", factors, total)
    if not margin:
        return factors
    folded = np.clip(np.arange(-margin, length + margin), 0, length - 1)
    return b.op("MatMul", b.const(np.arange(length)[:, None] == folded), factors)


def _cubic(b: PromisedBody, distance: str) -> str:
    """Weights of cubic interpolation by the distance from an element."""
    a = float(b.attributes.get("cubic_coeff_a", -0.75))

    def polynomial(*coefficients: float) -> str:
        total = b.const(coefficients[0])
        for value in coefficients[1:]:
            total = b.op("Add", b.op("Mul", total, distance), b.const(value))
        return total

    near, far = polynomial(a + 2, -(a + 3), 0.0, 1.0), polynomial(a, -5 * a, 8 * a, -4 * a)
    beyond = b.op("Less", distance, b.const(2.0))
    inside = b.op("LessOrEqual", distance, b.const(1.0))
    return b.op("Where", inside, near, b.op("Where", beyond, far, b.const(0.0)))
