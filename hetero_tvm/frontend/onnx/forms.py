"""Forms of operators whose attributes TVM's converters ignore: written out in plain operators, or refused.

Everything here would run and give wrong numbers.  A new operator is one function and one entry in ``FORMS``.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from hetero_tvm.frontend.onnx.bodies.empty import EMPTY
from hetero_tvm.frontend.onnx.bodies.resize import OLD_NEAREST, affine_grid, resize
from hetero_tvm.frontend.onnx.expand import Expansion, write_out
from hetero_tvm.frontend.onnx.graph.body import Body, as_text
from hetero_tvm.frontend.onnx.graph.branches import is_cleaned
from hetero_tvm.frontend.onnx.graph.constants import ONNX_DOMAINS, ConstantPool, Types
from hetero_tvm.frontend.onnx.graph.nodes import all_nodes, give_attributes, inner_nodes, refusal
from hetero_tvm.frontend.onnx.graph.sequences import settle_elements, split_up

_MOST_STEP = 1 << 40
"""Step of a slice beyond which nothing lies."""


def write_forms(graph: onnx.GraphProto, types: Types, pool: ConstantPool, opset: int) -> bool:
    """Replace the forms that an entry of ``FORMS`` writes out; returns whether there were any.

    Raises
    ------
    UnsupportedOperatorError : a form that nothing writes out.
    """
    return settle_elements(graph, pool) or write_out(graph, FORMS, types, pool, opset)


def refuse_inner_forms(graph: onnx.GraphProto, types: Types, pool: ConstantPool, opset: int) -> None:
    """Refuse forms in subgraphs that could not be cleaned as models of their own.

    Raises
    ------
    UnsupportedOperatorError : names the node.
    """
    left = (node for outer in graph.node if not is_cleaned(outer) for node in inner_nodes([outer]))
    for node in left:
        form = FORMS.get(node.op_type) if node.domain in ONNX_DOMAINS else None
        if form and form(node, opset, types, pool) is not None:
            raise refusal(node, "a form inside a branch whose operands have no known shapes")


# ---- after a model is converted to a newer opset -------------------------------------------------


def restore_corners(graph: onnx.GraphProto) -> None:
    """Let all Resize nodes of a model from before opset 11 stretch from the corner, as they did then.

    The converter gives them other modes, and their results other names.  The nearest element was the lower
    one where an axis grows and the upper one where it shrinks, which ONNX cannot say now (``OLD_NEAREST``).
    """
    for node in all_nodes(graph):
        if node.op_type == "Resize" and node.domain in ONNX_DOMAINS:
            give_attributes(node, coordinate_transformation_mode="asymmetric", nearest_mode=OLD_NEAREST)


_FARTHEST = 4096
"""Pixels that a box of RoiAlign may reach from the image, if that is not larger still."""
_BOXES_CHECKED = "its boxes are checked"

# ---- forms of single operators ------------------------------------------------------------------


def _batch_normalization(
    node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool
) -> list[onnx.NodeProto] | None:
    """Statistics of the batch itself, and the running ones, as training mode has them."""
    b = Body(node, opset)
    if not b.attributes.get("training_mode", 0):
        return None
    shape = pool.shape(node.input[0], types)
    if shape is None:
        raise refusal(node, "training_mode=1 and a shape that depends on values")
    x, dtype = node.input[0], pool.dtype(node.input[0], types)
    scale, bias, mean, variance = node.input[1:5]
    axes = [n for n in range(len(shape)) if n != 1]
    along = b.const([1, -1, *(1 for _ in shape[2:])], "int64")
    own_mean = b.reduce("ReduceMean", x, axes, 1, axes_as_input=18)
    centered = b.op("Sub", x, own_mean)
    own_variance = b.reduce("ReduceMean", b.op("Mul", centered, centered), axes, 1, axes_as_input=18)
    epsilon = b.const(b.attributes.get("epsilon", 1e-5), dtype)
    y = b.op("Div", centered, b.op("Sqrt", b.op("Add", own_variance, epsilon)))
    y = b.op("Mul", y, b.op("Reshape", scale, along))
    b.end(0, b.op("Add", y, b.op("Reshape", bias, along)))
    momentum = float(b.attributes.get("momentum", 0.9))
    flat = b.const([-1], "int64")
    for index, (running, own) in enumerate(((mean, own_mean), (variance, own_variance)), 1):
        before = b.op("Mul", running, b.const(momentum, dtype))
        now = b.op("Mul", b.op("Reshape", own, flat), b.const(1 - momentum, dtype))
        b.end(index, b.op("Add", before, now))
    return b.nodes


def _roi_align(
    node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool
) -> list[onnx.NodeProto] | None:
    """Boxes in the image's own pixels, and near it: TVM moves them by half a pixel before it scales them.

    What is far off would be sampled for hours, and of NaN or infinity no sample is computed.
    Mode max is the largest weighted corner, which ``relax_passes.forms.roi_align`` lowers so.
    """
    b = Body(node, opset)
    mode = as_text(b.attributes.get("mode", "avg"))
    if mode not in ("avg", "max"):
        raise refusal(node, f"mode={mode}", "Export the model with mode avg or max.")
    shape = pool.shape(b.input(0), types)
    if node.doc_string == _BOXES_CHECKED or pool.shape(b.input(1), types) is None or shape is None:
        return None
    scale = float(b.attributes.get("spatial_scale", 1.0))
    usual = "half_pixel" if opset >= 16 else "output_half_pixel"
    half = as_text(b.attributes.get("coordinate_transformation_mode", usual)) == "half_pixel"
    boxes, dtype, farthest = (
        b.input(1),
        pool.dtype(b.input(1), types),
        max(_FARTHEST, *(4 * n for n in shape[2:])),
    )
    said = f"boxes must be finite, and within {farthest} pixels of the image's corner"
    if scale != 1.0 and half:
        boxes, scale = b.op("Mul", boxes, b.const(scale, dtype)), 1.0
    near = b.op("LessOrEqual", b.op("Abs", boxes), b.const(farthest / scale, dtype))
    boxes = b.checked(boxes, b.every(near), dtype, said)
    y = b.op("RoiAlign", b.input(0), boxes, b.input(2), **{**b.attributes, "spatial_scale": scale})
    b.nodes[-1].doc_string = _BOXES_CHECKED
    if half and int(b.attributes.get("sampling_ratio", 0)) <= 0:  # boxes without extent: TVM writes nothing
        sides = b.op("Sub", b.cut(boxes, 1, 2, 4), b.cut(boxes, 1, 0, 2))
        shortest = b.op("Reshape", b.reduce("ReduceMin", sides, [1], 1, 18), b.const([-1, 1, 1, 1], "int64"))
        y = b.op("Where", b.op("Greater", shortest, b.const(0, dtype)), y, b.const(0, dtype))
    b.end(0, y)
    return b.nodes


def _space_to_depth(
    node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool
) -> list[onnx.NodeProto] | None:
    """Channels before places within a block (mode CRD); TVM knows the other order."""
    b = Body(node, opset)
    mode = as_text(b.attributes.get("mode", "DCR"))
    if mode == "DCR":
        return None
    shape = pool.shape(node.input[0], types)
    if mode != "CRD" or shape is None:
        raise refusal(node, f"mode={mode}{'' if shape else ' and a shape that depends on values'}")
    batch, channels, height, width = shape
    block = int(b.attributes["blocksize"])
    rows, columns = height // block, width // block
    x = b.op("Reshape", node.input[0], b.const([batch, channels, rows, block, columns, block], "int64"))
    x = b.op("Transpose", x, perm=[0, 1, 3, 5, 2, 4])
    b.end(0, b.op("Reshape", x, b.const([batch, channels * block * block, rows, columns], "int64")))
    return b.nodes


def _lp_normalization(
    node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool
) -> list[onnx.NodeProto] | None:
    """Rows by their norm; those of norm 0, also by underflow, are 0.  TVM has no converter."""
    b = Body(node, opset)
    x, axis, p = b.input(0), int(b.attributes.get("axis", -1)), int(b.attributes.get("p", 2))
    kind = {1: "ReduceL1", 2: "ReduceL2"}.get(p)
    if kind is None:
        raise refusal(node, f"p={p}")
    if pool.shape(x, types) is None:
        return None
    dtype = pool.dtype(x, types)
    norm = b.reduce(kind, x, [axis], 1, axes_as_input=18)
    empty = b.op("Equal", norm, b.const(0, dtype))
    quotient = b.op("Div", x, b.op("Where", empty, b.const(1, dtype), norm))
    b.end(0, b.op("Where", empty, b.const(0, dtype), quotient))
    return b.nodes


def _conv_transpose(
    node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool
) -> list[onnx.NodeProto] | None:
    """Padding of a transposed convolution that states its result's extents, which TVM does not read."""
    b = Body(node, opset)
    wanted = [int(extent) for extent in b.attributes.get("output_shape", [])]
    shape, taps = (pool.shape(name, types) for name in node.input[:2])
    if not wanted or shape is None or taps is None:
        return None
    axes = len(shape) - 2
    strides, dilations = (list(b.attributes.get(n, [1] * axes)) for n in ("strides", "dilations"))
    extra = list(b.attributes.get("output_padding", [0] * axes))
    before, after = [], []
    for n in range(axes):
        whole = strides[n] * (shape[2 + n] - 1) + extra[n] + dilations[n] * (taps[2 + n] - 1) + 1
        total = whole - wanted[len(wanted) - axes + n]
        extra[n] += max(0, -total)
        less, more = max(0, total) // 2, max(0, total) - max(0, total) // 2
        upper = as_text(b.attributes.get("auto_pad", "NOTSET")) == "SAME_UPPER"
        before.append(less if upper else more)
        after.append(more if upper else less)
    kept = {k: v for k, v in b.attributes.items() if k not in ("auto_pad", "output_shape")}
    placed = {"pads": [*before, *after], "output_padding": extra}
    b.op("ConvTranspose", *node.input, output=b.wants(0), **{**kept, **placed})
    return b.nodes


def _eye_like(
    node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool
) -> list[onnx.NodeProto] | None:
    """A constant, of the type that is asked for; TVM knows that of the operand alone."""
    b = Body(node, opset)
    shape = pool.shape(node.input[0], types)
    if shape is None:
        return None
    element = b.attributes.get("dtype")
    dtype = helper.tensor_dtype_to_np_dtype(element).name if element else pool.dtype(node.input[0], types)
    b.end(0, b.const(np.eye(*shape, k=int(b.attributes.get("k", 0))), dtype))
    return b.nodes


def _layer_normalization(
    node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool
) -> list[onnx.NodeProto] | None:
    """A norm of float64 in plain operators, as TVM has none; one whose scale or shift is not of the extents
    that are normalised, with both behind it."""
    b = Body(node, opset)
    x, shape = node.input[0], pool.shape(node.input[0], types)
    if shape is None or any(node.output[1:]):
        return None
    axes = tuple(range(int(b.attributes.get("axis", -1)) % len(shape), len(shape)))
    if pool.dtype(x, types) != "float64":
        inner = tuple(shape[axis] for axis in axes)
        given = [name for name in node.input[1:] if name]
        extents = [pool.shape(name, types) for name in given]
        if None in extents or all(each == inner for each in extents):
            return None
        ones = b.const(np.ones(inner), pool.dtype(x, types))
        y = b.op("LayerNormalization", x, ones, **b.attributes)
        y = b.op("Mul", y, given[0])
        b.end(0, b.op("Add", y, given[1]) if len(given) > 1 else y)
        return b.nodes
    centered = b.op("Sub", x, b.mean(x, axes))
    variance = b.mean(b.op("Mul", centered, centered), axes)
    epsilon = b.const(float(b.attributes.get("epsilon", 1e-5)), "float64")
    y = b.op("Div", centered, b.op("Sqrt", b.op("Add", variance, epsilon)))
    y = b.op("Mul", y, b.input(1))
    b.end(0, b.op("Add", y, b.input(2)) if b.input(2) else y)
    return b.nodes


def _lrn(node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool) -> list[onnx.NodeProto] | None:
    """Division by a power of the mean square of neighbouring channels, of any rank, type and even size."""
    b = Body(node, opset)
    x, shape = node.input[0], pool.shape(node.input[0], types)
    if shape is None:
        return None
    dtype, size = pool.dtype(x, types), int(b.attributes["size"])
    rows = b.const([shape[0], 1, shape[1], -1], "int64")
    squares = b.op("Reshape", b.op("Mul", x, x), rows)
    pads = [(size - 1) // 2, 0, size // 2, 0]
    window = {"kernel_shape": [size, 1], "pads": pads, "count_include_pad": 1}
    mean = b.op("Reshape", b.op("AveragePool", squares, **window), b.const(shape, "int64"))
    scaled = b.op("Mul", mean, b.const(float(b.attributes.get("alpha", 1e-4)), dtype))
    base = b.op("Add", scaled, b.const(float(b.attributes.get("bias", 1.0)), dtype))
    power = b.op("Pow", base, b.const(float(b.attributes.get("beta", 0.75)), dtype))
    b.end(0, b.op("Div", x, power))
    return b.nodes


def _lp_pool(
    node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool
) -> list[onnx.NodeProto] | None:
    """Windows that end outside (``ceil_mode``) padded to their whole size: TVM divides by what is inside."""
    b = Body(node, opset)
    shape, result = (pool.shape(name, types) for name in (node.input[0], node.output[0]))
    if not b.attributes.get("ceil_mode", 0) or shape is None or result is None:
        return None
    kernel = list(b.attributes["kernel_shape"])
    strides, dilations = (list(b.attributes.get(n, [1] * len(kernel))) for n in ("strides", "dilations"))
    before = list(b.attributes.get("pads", [0] * 2 * len(kernel)))[: len(kernel)]
    after = [
        max(0, (count - 1) * stride + dilation * (taps - 1) + 1 - extent - first)
        for count, stride, dilation, taps, extent, first in zip(
            result[2:], strides, dilations, kernel, shape[2:], before, strict=True
        )
    ]
    attributes = {k: v for k, v in b.attributes.items() if k not in ("ceil_mode", "auto_pad")}
    b.op("LpPool", node.input[0], output=b.wants(0), **{**attributes, "pads": [*before, *after]})
    return b.nodes


def _mean_variance_normalization(
    node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool
) -> list[onnx.NodeProto] | None:
    """Deviation from the mean by its root mean square; TVM's variance loses its digits, and is float32."""
    b = Body(node, opset)
    x, axes = b.input(0), tuple(int(axis) for axis in b.attributes.get("axes", (0, 2, 3)))
    if pool.shape(x, types) is None:
        return None
    centered = b.op("Sub", x, b.mean(x, axes))
    deviation = b.op("Sqrt", b.mean(b.op("Mul", centered, centered), axes))
    b.end(0, b.op("Div", centered, b.op("Add", deviation, b.const(1e-9, pool.dtype(x, types)))))
    return b.nodes


def _split(node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool) -> list[onnx.NodeProto] | None:
    """Parts without elements as constants; TVM refuses to cut twice at one place."""
    b = Body(node, opset)
    sizes, shape = b.input(1), pool.shape(node.input[0], types)
    if not sizes or sizes not in pool or shape is None or 0 in shape:
        return None
    extents = [int(extent) for extent in pool.array(sizes)]
    if all(extents):
        return None
    axis = int(b.attributes.get("axis", 0)) % len(shape)
    empty = [0 if n == axis else extent for n, extent in enumerate(shape)]
    parts = iter(b.split(node.input[0], axis, [extent for extent in extents if extent]))
    dtype = pool.dtype(node.input[0], types)
    for index, extent in enumerate(extents):
        b.end(index, next(parts) if extent else b.const(np.zeros(empty), dtype))
    return b.nodes


def _noop_reduction(
    node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool
) -> list[onnx.NodeProto] | None:
    """Function that a reduction with ``noop_with_empty_axes`` applies to each element by itself."""
    b = Body(node, opset)
    axes = b.input(1)
    none = not b.attributes.get("axes") and (not axes or (axes in pool and not pool.array(axes).size))
    if not b.attributes.get("noop_with_empty_axes", 0) or not none:
        return None
    x = node.input[0]
    if node.op_type == "ReduceSumSquare":
        b.end(0, b.op("Mul", x, x))
    else:
        b.end(0, b.op("Log" if node.op_type == "ReduceLogSum" else "Abs", x))
    return b.nodes


def _cumulative_sum(node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool) -> None:
    """Refusal of an axis that the operand does not have: TVM takes it for another one."""
    shape = pool.shape(node.input[0], types)
    if shape is not None and node.input[1] in pool:
        axis = int(pool.array(node.input[1]).reshape(-1)[0])
        if not -len(shape) <= axis < len(shape):
            raise refusal(node, f"axis {axis} of a tensor with {len(shape)} dimensions")


def _pad(node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool) -> list[onnx.NodeProto] | None:
    """A cut before the operand is padded by its own values: what falls off is none of these.

    Reflections that reach further than the operand are refused, as by ONNX Runtime: TVM reads beside it.
    """
    b = Body(node, opset)
    x, shape, mode = (
        node.input[0],
        pool.shape(node.input[0], types),
        as_text(b.attributes.get("mode", "constant")),
    )
    given, axes = b.input(1), b.input(3)
    if mode == "constant" or shape is None or 0 in shape or given not in pool or (axes and axes not in pool):
        return None
    along = [int(axis) % len(shape) for axis in pool.array(axes).reshape(-1)] if axes else range(len(shape))
    pads = np.zeros((2, len(shape)), np.int64)
    pads[:, list(along)] = pool.array(given).reshape(2, -1)
    kept = [extent + int(cut) for extent, cut in zip(shape, np.minimum(pads, 0).sum(0), strict=True)]
    for before, after, extent in zip(*pads.tolist(), kept, strict=True):
        if mode == "reflect" and max(before, after) >= max(extent, 1):
            raise refusal(node, f"{max(before, after)} reflections of an axis with {extent} elements")
        if max(before, after) > 0 >= extent:
            raise refusal(node, "pads of an axis that its other pads cut off")
    if (pads >= 0).all() or mode == "edge":
        return None
    for axis, (before, extent) in enumerate(zip(pads[0].tolist(), kept, strict=True)):
        if extent < shape[axis]:
            x = b.cut(x, axis, max(-before, 0), max(-before, 0) + extent)
    b.op("Pad", x, b.const(np.maximum(pads, 0).reshape(-1), "int64"), output=b.wants(0), mode=mode)
    return b.nodes


def _quantize(
    node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool
) -> list[onnx.NodeProto] | None:
    """Scales of 0, as channels of nothing but zeros have, as the least number: nothing is divided by 0."""
    b = Body(node, opset)
    scale = b.input(1)
    if scale not in pool or pool.array(scale).all() or pool.dtype(scale, types) not in ("float32", "float64"):
        return None
    array = pool.array(scale)
    least = b.const(np.where(array == 0, np.finfo(array.dtype).tiny, array), array.dtype.name)
    rest = [b.input(2)] if b.input(2) else []
    b.op("QuantizeLinear", b.input(0), least, *rest, output=b.wants(0), **b.attributes)
    return b.nodes


def _slice(node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool) -> list[onnx.NodeProto] | None:
    """Steps beyond 2^40 as 2^40, behind which nothing lies: TVM's counts of elements overflow."""
    b = Body(node, opset)
    if b.input(4) not in pool:
        return None
    steps = pool.array(b.input(4)).astype(np.int64)
    cut = np.clip(steps, -_MOST_STEP, _MOST_STEP)
    if (cut == steps).all():
        return None
    for place in range(1, 4):  # all of one type
        if b.input(place) in pool and pool.array(b.input(place)).dtype != np.int64:
            return None
    b.op("Slice", *(b.input(n) for n in range(4)), b.const(cut, "int64"), output=b.wants(0))
    return b.nodes


def _top_k(node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool) -> None:
    """Refusal of more elements than there are."""
    b = Body(node, opset)
    shape, count = pool.shape(node.input[0], types), b.input(1)
    if shape and count in pool and pool.array(count).size == 1:
        most, asked = shape[int(b.attributes.get("axis", -1))], int(pool.array(count).reshape(()))
        if asked > most:
            raise refusal(node, f"k={asked} of {most} elements")


FORMS: dict[str, Expansion] = {
    **EMPTY,
    "AffineGrid": affine_grid,
    "BatchNormalization": _batch_normalization,
    "ConvTranspose": _conv_transpose,
    "CumSum": _cumulative_sum,
    "EyeLike": _eye_like,
    "LayerNormalization": _layer_normalization,
    "LRN": _lrn,
    "LpNormalization": _lp_normalization,
    "LpPool": _lp_pool,
    "MeanVarianceNormalization": _mean_variance_normalization,
    "Pad": _pad,
    "QuantizeLinear": _quantize,
    "ReduceL1": _noop_reduction,
    "ReduceL2": _noop_reduction,
    "ReduceLogSum": _noop_reduction,
    "ReduceSumSquare": _noop_reduction,
    "Resize": resize,
    "RoiAlign": _roi_align,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "SplitToSequence": split_up,
    "TopK": _top_k,
}
"""Operator -> function that writes a form out, refuses it, or gives None for one that TVM has right."""
