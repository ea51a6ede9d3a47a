"""ONNX's Resize as sums of gathered neighbours, or products with matrices, one per axis that changes.

TVM's converter takes the ratio from the two extents (not from ``scales``), only the last axes, and neither
``antialias``, ``axes``, ``keep_aspect_ratio_policy`` nor a cropped region.  It keeps the plain forms, for
which targets have kernels.
"""

from __future__ import annotations

import math

import numpy as np
import onnx

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.graph.body import Body, as_text
from hetero_tvm.frontend.onnx.graph.constants import ConstantPool, Types
from hetero_tvm.frontend.onnx.graph.products import sparse_product

_MOST_WEIGHTS = 1 << 24
"""Largest matrix of an axis, in elements."""
HALFWAY = np.float32(1e-6)
"""Distance from the middle of two elements within which a place counts as there."""
_MOST_TAPS = 16
"""Most neighbours that are gathered."""
OLD_NEAREST = "as_before_opset_11"
"""A ``nearest_mode`` of ours: ``floor`` along axes that grow, ``ceil`` along those that shrink."""
BY_PLACES = "by places"
"""Note at a Resize that has no plain form at other sizes of the model: here it is gathered as well."""
_PLAIN = ("half_pixel", "asymmetric")
"""Coordinate transformations that TVM has in ONNX's sense, of any extents."""


def resize(node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool) -> list[onnx.NodeProto] | None:
    """Write out a Resize; None for plain forms, and while its sizes are unknown.

    Raises
    ------
    UnsupportedOperatorError : a form for which implementations of ONNX disagree.
    """
    b = Body(node, opset)
    shape = pool.shape(node.input[0], types)
    if shape is None or any(name and name not in pool for name in map(b.input, (1, 2, 3))):
        return None
    mode, coordinates, nearest, policy = (
        as_text(b.attributes.get(name, default))
        for name, default in (
            ("mode", "nearest"),
            ("coordinate_transformation_mode", "half_pixel"),
            ("nearest_mode", "round_prefer_floor"),
            ("keep_aspect_ratio_policy", "stretch"),
        )
    )
    axes = [int(a) % len(shape) for a in b.attributes.get("axes", range(len(shape)))]
    given = {i: pool.array(b.input(i)) for i in (1, 2, 3) if b.input(i) and pool.array(b.input(i)).size}
    scales, extents = _sizes(shape, axes, given, policy)
    ratios = {a: e / shape[a] for a, e in zip(axes, extents, strict=True)}
    if nearest == OLD_NEAREST and all(ratio == 1 for ratio in ratios.values()):
        # Those opsets give no formula; ONNX Runtime, which does, copies.
        scales = [1.0] * len(axes)
    exact = all(math.isclose(s, ratios[a], rel_tol=1e-6) for a, s in zip(axes, scales, strict=True))
    if exact and coordinates == "half_pixel_symmetric":  # nothing hangs over that could be shared out
        coordinates = "half_pixel"
        mode_of = next(a for a in node.attribute if a.name == "coordinate_transformation_mode")
        mode_of.s = b"half_pixel"
    changed = [(a, s, e) for a, s, e in zip(axes, scales, extents, strict=True) if e != shape[a] or s != 1.0]
    shrinks = any(s < 1 for _, s, _ in changed)
    if nearest == OLD_NEAREST and not shrinks:  # a plain form stays, in ONNX's words
        nearest = "floor"
        next(a for a in node.attribute if a.name == "nearest_mode").s = b"floor"
    exclude = bool(b.attributes.get("exclude_outside", 0))
    crops = coordinates == "tf_crop_and_resize"
    smooth = bool(b.attributes.get("antialias", 0)) and shrinks and mode != "nearest"
    if not changed and not crops:  # an image of one pixel has no corners to align
        b.end(0, node.input[0])
        return b.nodes
    broken = [s for a, s, _ in changed if not math.isclose(s, ratios[a], rel_tol=1e-6)]
    if coordinates == "align_corners" and min(broken, default=1.0) < 1:
        # The corners of 2.4 elements, as in ONNX's own tests, or of the 2 that ONNX Runtime and PyTorch see?
        raise _refusal(
            node, f"coordinate_transformation_mode={coordinates} and axes that shrink to a broken extent"
        )
    double = pool.dtype(node.input[0], types) == "float64" and mode != "nearest"
    real = np.float64 if double else np.float32
    integers = all(float(s).is_integer() for _, s, _ in changed)
    usual = (coordinates, nearest) in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"))
    plain = not smooth and (mode != "nearest" or (integers and usual)) and not (mode == "cubic" and exclude)
    plain = plain and not double and node.doc_string != BY_PLACES  # TVM's weights are float32
    stored = pool.dtype(node.input[0], types)
    whole = mode != "nearest" and not stored.startswith(("float", "bfloat"))
    plain = plain and not (whole and mode == "cubic")  # TVM cuts off, and lets wrap
    spatial = 3 <= len(shape) <= 5 and all(a >= 2 for a, _, _ in changed)
    several = min(extents[2:], default=0) > 1  # TVM divides by the distance between the corners of the result
    same = coordinates in _PLAIN or (several and coordinates in ("align_corners", "pytorch_half_pixel"))
    # Corners are aligned by the two extents, whatever the scale that led to them: so PyTorch grows images.
    exact = exact or coordinates == "align_corners"
    if plain and spatial and exact and same and "axes" not in b.attributes:
        if len(shape) == 3 and mode != "cubic" and coordinates != "align_corners":
            return _of_rows(b, shape, extents)
        return _with_sizes(b, shape, scales if 2 in given else None, extents)
    if crops:  # the region matters also where the extent stays
        changed = list(zip(axes, scales, extents, strict=True))
    region = [float(v) for v in given.get(1, [])]
    if crops and len(region) != 2 * len(axes):
        raise _refusal(node, "tf_crop_and_resize without a region of interest")
    x, outside = node.input[0], np.zeros((), bool)
    dtype = "float32" if whole else stored  # weights of whole numbers would all be zero
    if whole:
        x = b.op("Cast", x, to=onnx.TensorProto.FLOAT)
    for axis, scale, extent in changed:
        place = axes.index(axis)
        crop = (region[place], region[place + len(axes)]) if crops else (0.0, 1.0)
        at = _coordinates(shape[axis], extent, scale, coordinates, crop, node, real)
        beyond = (at < 0) | (at > shape[axis] - 1) if crops else np.zeros(extent, bool)
        outside = outside | beyond.reshape([-1 if n == axis else 1 for n in range(len(shape))])
        if mode == "nearest":
            rounding = nearest
            if nearest == OLD_NEAREST:
                rounding = "ceil" if scale < 1 else "floor"
            index = _nearest(at, rounding)
            inside = np.clip(index, 0, shape[axis] - 1)
            if exclude and (index != inside).any():
                raise _refusal(node, "exclude_outside of nearest neighbours")
            x = b.op("Gather", x, b.const(inside, "int64"), axis=axis)
            continue
        cubic = float(b.attributes.get("cubic_coeff_a", -0.75)) if mode == "cubic" else None
        if not smooth:
            x = _interpolated(b, x, axis, len(shape), dtype, _taps(at, shape[axis], cubic, exclude))
            continue
        if extent * shape[axis] > _MOST_WEIGHTS:
            raise _refusal(node, f"an axis of {shape[axis]} elements")
        weights = _weights(at, shape[axis], cubic, exclude, min(1.0, scale))
        if int((weights != 0).sum(0).max()) <= _MOST_TAPS:
            x = _interpolated(b, x, axis, len(shape), dtype, _widest(weights))
            continue
        order = [n for n in range(len(shape)) if n != axis]
        back = [int(n) for n in np.argsort([*order, axis])]
        rows, matrix = b.op("Transpose", x, perm=[*order, axis]), b.const(weights, dtype)
        x = sparse_product(b, rows, matrix, dtype)
        x = b.op("Transpose", x, perm=back)
    if whole:
        x = _as_whole(b, x, np.dtype(stored), mode == "cubic" or bool(b.attributes.get("antialias", 0)))
    if outside.any():
        filling = b.const(b.attributes.get("extrapolation_value", 0.0), stored)
        x = b.op("Where", b.const(outside, "bool"), filling, x)
    b.end(0, x)
    return b.nodes


def _as_whole(b: Body, x: str, dtype: np.dtype, rounded: bool) -> str:
    """Sums of neighbours as whole numbers: ONNX Runtime cuts linear ones off, and rounds others."""
    if rounded:
        x = b.op("Round", x)
    if dtype.itemsize < 4:  # float32 holds the ends of these; cubic curves leave them
        ends = [b.const(float(end), "float32") for end in (np.iinfo(dtype).min, np.iinfo(dtype).max)]
        x = b.op("Clip", x, *ends)
    return b.op("Cast", x, to=onnx.helper.np_dtype_to_tensor_dtype(dtype))


def affine_grid(node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool) -> None:
    """Refusal of an AffineGrid with aligned corners along a single pixel: ONNX Runtime puts it at the corner,
    PyTorch in the middle, ONNX's evaluator elsewhere, and TVM breaks."""
    b = Body(node, opset)
    if b.attributes.get("align_corners", 0) and b.input(1) in pool:
        size = [int(n) for n in pool.array(b.input(1))]
        if 1 in size[2:]:
            raise _refusal(node, f"align_corners=1 and a single pixel along an axis of {size}")


def _refusal(node: onnx.NodeProto, what: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(
        f"Node {node.name!r} ({node.op_type}) has {what}, which is not supported.",
        hint="Export another form of the operator: sizes instead of scales, half_pixel.",
    )


def _of_rows(b: Body, shape: tuple[int, ...], extents: list[int]) -> list[onnx.NodeProto]:
    """A plain form of rows [N, C, W] as one of images of one row, which targets have."""
    rows, columns = shape[:2], extents[2]
    if as_text(b.attributes.get("coordinate_transformation_mode", "")) == "pytorch_half_pixel":
        b.attributes["coordinate_transformation_mode"] = "half_pixel"  # which differs for single pixels alone
    x = b.op("Reshape", b.node.input[0], b.const([*rows, 1, shape[2]], "int64"))
    y = b.op("Resize", x, "", "", b.const([*rows, 1, columns], "int64"), **b.attributes)
    b.op("Reshape", y, b.const([*rows, columns], "int64"), output=b.node.output[0])
    return b.nodes


def _with_sizes(
    b: Body, shape: tuple[int, ...], scales: list[float] | None, extents: list[int]
) -> list[onnx.NodeProto] | None:
    """A plain form with its sizes; None where it says them, or scales from which ONNX's inference gets them.

    The inference multiplies in float64, and a float32 scale of 1.3 is below 1.3: it makes 65 elements of 50
    in ONNX Runtime, 64 in the inference.  Opset 11 gives empty scales beside sizes.
    """
    if scales is None:
        if not b.input(2):
            return None
    elif all(math.floor(d * s) == e for d, s, e in zip(shape, scales, extents, strict=True)):
        return None
    given = [b.node.input[0], b.input(1), "", b.const(extents, "int64")]
    b.op("Resize", *given, output=b.node.output[0], **b.attributes)
    return b.nodes


def _sizes(
    shape: tuple[int, ...], axes: list[int], given: dict[int, np.ndarray], policy: str
) -> tuple[list[float], list[int]]:
    """Scales and extents of ``axes``, from the scales (input 2) or the sizes (input 3)."""
    if 2 in given:
        scales = [float(np.float32(s)) for s in given[2]]
        return scales, [
            math.floor(np.float32(shape[a]) * np.float32(s)) for a, s in zip(axes, scales, strict=True)
        ]
    sizes = [int(n) for n in given[3]]
    scales = [n / shape[a] for a, n in zip(axes, sizes, strict=True)]
    if policy == "stretch":
        return scales, sizes
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [scale] * len(axes), [math.floor(scale * shape[a] + 0.5) for a in axes]


def _coordinates(
    length: int,
    extent: int,
    scale: float,
    mode: str,
    crop: tuple[float, float],
    node: onnx.NodeProto,
    real: type[np.floating],
) -> np.ndarray:
    """Place in the operand of every element of an axis of the result.

    ``real``: float32, as ONNX Runtime computes, but for operands of float64.
    """
    x, ratio, half = np.arange(extent, dtype=real), real(scale), real(0.5)
    if mode == "asymmetric":
        return x / ratio
    if mode == "align_corners":
        return x * real(length - 1) / real(max(extent - 1, 1))
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and extent > 1):
        return (x + half) / ratio - half
    if mode == "pytorch_half_pixel":
        return np.zeros(extent, real)
    if mode == "tf_half_pixel_for_nn":
        return (x + half) / ratio
    if mode == "half_pixel_symmetric":
        offset = real(length / 2 * (1 - extent / (scale * length)))
        return offset + (x + half) / ratio - half
    if mode == "tf_crop_and_resize":
        start, end = (real(c) for c in crop)
        if extent > 1:
            return start * real(length - 1) + x * (end - start) * real(length - 1) / real(extent - 1)
        return np.full(extent, half * (start + end) * real(length - 1), real)
    raise _refusal(node, f"coordinate_transformation_mode={mode}")


def _nearest(at: np.ndarray, rounding: str) -> np.ndarray:
    """Index of the nearest element, which may lie beyond the edges of the operand.

    Halfway is what is this near to it, as in ONNX Runtime: float32 misses the middle of 19.5 / 1.3.
    """
    half, down = np.float32(0.5), np.floor(at)
    halfway = np.abs(at - down - half) <= HALFWAY
    rounded = {
        "round_prefer_floor": np.where(halfway, down, np.ceil(at - half)),
        "round_prefer_ceil": np.where(halfway, down + 1, np.floor(at + half)),
        "floor": down,
        "ceil": np.ceil(at),
    }[rounding]
    return rounded.astype(np.int64)


def _weights(at: np.ndarray, length: int, cubic: float | None, exclude: bool, narrow: float) -> np.ndarray:
    """Matrix [operand, result] of an axis; ``cubic`` is the coefficient of cubic interpolation.

    Elements take part as far as their distance, by ``narrow`` (below 1 against aliasing), is within reach;
    what lies outside counts for the element at the edge.
    """
    reach = _reach(cubic)
    # No more elements take part than there are: those beyond the edges fold onto them.
    margin = 0 if exclude else math.ceil(reach / narrow) + 1
    places = np.arange(-margin, length + margin)
    factors = _factors(np.abs(places[:, None] - at.astype(np.float64)) * narrow, cubic)
    weights = np.zeros((length, len(at)))
    np.add.at(weights, np.clip(places, 0, length - 1), factors)
    return weights / weights.sum(0, keepdims=True) if exclude or narrow < 1 else weights


def _reach(cubic: float | None) -> int:
    """Distance at which elements count for nothing."""
    return 1 if cubic is None else 2


def _factors(distance: np.ndarray, cubic: float | None) -> np.ndarray:
    """Weight of an element at a distance; ``cubic`` is the coefficient of cubic interpolation."""
    if cubic is None:
        return np.maximum(0, 1 - distance)
    a, x = cubic, distance
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _taps(
    at: np.ndarray, length: int, cubic: float | None, exclude: bool
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Index and weight of each neighbour that results are made of: two of each, or four."""
    reach, wide = _reach(cubic), at.astype(np.float64)
    places = [np.floor(wide) + step for step in range(1 - reach, 1 + reach)]
    factors = [_factors(np.abs(place - wide), cubic) for place in places]
    if exclude:
        factors = [np.where((p >= 0) & (p < length), f, 0) for p, f in zip(places, factors, strict=True)]
        total = sum(factors)
        factors = [factor / total for factor in factors]
    return _shared(np.clip(places, 0, length - 1).astype(np.int64), np.asarray(factors))


def _widest(weights: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Index and weight of each neighbour that a matrix [operand, result] weighs, in their order."""
    count = int((weights != 0).sum(0).max())
    index = np.argsort(weights == 0, axis=0, kind="stable")[:count]
    return _shared(index, np.take_along_axis(weights, index, 0))


def _shared(index: np.ndarray, weight: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of indices and weights [result] of neighbours, of which none weighs nothing."""
    # Neighbours of no weight may be NaN: the heaviest one stands for them, and shares its weight with them.
    heaviest = np.abs(weight).argmax(0)[None]
    idle = weight == 0
    shared = idle | (np.arange(len(weight))[:, None] == heaviest)
    index = np.where(idle, np.take_along_axis(index, heaviest, 0), index)
    part = np.take_along_axis(weight, heaviest, 0) / shared.sum(0)
    return list(zip(index, np.where(shared, part, weight), strict=True))


def _interpolated(
    b: Body, x: str, axis: int, rank: int, dtype: str, taps: list[tuple[np.ndarray, np.ndarray]]
) -> str:
    """Sum of neighbours along an axis; a product with a matrix would multiply NaN far away by zero."""
    along = [-1 if n == axis else 1 for n in range(rank)]
    terms = [
        b.op("Mul", b.op("Gather", x, b.const(at, "int64"), axis=axis), b.const(f.reshape(along), dtype))
        for at, f in taps
    ]
    while len(terms) > 1:
        terms[:2] = [b.op("Add", *terms[:2])]
    return terms[0]
