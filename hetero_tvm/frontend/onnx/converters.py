"""Our own converters of ONNX operators to Relax, where TVM's write opaque kernels or many bindings.

A converter takes the inputs and attributes of a node; it gives None for forms that TVM's converter takes.
A new one is one function and one entry in ``CONVERTERS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero_tvm.frontend.onnx.graph.body import as_text
from hetero_tvm.frontend.onnx.operators.arithmetic import ARITHMETIC
from hetero_tvm.frontend.onnx.operators.common import Inputs, is_float, static_shape
from hetero_tvm.frontend.onnx.operators.moves import MOVES
from hetero_tvm.frontend.onnx.operators.places import PLACES
from hetero_tvm.frontend.onnx.operators.sequences import SEQUENCES
from hetero_tvm.host.tvm import Expr, onnx_frontend, relax, te, tirx, tvm


def _gather(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """One ``take``; TVM's converter spends six bindings on negative indices."""
    data, indices = inputs[0], inputs[1]
    shape, axis = static_shape(data), attrs.get("axis", 0)
    if shape is None:
        return None
    size = shape[axis]
    if isinstance(indices, tvm.ir.GenericConst):
        values = indices.value.numpy()
        if values.size and not -size <= values.min() <= values.max() < size:
            raise ValueError(f"an index lies outside [{-size}, {size})")
    # "wrap" counts negative indices from the end and never reads outside the table.
    return relax.op.take(data, indices, axis=axis, mode="wrap")


def _clip(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """Relax's maximum and minimum; TVM's opaque kernels also test bounds for NaN.

    NaN of the second operand survives, that of a constant's neighbour in any case.
    """
    x, dtype = inputs[0], str(inputs[0].ty.dtype)
    for bound, limit in zip(inputs[1:3], (relax.op.maximum, relax.op.minimum), strict=False):
        if isinstance(bound, tvm.ir.GenericConst):
            if bound.value.numpy().size != 1:
                return None
            x = limit(x, relax.const(bound.value.numpy().reshape(()), dtype))
        elif bound is not None:
            x = limit(bound, x)
    return x


def _dynamic_quantize(inputs: Inputs, attrs: dict[str, Any]) -> Expr:
    """DynamicQuantizeLinear, with a scale of 1 where all is zero, as in ONNX Runtime: TVM divides by 0."""
    x, (zero, last) = inputs[0], (relax.const(value, "float32") for value in (0.0, 255.0))
    low, high = relax.op.minimum(zero, relax.op.min(x)), relax.op.maximum(zero, relax.op.max(x))
    scale = relax.op.divide(relax.op.subtract(high, low), last)
    scale = relax.op.where(relax.op.equal(scale, zero), relax.const(1.0, "float32"), scale)
    middle = relax.op.round(relax.op.clip(relax.op.subtract(zero, relax.op.divide(low, scale)), 0, 255))
    middle = relax.op.astype(middle, "uint8")
    return relax.Tuple([relax.op.quantize(x, scale, middle, axis=0, out_dtype="uint8"), scale, middle])


def _einsum(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """Relax's einsum with the result's letters written out; TVM's converter takes ellipses."""
    equation = as_text(attrs["equation"]).replace(" ", "")
    if "." in equation:
        return None
    if "->" not in equation:
        once = sorted(x for x in set(equation) - {","} if equation.count(x) == 1)
        equation = f"{equation}->{''.join(once)}"
    return relax.op.einsum(tuple(inputs), equation)


def _pairwise(step: Callable[[Expr, Expr], Expr]) -> Callable[[Inputs, dict[str, Any]], Expr | None]:
    """Converter of a Max or Min of several tensors; TVM's stacks broadcast copies and reduces them.

    A step keeps NaN of both operands on every target.
    """

    def convert(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
        if len(inputs) < 2:
            return None
        result = inputs[0]
        for value in inputs[1:]:
            result = step(result, value)
        return result

    return convert


def _bit_shift(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """Shift of which amounts outside [0, bits) leave nothing but the sign; processors take them modulo."""
    x, amount = inputs[0], inputs[1]
    dtype = str(x.ty.dtype)
    bits = int(dtype.lstrip("uint"))
    left = as_text(attrs["direction"]) == "LEFT"
    if isinstance(amount, tvm.ir.GenericConst):
        values = amount.value.numpy()
        if ((values >= 0) & (values < bits)).all():
            return relax.op.left_shift(x, amount) if left else relax.op.right_shift(x, amount)
    most, zero = relax.const(bits - 1, dtype), relax.const(0, dtype)
    fits = relax.op.less_equal(amount, most)
    if not dtype.startswith("u"):
        fits = relax.op.logical_and(fits, relax.op.greater_equal(amount, zero))
    if not left:  # an arithmetic shift by bits - 1 leaves the sign, a logical one by more than that nothing
        shifted = relax.op.right_shift(x, relax.op.where(fits, amount, most))
        return relax.op.where(fits, shifted, zero) if dtype.startswith("u") else shifted
    return relax.op.where(fits, relax.op.left_shift(x, relax.op.where(fits, amount, zero)), zero)


def _is_inf(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """Test for one of the two infinities; None where both count."""
    positive, negative = (bool(attrs.get(f"detect_{sign}", 1)) for sign in ("positive", "negative"))
    if positive and negative:
        return None
    x = inputs[0]
    if not positive and not negative:
        return relax.op.zeros_like(x, "bool")
    return relax.op.equal(x, relax.const(np.inf if positive else -np.inf, str(x.ty.dtype)))


def _mod(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """Remainder with the divisor's sign for floats too, and of whole numbers 0 where the divisor is.

    TVM computes ``a - b * floor(a / b)`` of floats, which is NaN for an infinite ``b`` and far off for a
    large ``a``; a division of whole numbers by zero ends the process.
    A constant divisor of zero is refused.
    """
    a, b = inputs[0], inputs[1]
    dtype = str(a.ty.dtype)
    if "int" in dtype:
        if isinstance(b, tvm.ir.GenericConst):
            if not b.value.numpy().all():
                raise ValueError("an integer is divided by zero")
            return None
        zero, one = relax.const(0, dtype), relax.const(1, dtype)
        step = relax.op.mod if attrs.get("fmod", 0) else relax.op.floor_mod
        is_zero = relax.op.equal(b, zero)
        return relax.op.where(is_zero, zero, step(a, relax.op.where(is_zero, one, b)))
    if isinstance(b, tvm.ir.GenericConst) and b.value.numpy().size == 1 and not b.value.numpy().any():
        return relax.op.multiply(a, relax.const(np.full(static_shape(b), np.nan).astype(dtype), dtype))
    if attrs.get("fmod", 0):
        return None
    zero, rest = relax.const(0.0, dtype), relax.op.mod(a, b)
    opposite = relax.op.not_equal(relax.op.less(rest, zero), relax.op.less(b, zero))
    moves = relax.op.logical_and(opposite, relax.op.not_equal(rest, zero))
    moves = relax.op.logical_and(moves, relax.op.logical_not(relax.op.isnan(rest)))
    return relax.op.where(moves, relax.op.add(rest, b), rest)


_SORTED_AS = {"int16": "int32", "uint16": "int32", "uint32": "int64"}
"""Whole numbers that TVM's sort does not know, and wider ones that hold them."""


def _top_k(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """The greatest, or least, values.  NaN is above infinity; as no sort knows an order of NaN, it counts as
    infinity, and that as the largest number.

    Any order is asked for: in order is one.  TVM's converter refuses the attribute.
    """
    x, k = inputs[0], inputs[1] if len(inputs) > 1 else None
    if not isinstance(k, tvm.ir.GenericConst):
        return None
    count, axis, largest = int(k.value.numpy().item()), attrs.get("axis", -1), bool(attrs.get("largest", 1))
    dtype = str(x.ty.dtype)
    if dtype == "uint64":  # no sort has them: shifted, they keep their order as int64
        least = relax.const(np.iinfo(np.int64).min, "int64")
        ordered = relax.op.bitwise_xor(relax.op.astype(x, "int64"), least)
        places = relax.op.topk(ordered, count, axis, "indices", largest, "int64")
        return relax.Tuple([relax.op.gather_elements(x, places, axis), places])
    if wider := _SORTED_AS.get(dtype):
        found = relax.op.topk(relax.op.astype(x, wider), count, axis, "both", largest, "int64")
        return relax.Tuple([relax.op.astype(found[0], dtype), found[1]])
    if not is_float(x):
        return None if attrs.get("sorted", 1) else relax.op.topk(x, count, axis, "both", largest, "int64")
    infinity, largest_number = (relax.const(value, dtype) for value in (np.inf, np.finfo(dtype).max))
    ordered = relax.op.where(relax.op.equal(x, infinity), largest_number, x)
    ordered = relax.op.where(relax.op.isnan(x), infinity, ordered)
    places = relax.op.topk(ordered, count, axis, "indices", largest, "int64")
    return relax.Tuple([relax.op.gather_elements(x, places, axis), places])


def suppressed(inputs: Inputs, attrs: dict[str, Any]) -> Expr:
    """Rows of all boxes that may be taken, and how many are; the importer keeps both apart."""
    boxes, scores, most, limit, least = inputs[:5]
    if attrs.get("center_point_box", 0):
        x, y, width, height = (relax.op.strided_slice(boxes, [2], [n], [n + 1]) for n in range(4))
        half = relax.const(0.5, str(boxes.ty.dtype))
        width, height = relax.op.multiply(width, half), relax.op.multiply(height, half)
        low, high = ((op(y, height), op(x, width)) for op in (relax.op.subtract, relax.op.add))
        boxes = relax.op.concat([*low, *high], axis=2)

    def scalar(value: Expr) -> Expr:
        if isinstance(value, tvm.ir.GenericConst):
            return relax.const(value.value.numpy().reshape(()), str(value.ty.dtype))
        return relax.op.reshape(value, [])

    return relax.op.vision.all_class_non_max_suppression(
        boxes, scores, scalar(most), scalar(limit), scalar(least), "onnx"
    )


WINDOWS = frozenset({"AveragePool", "Conv", "LpPool", "MaxPool"})
"""Operators whose windows :func:`explicit_padding` places."""


def explicit_padding(x: Expr, weight: Expr | None, attrs: dict[str, Any]) -> dict[str, Any]:
    """Attributes of windows with ``auto_pad`` as numbers.

    TVM pads the input of a convolution with an opaque kernel, moves the windows of a pool that are smaller
    than their stride, and rounds down for ``SAME_LOWER``.  Files may leave ``kernel_shape`` to the weight.
    """
    mode = as_text(attrs.get("auto_pad", "NOTSET"))
    shape, taps = static_shape(x), static_shape(weight) if weight is not None else None
    if "kernel_shape" not in attrs and taps is not None:
        attrs = {**attrs, "kernel_shape": list(taps[2:])}
    if mode not in ("SAME_UPPER", "SAME_LOWER") or shape is None:
        return attrs
    kernel, spatial = attrs["kernel_shape"], shape[2:]
    strides, dilations = (attrs.get(name, [1] * len(kernel)) for name in ("strides", "dilations"))
    before, after = [], []
    for extent, taps, stride, dilation in zip(spatial, kernel, strides, dilations, strict=True):
        reach = dilation * (taps - 1) + 1
        total = max(0, (-(-extent // stride) - 1) * stride + reach - extent)
        less, more = total // 2, total - total // 2
        before.append(less if mode == "SAME_UPPER" else more)
        after.append(more if mode == "SAME_UPPER" else less)
    return {**attrs, "auto_pad": b"NOTSET", "pads": [*before, *after]}


def _compress(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """Selection by a constant condition: a lookup of the elements that it names."""
    x, condition = inputs[0], inputs[1]
    if not isinstance(condition, tvm.ir.GenericConst):
        return None
    places = np.flatnonzero(condition.value.numpy()).astype("int64")
    axis, shape = attrs.get("axis"), static_shape(x)
    if shape is not None:  # a condition may be longer than the axis
        places = places[places < (math.prod(shape) if axis is None else shape[axis])]
    if axis is None:
        axis, x = 0, relax.op.reshape(x, [-1])
    return relax.op.take(x, relax.const(places), axis=axis, mode="wrap")


def _one_hot(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """Comparison of indices with 0, 1, ...; TVM's converter wants whole numbers of one type everywhere."""
    indices, depth, values = inputs[:3]
    shape = static_shape(indices)
    if shape is None or not isinstance(depth, tvm.ir.GenericConst):
        return None
    count, rank = int(depth.value.numpy().reshape(-1)[0]), len(shape)
    axis = attrs.get("axis", -1) % (rank + 1)
    whole = relax.op.astype(indices, "int64")
    whole = relax.op.where(
        relax.op.less(whole, relax.const(0, "int64")), relax.op.add(whole, relax.const(count, "int64")), whole
    )
    places = np.arange(count).reshape([count if n == axis else 1 for n in range(rank + 1)])
    hot = relax.op.equal(relax.op.expand_dims(whole, axis), relax.const(places, "int64"))
    if isinstance(values, tvm.ir.GenericConst):
        off, on = (relax.const(value, str(values.ty.dtype)) for value in values.value.numpy())
    else:
        off, on = (relax.op.take(values, relax.const(n, "int64"), axis=0, mode="wrap") for n in (0, 1))
    return relax.op.where(hot, on, off)


def _bit_cast(inputs: Inputs, attrs: dict[str, Any]) -> Expr | None:
    """The same bits as another type of the same width."""
    x, wanted = inputs[0], onnx_frontend.get_type(attrs["to"])
    given = str(x.ty.dtype)
    if "bool" in (given, wanted):
        return relax.op.astype(x, wanted) if given == "bool" else None
    if given.removeprefix("u") == wanted.removeprefix("u"):
        return relax.op.astype(x, wanted)

    def reinterpreted(tensor: Any) -> Any:
        return te.compute(tensor.shape, lambda *i: tirx.reinterpret(wanted, tensor(*i)), name="bit_cast")

    return relax.BlockBuilder.current().emit_te(reinterpreted, x, primfunc_name_hint="bit_cast")


def _image(images: Expr, index: Expr) -> Expr:
    """Numbers of images by ``index``, looked up: so they are checked where they are used, as any index is.

    An image is not counted from the end.
    """
    count = (static_shape(images) or (1,))[0]
    if isinstance(index, tvm.ir.GenericConst):
        values = index.value.numpy()
        if values.size and not 0 <= values.min() <= values.max() < count:
            raise ValueError(f"an index lies outside [0, {count})")
    dtype = str(index.ty.dtype)
    below = relax.op.less(index, relax.const(0, dtype))
    index = relax.op.where(below, relax.const(min(count, np.iinfo(dtype).max), dtype), index)
    return relax.op.take(relax.const(np.arange(count), "int64"), index, axis=0, mode="wrap")


def _roi_align(inputs: Inputs, attrs: dict[str, Any]) -> None:
    """Leave the operator to TVM, whose kernel reads whatever image its indices name."""
    inputs[2] = _image(inputs[0], inputs[2])


def _max_roi_pool(inputs: Inputs, attrs: dict[str, Any]) -> None:
    """Leave the operator to TVM, whose kernel reads whatever image the first column names."""
    rois = inputs[1]
    shape, dtype = static_shape(rois), rois.ty.dtype
    if shape is not None and shape[0]:
        column = relax.op.strided_slice(rois, [1], [0], [1])
        first = relax.BlockBuilder.current().emit(relax.op.astype(column, "int64"))
        image = relax.op.astype(_image(inputs[0], first), dtype)
        inputs[1] = relax.op.concat([image, relax.op.strided_slice(rois, [1], [1], [5])], axis=1)


def _grid_sample(inputs: Inputs, attrs: dict[str, Any]) -> None:
    """Leave the operator to TVM, with positions from which it computes what PyTorch does.

    Positions are taken in the type of the image, which is the result's.
    For the nearest pixel and linear steps, NaN is the place of the first pixel where the image goes on
    beyond its border, and so is what lies too far away to be reflected.  Cubic steps make NaN of infinity;
    TVM counts the places of far positions in 32 bits.  Cubic steps with reflection stay as they are: TVM
    repeats the positions in every term, and takes minutes to compile longer ones.
    """
    x, given = inputs[0], str(inputs[1].ty.dtype)
    if (kind := str(x.ty.dtype)) != given:  # TVM's result has the wider type, not the image's
        if kind not in ("float32", "float64"):
            raise ValueError(f"images of {kind} at positions of {given}")
        inputs[1] = relax.BlockBuilder.current().emit(relax.op.astype(inputs[1], kind))
    grid = inputs[1]
    mode, padding = (
        as_text(attrs.get(name, default)) for name, default in (("mode", "linear"), ("padding_mode", "zeros"))
    )
    dtype, shape, size = str(grid.ty.dtype), static_shape(x), relax.op.abs(grid)
    first, nan, infinity = (relax.const(value, dtype) for value in (-1.0, np.nan, np.inf))
    cubic = mode in ("cubic", "bicubic")
    if padding == "reflection":
        if attrs.get("align_corners", 0):  # a single pixel has no distance to reflect in: two alike have
            for axis in (axis for axis in range(2, len(shape or ())) if shape[axis] == 1):
                inputs[0] = relax.BlockBuilder.current().emit(relax.op.concat([inputs[0], inputs[0]], axis))
        near = relax.op.less(size, relax.const(6e4 if dtype == "float16" else 1e9, dtype))
        inputs[1] = grid if cubic else relax.op.where(near, grid, first)
    elif cubic:
        end = 1e4  # pixels beyond any image, and no count beyond 32 bits
        inputs[1] = relax.op.where(relax.op.less(size, infinity), relax.op.clip(grid, -end, end), nan)
    elif padding == "border":
        inputs[1] = relax.op.where(relax.op.isnan(grid), first, grid)


CONVERTERS: dict[str, Callable[[Inputs, dict[str, Any]], Expr | None]] = {
    **ARITHMETIC,
    **MOVES,
    **PLACES,
    **SEQUENCES,
    "BitCast": _bit_cast,
    "BitShift": _bit_shift,
    "Clip": _clip,
    "Compress": _compress,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "Einsum": _einsum,
    "Gather": _gather,
    "GridSample": _grid_sample,
    "IsInf": _is_inf,
    "Max": _pairwise(relax.op.maximum),
    "MaxRoiPool": _max_roi_pool,
    "Min": _pairwise(relax.op.minimum),
    "Mod": _mod,
    "NonMaxSuppression": suppressed,
    "OneHot": _one_hot,
    "RoiAlign": _roi_align,
    "TopK": _top_k,
}
"""Operator -> our converter."""
