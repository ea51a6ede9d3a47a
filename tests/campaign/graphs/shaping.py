"""Steps that add operators which move elements."""

from __future__ import annotations

import numpy as np

from tests.campaign.graphs.builder import Builder
from tests.campaign.graphs.registry import operator
from tests.campaign.graphs.values import FLOATS, INTEGERS, NUMBERS, Rejected, Value, onnx_type

ANY = (*NUMBERS, "bool")


def ints(b: Builder, values) -> Value:
    """A constant of int64."""
    return b.const(np.asarray(values, np.int64))


def with_axes(b: Builder, op: str, x: Value, axes, since: int, **attributes) -> Value:
    """An operator whose axes are an input from opset ``since`` on."""
    if axes is None:
        return b.op(op, [x], **attributes)
    if b.opset >= since:
        return b.op(op, [x, ints(b, axes)], **attributes)
    return b.op(op, [x], axes=list(axes), **attributes)


def factored(b: Builder, total: int, most: int = 5) -> list[int]:
    """A random shape of so many elements."""
    dims = []
    while total > 1 and len(dims) < most - 1:
        options = [d for d in range(1, total + 1) if total % d == 0]
        dims.append(b.one(options))
        total //= dims[-1]
    dims.append(total)
    return dims


@operator(8)
def reshape(b: Builder) -> None:
    x = b.pick(ANY)
    size = int(np.prod(x.shape, dtype=np.int64))
    shape = factored(b, size) if size else list(x.shape)
    if b.chance(0.2):
        shape.insert(b.number(0, len(shape)), 1)
    if size and shape and b.chance(0.4):
        shape[b.number(0, len(shape) - 1)] = -1
    elif x.rank and len(shape) >= 1 and shape[0] == x.shape[0] and b.chance(0.5):
        shape[0] = 0
    zero = {"allowzero": b.number(0, 1)} if b.opset >= 14 and 0 not in shape and b.chance(0.1) else {}
    b.op("Reshape", [x, ints(b, shape)], **zero)


@operator(7)
def transpose(b: Builder) -> None:
    x = b.pick(ANY)
    b.op("Transpose", [x], perm=[int(p) for p in b.rng.permutation(x.rank)] if b.chance(0.9) else None)


@operator(3)
def flatten(b: Builder) -> None:
    x = b.pick(ANY if b.opset >= 9 else FLOATS)
    low = -x.rank if b.opset >= 11 else 0
    b.op("Flatten", [x], axis=b.number(low, x.rank) if b.chance(0.8) or x.rank < 2 else None)


@operator(4)
def unsqueeze(b: Builder) -> None:
    x = b.pick(ANY)
    count = b.number(1, 2)
    rank = x.rank + count
    axes = [int(a) for a in b.rng.permutation(rank)[:count]]
    if b.opset >= 11:
        axes = [a - rank if b.chance(0.3) else a for a in axes]
    else:
        axes.sort()
    with_axes(b, "Unsqueeze", x, axes, 13)


@operator(3)
def squeeze(b: Builder) -> None:
    x = b.pick(ANY, where=lambda v: 1 in v.shape, shape=lambda: (1, *b.shape(0, 2), 1))
    axes = [n for n, d in enumerate(x.shape) if d == 1]
    if b.chance(0.7):
        axes = [a for a in axes if b.chance(0.7)] or axes[:1]
        if b.opset >= 11:
            axes = [a - x.rank if b.chance(0.3) else a for a in axes]
        with_axes(b, "Squeeze", x, axes, 13)
    else:
        b.op("Squeeze", [x])


@operator(6)
def concat(b: Builder) -> None:
    x = b.pick(ANY, low=1)
    axis = b.axis(x, negative=b.opset >= 11)
    parts = [x]
    for _ in range(b.number(0, 3)):
        fits = [
            v
            for v in b.values
            if v.dtype == x.dtype
            and v.rank == x.rank
            and all(
                p == q for n, (p, q) in enumerate(zip(v.shape, x.shape, strict=True)) if n != axis % x.rank
            )
        ]
        if fits and b.chance(0.7):
            parts.append(b.one(fits))
        else:
            shape = list(x.shape)
            shape[axis] = b.number(1, 4)
            parts.append(b.fresh(x.dtype, shape))
    order = b.rng.permutation(len(parts))
    b.op("Concat", [parts[i] for i in order], axis=axis)


@operator(5)
def split(b: Builder) -> None:
    x = b.pick(ANY, low=1)
    axis = b.axis(x, negative=b.opset >= 11)
    extent = x.shape[axis]
    if extent < 1:
        raise Rejected("nothing to split")
    count = b.number(1, min(4, extent))
    equal = [d for d in range(1, min(5, extent) + 1) if extent % d == 0]
    if b.chance(0.4):
        count = b.one(equal)
        extra = {"num_outputs": count} if b.opset >= 18 else {}
        b.node("Split", [x], count, axis=axis, **extra)
        return
    if b.opset >= 18 and b.chance(0.3):
        count = b.number(1, min(5, extent))
        size = -(-extent // count)
        if size * (count - 1) >= extent:
            raise Rejected("an empty part")
        b.node("Split", [x], count, axis=axis, num_outputs=count)
        return
    cuts = sorted(int(c) for c in b.rng.integers(0, extent + 1, count - 1))
    sizes = [int(s) for s in np.diff([0, *cuts, extent])]
    if b.opset >= 13:
        b.node("Split", [x, ints(b, sizes)], count, axis=axis)
    else:
        b.node("Split", [x], count, axis=axis, split=sizes)


@operator(7)
def slices(b: Builder) -> None:
    x = b.pick(ANY, low=1)
    count = b.number(1, x.rank)
    axes = sorted(int(a) for a in b.rng.permutation(x.rank)[:count])
    starts, ends, steps = [], [], []
    for axis in axes:
        extent = x.shape[axis]
        start, end = b.number(-extent - 1, extent), b.number(-extent, extent + 2)
        step = b.one([1, 1, 1, 2, 3, -1, -2]) if b.opset >= 10 else 1
        if step < 0 and b.chance(0.5):
            start, end = -1, -(2**31)
        elif b.chance(0.3):
            end = 2**63 - 1 if step > 0 else -(2**63) + 1
        picked = range(extent)[slice(*_clamped(start, end, step, extent))]
        if not len(picked) and not b.chance(0.08):
            start, end, step = 0, extent, 1
        starts.append(start)
        ends.append(end)
        steps.append(step)
    if b.opset < 10:
        b.op("Slice", [x], axes=axes, starts=starts, ends=ends)
        return
    dtype = b.one(["int64", "int64", "int32"])
    if dtype == "int32":
        ends = [max(-(2**31), min(2**31 - 1, end)) for end in ends]
    axes = [a - x.rank if b.chance(0.3) else a for a in axes]
    inputs = [x, b.const(starts, dtype), b.const(ends, dtype)]
    if axes != list(range(x.rank)) or b.chance(0.7):
        inputs.append(b.const(axes, dtype))
        if any(step != 1 for step in steps) or b.chance(0.4):
            inputs.append(b.const(steps, dtype))
    elif any(step != 1 for step in steps):
        inputs += [None, b.const(steps, dtype)]
    b.op("Slice", inputs)


def _clamped(start, end, step, extent):
    if step < 0 and end < -extent:
        return start, None, step
    return start, end, step


@operator(5)
def pad(b: Builder) -> None:
    x = b.pick(FLOATS if b.opset < 11 else NUMBERS, low=1, high=4)
    modes = ["constant"] * 4 + ["reflect", "edge"] + (["wrap"] if b.opset >= 19 else [])
    mode = b.one(modes)
    most = 3 if mode != "reflect" else max(0, min(x.shape) - 1)
    if mode in ("wrap",):
        most = min(x.shape)
    low = -1 if mode == "constant" and b.chance(0.2) and min(x.shape) > 3 else 0
    if 0 in x.shape:
        raise Rejected("nothing to pad")
    axes = list(range(x.rank))
    if b.opset >= 18 and b.chance(0.4):
        axes = sorted(int(a) for a in b.rng.permutation(x.rank)[: b.number(1, x.rank)])
    pads = [b.number(low, min(3, most)) if b.chance(0.7) else 0 for _ in range(2 * len(axes))]
    if b.opset < 11:
        b.op(
            "Pad",
            [x],
            pads=pads,
            mode=mode if b.chance(0.7) or mode != "constant" else None,
            value=b.one([None, 0.5, -1.0]) if mode == "constant" else None,
        )
        return
    inputs = [x, ints(b, pads)]
    value = b.const(b.one([0, 1, 3]), x.dtype) if b.chance(0.5) else None
    if len(axes) < x.rank or (b.opset >= 18 and b.chance(0.2)):
        axes = [a - x.rank if b.chance(0.3) else a for a in axes]
        inputs += [value, ints(b, axes)]
    elif value:
        inputs.append(value)
    b.op("Pad", inputs, mode=mode if mode != "constant" or b.chance(0.5) else None)


@operator(3)
def expand(b: Builder) -> None:
    x = b.pick(ANY if b.opset >= 8 else FLOATS, high=4)
    target = [d if d != 1 or b.chance(0.3) else b.number(1, 4) for d in x.shape]
    if b.chance(0.4):
        target = [b.number(1, 3), *target]
    if b.chance(0.3):
        target = [1 if b.chance(0.4) else t for t in target]
    b.op("Expand", [x, ints(b, target)])


@operator(2)
def tile(b: Builder) -> None:
    x = b.pick(ANY)
    b.op("Tile", [x, ints(b, [b.number(1, 3) for _ in x.shape])])


@operator(2)
def blocks(b: Builder) -> None:
    block = b.number(1, 3)
    n, c, h, w = b.number(1, 2), b.number(1, 4), b.number(1, 4), b.number(1, 5)
    if b.chance(0.5):
        x = b.pick(
            FLOATS,
            4,
            4,
            where=lambda v: v.shape[1] % block**2 == 0 and 0 not in v.shape,
            shape=lambda: (n, c * block * block, h, w),
        )
        mode = {"mode": b.one(["DCR", "CRD"])} if b.opset >= 11 and b.chance(0.7) else {}
        b.op("DepthToSpace", [x], blocksize=block, **mode)
    else:
        x = b.pick(
            FLOATS,
            4,
            4,
            where=lambda v: not any(d % block for d in v.shape[2:]),
            shape=lambda: (n, c, h * block, w * block),
        )
        b.op("SpaceToDepth", [x], blocksize=block)


@operator(2)
def trilu(b: Builder) -> None:
    x = b.pick(ANY, low=2)
    k = [ints(b, b.number(-3, 3))] if b.chance(0.6) else []
    b.op("Trilu", [x, *k], upper=b.one([None, 0, 1]))


@operator(2)
def shape_arithmetic(b: Builder) -> None:
    """Shape, Gather, Concat, Reshape: what exporters write around a view."""
    x = b.pick(ANY, low=2, high=4)
    shape = b.op("Shape", [x]) if b.opset < 15 or b.chance(0.7) else b.op("Shape", [x], start=0, end=x.rank)
    first = b.op("Gather", [shape, ints(b, b.one([0, -x.rank]))], axis=0)
    first = with_axes(b, "Unsqueeze", first, [0], 13)
    rest = ints(b, [-1]) if 0 not in x.shape else ints(b, [1])
    if 0 in x.shape:
        raise Rejected("nothing there")
    if b.chance(0.4):
        last = b.op("Gather", [shape, ints(b, [x.rank - 1])], axis=0)
        target = b.op("Concat", [first, rest, last], axis=0)
    else:
        target = b.op("Concat", [first, rest], axis=0)
    b.op("Reshape", [x, target])


@operator(1.5)
def made_of_nothing(b: Builder) -> None:
    kind = b.one(["ConstantOfShape", "Range", "EyeLike", "OneHot", "Size", "Shape"])
    if kind == "ConstantOfShape":
        dtype = b.one([*NUMBERS[:3], "int64", "int32", "bool"])
        value = {}
        if b.chance(0.8):
            from onnx import numpy_helper

            value["value"] = numpy_helper.from_array(np.array([b.one([0, 1, 3])]).astype(dtype))
        b.op(kind, [ints(b, b.shape(0, 3))], **value)
    elif kind == "Range":
        dtype = b.one(["int64", "int32", "float32"])
        start, step = b.number(-5, 5), b.one([1, 2, -1, 3])
        count = b.number(1, 12)
        b.op(kind, [b.const(start, dtype), b.const(start + step * count, dtype), b.const(step, dtype)])
    elif kind == "EyeLike":
        x = b.pick((*FLOATS, "int64", "int32"), 2, 2)
        b.op(
            kind,
            [x],
            k=b.one([None, -1, 0, 1, 2]),
            dtype=b.one([None, onnx_type("float32"), onnx_type("int64")]),
        )
    elif kind == "OneHot":
        depth = b.number(1, 7)
        x = b.pick(("int64", "int32"), 0, 3, where=lambda v: np.abs(v.sample).max(initial=0) < 100)
        values = b.const([0, 1] if b.chance(0.6) else [-2, 3], b.one(["float32", "int64", "int32"]))
        axis = b.number(-x.rank - 1, x.rank)
        depth = b.const(depth if b.chance(0.5) else [depth], b.one(["int64", "int32", "float32"]))
        b.op(kind, [x, depth, values], axis=axis if b.chance(0.7) else None)
    else:
        b.op(kind, [b.pick(ANY)])


@operator(1.2)
def branch(b: Builder) -> None:
    """If, of which the condition is known at run time only, or constant."""
    from onnx import helper

    x = b.pick(FLOATS)
    name = b.name("branch")
    graphs = []
    for op in (b.one(["Relu", "Tanh", "Neg"]), b.one(["Sigmoid", "Abs", "Exp"])):
        result = f"{name}_{op}"
        node = helper.make_node(op, [x.name], [result])
        info = helper.make_tensor_value_info(result, onnx_type(x.dtype), x.shape)
        graphs.append(helper.make_graph([node], f"{name}_{op}_graph", [], [info]))
    condition = b.source("bool", ()) if b.chance(0.5) else b.const(b.chance(0.5), "bool")
    node = helper.make_node("If", [condition.name], [name], then_branch=graphs[0], else_branch=graphs[1])
    taken = graphs[0] if bool(condition.sample) else graphs[1]
    from tests.campaign.graphs.compute import compute

    (result,) = compute(taken.node[0], [x], b.opset)
    b._refuse(result)
    b.nodes.append(node)
    b.used.update((x.name, condition.name))
    b.values.append(Value(name, np.asarray(result)))


@operator(0.8)
def reverse_sequence(b: Builder) -> None:
    x = b.pick(FLOATS, low=2, high=4)
    time = b.number(0, 1)
    if 0 in x.shape[:2]:
        raise Rejected("nothing there")
    lengths = b.fresh("int64", (x.shape[1 - time],), 1, x.shape[time])
    b.op("ReverseSequence", [x, lengths], batch_axis=1 - time, time_axis=time)


@operator(0.8)
def center_crop_pad(b: Builder) -> None:
    x = b.pick((*FLOATS, *INTEGERS[:4]), low=1, high=4)
    axes = sorted(int(a) for a in b.rng.permutation(x.rank)[: b.number(1, x.rank)])
    target = [max(1, x.shape[a] + b.number(-3, 3)) for a in axes]
    b.op("CenterCropPad", [x, ints(b, target)], axes=axes)


@operator(0.8)
def sequence(b: Builder) -> None:
    """Tensors in a sequence, and out of it again."""
    from onnx import helper

    x = b.pick(FLOATS[:3], low=1, where=lambda v: 0 not in v.shape)
    if b.opset < 11:
        raise Rejected("no sequences")
    y = b.fresh(x.dtype, x.shape)
    name, result = b.name("sequence"), b.name("taken")
    b.nodes.append(helper.make_node("SequenceConstruct", [x.name, y.name], [name]))
    if b.chance(0.5):
        new, axis = b.number(0, 1), b.number(0, x.rank - 1)
        b.nodes.append(helper.make_node("ConcatFromSequence", [name], [result], axis=axis, new_axis=new))
        value = (np.stack if new else np.concatenate)([x.sample, y.sample], axis)
    else:
        place = b.number(0, 1)
        b.nodes.append(helper.make_node("SequenceAt", [name, ints(b, place).name], [result]))
        value = [x, y][place].sample
    b.used.update((x.name, y.name))
    b.values.append(Value(result, value))
