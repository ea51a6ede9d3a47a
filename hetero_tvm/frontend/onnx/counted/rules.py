"""Rules of operators that read counted tensors: which axes of results are counted, what must not be read.

A new operator is one function and one entry in ``RULES``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from hetero_tvm.frontend.onnx.counted import scatters, shapes
from hetero_tvm.frontend.onnx.counted.tensors import Axes, Count, Step, Unfit

Rule = Callable[[Step], None]
"""Marks the results of a node, and writes it anew where it would read what does not count."""


def elementwise(b: Step) -> None:
    """Operators on elements, with broadcasting.

    Beside a fixed number of elements, more than one, a counted axis has as many: that it does is checked when
    the model runs (selected tokens plus the features of an image).
    """
    shapes_of = {n: b.extents(n) for n, name in enumerate(b.node.input) if name}
    rank = max(len(shape) for shape in shapes_of.values())
    axes: dict[int, Count] = {}
    for index in shapes_of:
        for axis, count in b.axes(index).items():
            axes.setdefault(axis + rank - len(shapes_of[index]), count)
    inputs: dict[int, str] = {}
    for axis, count in list(axes.items()):
        fixed = 1
        for index, shape in shapes_of.items():
            own = axis - (rank - len(shape))
            if own < 0 or b.axes(index).get(own) == count:
                continue
            if own in b.axes(index):
                raise Unfit("two operands have counts that need not be equal")
            if shape[own] >= max(count.most, 2) or not shape[own]:
                raise Unfit(f"an operand has {shape[own]} elements along a counted axis of another")
            fixed = max(fixed, shape[own])
        if fixed == 1:
            continue
        del axes[axis]
        as_many = b.op("Equal", count.name, b.ints(fixed))
        for index, shape in shapes_of.items():
            own = axis - (rank - len(shape))
            if own in b.axes(index):
                x = inputs.get(index, b.input(index))
                x = x if shape[own] == fixed else b.cut(x, own, 0, fixed)
                asked = f"{fixed} selected elements beside {fixed} others"
                inputs[index] = b.guard(x, as_many, what=asked, dtype=b.dtype(b.input(index)))
    if b.node.op_type in ("Div", "Mod") and b.axes(1) and not b.is_float(b.input(1)):
        if inputs:
            raise Unfit("it divides whole numbers by a counted tensor beside a fixed one")
        inputs[1] = b.masked(1, 1)
    if inputs:
        b.again(inputs)
    b.mark(0, axes)


def same(b: Step) -> None:
    """Operators that work on the last axes, or on channels, of each element of the first one alone."""
    _first_operand_only(b)
    if set(b.axes(0)) - {0}:
        raise Unfit("an axis other than the first is counted")
    for index in range(len(b.node.output)):
        b.mark(index, b.axes(0))


def normalized(b: Step) -> None:
    """Layer normalization and the like, over axes behind those that are counted."""
    _first_operand_only(b)
    rank = len(b.extents(0))
    if any(axis >= int(b.attributes.get("axis", -1)) % rank for axis in b.axes(0)):
        raise Unfit("it normalizes over a counted axis")
    b.mark(0, b.axes(0))


def softmax(b: Step) -> None:
    """Softmax, LogSoftmax and Hardmax."""
    axis = int(b.attributes.get("axis", -1)) % len(b.extents(0))
    if axis in b.axes(0):
        b.again({0: b.masked(0, b.lowest(0), {axis})})
    b.mark(0, b.axes(0))


def running(b: Step) -> None:
    """CumSum."""
    (axis,) = b.numbers(1, "axis")
    if axis % len(b.extents(0)) in b.axes(0):
        b.again({0: b.masked(0, 0, {axis % len(b.extents(0))})})
    b.mark(0, b.axes(0))


def reduction(b: Step) -> None:
    """Reductions: what does not count is replaced by what changes nothing."""
    rank, kind = len(b.extents(0)), b.node.op_type
    axes = b.reduced_axes(rank)
    if axes is None:
        if b.attributes.get("noop_with_empty_axes", 0):
            b.mark(0, b.axes(0))
            return
        axes = list(range(rank))
    hit = {axis: count for axis, count in b.axes(0).items() if axis in axes}
    if hit and kind == "ReduceMean":
        _mean(b, axes, hit)
    elif hit:
        neutral = {
            "ReduceProd": 1, "ReduceMax": b.lowest(0), "ReduceMin": b.highest(0),
            "ReduceLogSumExp": b.lowest(0),
        }  # fmt: skip
        b.again({0: b.masked(0, neutral.get(kind, 0), set(hit))})
    _mark_reduced(b, axes)


def _mark_reduced(b: Step, axes: list[int]) -> None:
    keep = b.attributes.get("keepdims", 1)
    b.mark(
        0,
        {
            axis if keep else axis - sum(a < axis for a in axes): count
            for axis, count in b.axes(0).items()
            if axis not in axes
        },
    )


def _mean(b: Step, axes: list[int], hit: Axes) -> None:
    """Sum of what counts by how much does."""
    dtype, extents = b.dtype(b.input(0)), b.extents(0)
    total = b.reduce(
        "ReduceSum", b.masked(0, 0, set(hit)), axes, int(b.attributes.get("keepdims", 1)), axes_as_input=13
    )
    number = b.ints(int(np.prod([extents[axis] for axis in axes if axis not in hit])))
    for count in hit.values():
        number = b.op("Mul", number, count.name)
    b.finish(0, b.op("Div", total, b.op("CastLike", number, b.const(0, dtype))))


def arg_reduction(b: Step) -> None:
    """ArgMax and ArgMin."""
    rank = len(b.extents(0))
    axis = int(b.attributes.get("axis", 0)) % rank
    if axis in b.axes(0):
        if b.attributes.get("select_last_index", 0):
            raise Unfit("it takes the last of equal values along a counted axis")
        value = b.lowest(0) if b.node.op_type == "ArgMax" else b.highest(0)
        b.again({0: b.masked(0, value, {axis})})
    _mark_reduced(b, [axis])


def transpose(b: Step) -> None:
    """Transpose."""
    rank = len(b.extents(0))
    order = list(b.attributes.get("perm", range(rank)[::-1]))
    b.mark(0, {order.index(axis): count for axis, count in b.axes(0).items()})


def squeeze(b: Step) -> None:
    """Squeeze of axes that are not counted."""
    extents = b.extents(0)
    axes = [n for n, size in enumerate(extents) if size == 1]
    if b.input(1):
        axes = [axis % len(extents) for axis in b.numbers(1, "axes")]
    if any(axis in b.axes(0) for axis in axes):
        raise Unfit("it drops a counted axis")
    b.mark(0, {axis - sum(a < axis for a in axes): count for axis, count in b.axes(0).items()})


def unsqueeze(b: Step) -> None:
    """Unsqueeze."""
    given = b.numbers(1, "axes")
    rank = len(b.extents(0)) + len(given)
    new = {axis % rank for axis in given}
    kept = [axis for axis in range(rank) if axis not in new]
    b.mark(0, {kept[axis]: count for axis, count in b.axes(0).items()})


def gather(b: Step) -> None:
    """Gather by counted indices, or from a counted axis."""
    extents = b.extents(0)
    axis, rank = int(b.attributes.get("axis", 0)) % len(extents), len(b.extents(1))
    own = b.axes(0)
    places = b.places(1, own.get(axis))
    if places != b.input(1):
        b.again({1: places})
    axes = {a if a < axis else a + rank - 1: count for a, count in own.items() if a != axis}
    b.mark(0, {**axes, **{axis + a: count for a, count in b.axes(1).items()}})


def gather_elements(b: Step) -> None:
    """GatherElements by counted indices, or from a counted axis."""
    extents = b.extents(0)
    axis = int(b.attributes.get("axis", 0)) % len(extents)
    if any(a != axis and b.axes(1).get(a) != count for a, count in b.axes(0).items()):
        raise Unfit("indices and data have counts that need not be equal")
    places = b.places(1, b.axes(0).get(axis))
    if places != b.input(1):
        b.again({1: places})
    b.mark(0, b.axes(1))


def gather_nd(b: Step) -> None:
    """GatherND by counted rows of indices, or from a counted first axis."""
    if int(b.attributes.get("batch_dims", 0)):
        raise Unfit("it has batches")
    own, rank = b.axes(0), len(b.extents(1))
    if rank - 1 in b.axes(1):
        raise Unfit("the length of its rows of indices is counted")
    length = b.extents(1)[-1]
    if length > 1 and any(axis < length for axis in own):
        raise Unfit("its rows of indices run along a counted axis and others")
    b.again({1: b.places(1, own[0]) if length == 1 and 0 in own else b.masked(1, 0)})
    rest = {axis - length + rank - 1: count for axis, count in own.items() if axis >= length}
    b.mark(0, {**rest, **b.axes(1)})


def concat(b: Step) -> None:
    """Concat along another axis, or of what counts of each operand."""
    rank = len(b.extents(0))
    axis = int(b.attributes["axis"]) % rank
    rest: dict[int, Count] = {}
    for index in range(len(b.node.input)):
        for a, count in b.axes(index).items():
            if a != axis and rest.setdefault(a, count) != count:
                raise Unfit("two operands have counts that need not be equal")
    for a, count in rest.items():
        if any(b.axes(index).get(a) != count for index in range(len(b.node.input))):
            raise Unfit(f"an operand has {count.most} elements along a counted axis of another")
    if not any(axis in b.axes(index) for index in range(len(b.node.input))):
        b.mark(0, rest)
        return
    parts, flags, pieces = [], [], []
    for index, name in enumerate(b.node.input):
        size = b.extents(index)[axis]
        if not size:
            continue
        count = b.axes(index).get(axis)
        pieces.append(size if count is None else count)
        parts.append(name)
        one = b.const(np.ones(size), "bool") if count is None else b.mask(count, 0, 1)
        flags.append(one)
    total = b.plus(*pieces)
    length = sum(p if isinstance(p, int) else p.most for p in pieces)
    joined = parts[0] if len(parts) == 1 else b.op("Concat", *parts, axis=axis)
    held = flags[0] if len(flags) == 1 else b.op("Concat", *flags, axis=0)
    places, _ = b.found(held, length, "")
    b.finish(0, b.op("Gather", joined, places, axis=axis))
    assert isinstance(total, Count)
    b.mark(0, {**rest, axis: total})


def split(b: Step) -> None:
    """Split along an axis that is not counted."""
    axis = int(b.attributes.get("axis", 0)) % len(b.extents(0))
    if axis in b.axes(0):
        raise Unfit("it divides a counted axis")
    for index in range(len(b.node.output)):
        b.mark(index, b.axes(0))


def pad(b: Step) -> None:
    """Pad along axes that are not counted, and of a counted axis up to a number that it does not exceed."""
    extents, own, left = b.extents(0), b.axes(0), dict(b.axes(0))
    pads = shapes.whole(b, 1, "pads")
    axes = [axis % len(extents) for axis in b.numbers(3, "axes")] if b.input(3) else list(range(len(extents)))
    for n, axis in enumerate(axes):
        start, end = pads[n], pads[n + len(axes)]
        if isinstance(end, Count) and end.rest_of and end.rest_of[0] == own.get(axis) and start == 0:
            pads[n + len(axes)] = end.rest_of[1] - extents[axis]
            del left[axis]
        elif isinstance(start, Count) or isinstance(end, Count):
            raise Unfit("its pads come at run time")
        elif axis in own and (start or end):
            raise Unfit("it pads a counted axis")
    if left != own:
        value = b.value(2) if b.input(2) else np.zeros(1)
        if value is None or b.attributes.get("mode", b"constant") not in (b"constant", "constant"):
            raise Unfit("it pads a counted axis with values that only a run knows")
        filled = b.masked(0, value.reshape(-1)[0], {axis for axis in own if axis not in left})
        b.again({0: filled, 1: b.ints(shapes.padded(pads))})
    b.mark(0, left)


def product(b: Step) -> None:
    """MatMul: rows, columns and batches may be counted, and what is summed over."""
    left, right = b.extents(0), b.extents(1)
    if min(len(left), len(right)) < 2:
        raise Unfit("an operand is a vector")
    rank = max(len(left), len(right))
    axes: dict[int, Count] = {}
    for index, shape in enumerate((left, right)):
        summed = len(shape) - 1 - index
        for axis, count in b.axes(index).items():
            if axis == summed:
                continue
            place = axis + rank - len(shape)
            other = (right, left)[index]
            theirs = place - (rank - len(other))
            if (
                place < rank - 2
                and theirs >= 0
                and other[theirs] != 1
                and b.axes(1 - index).get(theirs) != count
            ):
                raise Unfit("two operands have counts that need not be equal")
            axes[place] = count
    inner = [b.axes(0).get(len(left) - 1), b.axes(1).get(len(right) - 2)]
    if any(inner):
        if inner[0] != inner[1]:
            raise Unfit("it sums over two counts that need not be equal")
        b.again({0: b.masked(0, 0, {len(left) - 1}), 1: b.masked(1, 0, {len(right) - 2})})
    b.mark(0, axes)


def gemm(b: Step) -> None:
    """Gemm of counted rows."""
    row = 1 if b.attributes.get("transA", 0) else 0
    if b.axes(1) or b.axes(2) or set(b.axes(0)) != {row}:
        raise Unfit("something else than its rows is counted")
    if b.input(2) and len(b.extents(2)) == 2 and b.extents(2)[0] != 1:
        raise Unfit("what is added has a row for each of its rows")
    b.mark(0, {0: b.axes(0)[row]})


def rois(b: Step) -> None:
    """RoiAlign of counted boxes: those that do not count are empty, since a box far outside is refused."""
    if b.axes(0) or set(b.axes(1)) != {0} or b.axes(1) != b.axes(2) and b.axes(2):
        raise Unfit("something else than its boxes is counted")
    b.again({1: b.masked(1, 0), 2: b.masked(2, 0) if b.axes(2) else b.input(2)})
    b.mark(0, b.axes(1))


def sampled(b: Step) -> None:
    """GridSample at counted points."""
    if b.axes(0) or 0 in b.axes(1) or len(b.extents(1)) - 1 in b.axes(1):
        raise Unfit("something else than its points is counted")
    b.again({1: b.masked(1, 0)})
    b.mark(0, {axis + 1: count for axis, count in b.axes(1).items()})


def resized(b: Step) -> None:
    """Resize by known scales, and along axes that are not counted."""
    scales = b.value(2) if b.input(2) else None
    if scales is None:
        raise Unfit("its sizes, and not its scales, are given")
    _first_operand_only(b)
    rank = len(b.extents(0))
    axes = [int(axis) % rank for axis in b.attributes.get("axes", range(rank))]
    if any(axis in b.axes(0) and scale != 1 for axis, scale in zip(axes, scales, strict=True)):
        raise Unfit("it resizes a counted axis")
    b.mark(0, b.axes(0))


def one_hot(b: Step) -> None:
    """OneHot of counted indices."""
    rank = len(b.extents(0)) + 1
    axis = int(b.attributes.get("axis", -1)) % rank
    b.mark(0, {a if a < axis else a + 1: count for a, count in b.axes(0).items()})


def quantizer(b: Step) -> None:
    """QuantizeLinear and DequantizeLinear by numbers, or by scales along an axis that is not counted."""
    _first_operand_only(b)
    scale = b.extents(1)
    if math.prod(scale) > 1:
        axis = int(b.attributes.get("axis", 1)) % len(b.extents(0))
        if len(scale) > 1 or axis in b.axes(0):
            raise Unfit("its scales lie along a counted axis")
    b.mark(0, b.axes(0))


def _first_operand_only(b: Step) -> None:
    if any(b.axes(index) for index in range(1, len(b.node.input))):
        raise Unfit("an operand other than the first is counted")


# fmt: off
_ELEMENTWISE = (
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd",
    "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div",
    "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish",
    "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish",
    "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink",
    "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh",
    "ThresholdedRelu", "Where", "Xor",
)
_ROWS = (
    "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace", "GlobalAveragePool",
    "GlobalMaxPool", "GroupNormalization", "InstanceNormalization", "LRN", "MaxPool", "SpaceToDepth",
)
RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, elementwise),
    **dict.fromkeys(_ROWS, same),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), normalized),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), softmax),
    **dict.fromkeys((
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
        "ReduceProd", "ReduceSum", "ReduceSumSquare",
    ), reduction),
    "ArgMax": arg_reduction,
    "ArgMin": arg_reduction,
    "Concat": concat,
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), quantizer),
    "ConstantOfShape": shapes.constant_of_shape,
    "CumSum": running,
    "Expand": shapes.expand,
    "Flatten": shapes.reshape,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "Gemm": gemm,
    "GridSample": sampled,
    "MatMul": product,
    "OneHot": one_hot,
    "Pad": pad,
    "Range": shapes.count_up,
    "Reshape": shapes.reshape,
    "Resize": resized,
    "RoiAlign": rois,
    "ScatterND": scatters.scatter_nd,
    "ScatterElements": scatters.scatter_elements,
    "Shape": shapes.shape,
    "Size": shapes.size,
    "Slice": shapes.slices,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": shapes.tile,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
}
"""Operator -> its rule."""
# fmt: on
