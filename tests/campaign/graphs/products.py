"""Steps that add products, convolutions, pooling and norms."""

from __future__ import annotations

import numpy as np

from tests.campaign.graphs.builder import Builder
from tests.campaign.graphs.registry import operator
from tests.campaign.graphs.values import FLOATS, Rejected, Value

WIDE = ("float32", "float16", "float64")


@operator(7)
def matmul(b: Builder) -> None:
    x = b.pick(FLOATS if b.chance(0.93) else ("int32", "int64"), low=1, high=5)
    depth, n = x.shape[-1], b.extent()
    if depth > 64:
        raise Rejected("too deep")
    fits = [
        v
        for v in b.values
        if v.dtype == x.dtype
        and v.rank >= 2
        and v.shape[-2] == depth
        and _batches(v.shape[:-2], x.shape[:-2])
    ]
    if fits and b.chance(0.5):
        y = b.one(fits)
    else:
        lead = [] if b.chance(0.6) else [d if b.chance(0.6) else 1 for d in x.shape[:-2]]
        y = b.fresh(x.dtype, [*lead, depth, n] if b.chance(0.9) else [depth], -0.7, 0.7, 0.7)
    if x.rank > 1 and y.rank > 1 and b.chance(0.25) and x.shape[-2] == y.shape[-2] if y.rank > 1 else False:
        y, x = x, b.op("Transpose", [y], perm=[*range(y.rank - 2), y.rank - 1, y.rank - 2])
    b.op("MatMul", [x, y])


def _batches(a, c) -> bool:
    try:
        np.broadcast_shapes(a, c)
    except ValueError:
        return False
    return True


@operator(4)
def gemm(b: Builder) -> None:
    x = b.pick(WIDE if b.opset < 13 else FLOATS, 2, 2)
    turn_a, turn_b = b.number(0, 1), b.number(0, 1)
    m, k = x.shape[::-1] if turn_a else x.shape
    n = b.extent()
    y = b.fresh(x.dtype, (n, k) if turn_b else (k, n), -0.7, 0.7, 0.7)
    bias = [b.fresh(x.dtype, b.one([(), (n,), (1, n), (m, 1), (m, n), (1,)]), p_const=0.7)]
    if b.opset >= 11 and b.chance(0.3):
        bias = []
    scales = {name: b.one([0.5, 1.0, 2.0]) for name in ("alpha", "beta") if b.chance(0.4)}
    b.op("Gemm", [x, y, *bias], transA=turn_a or None, transB=turn_b or None, **scales)


@operator(2)
def einsum(b: Builder) -> None:
    case = b.one(
        [
            ("ij,jk->ik", 2),
            ("bij,bjk->bik", 3),
            ("bhid,bhjd->bhij", 4),
            ("ij->ji", 2),
            ("ij->i", 2),
            ("ii->i", 2),
            ("bij,jk", 3),
            ("i,j->ij", 1),
            ("...ij,...jk->...ik", 3),
            ("bld,hd->blh", 3),
            ("bhwc,hkc->bhwk", 4),
            ("ij,ij->", 2),
            ("abc->cab", 3),
            ("bthd,bshd->bhts", 4),
            ("ij,kj->ik", 2),
        ]
    )
    equation, rank = case
    x = b.pick(("float32", "float64"), rank, rank)
    left, _, _ = equation.partition("->")
    letters, *second = left.replace("...", "").split(",")
    if "..." in equation:
        letters = "z" + letters
    sizes = dict(zip(letters, x.shape, strict=True))
    if len(set(letters)) < len(letters) and x.shape[0] != x.shape[1]:
        raise Rejected("no square")
    inputs = [x]
    for other in second:
        shape = [sizes.setdefault(c, b.number(1, 5)) for c in other]
        inputs.append(b.fresh(x.dtype, shape, -0.7, 0.7))
    b.op("Einsum", inputs, equation=equation.replace(",", b.one([",", ", "])))


def image(b: Builder, rank: int, dtypes=WIDE) -> Value:
    """Something with batch, channels and so many axes of space."""
    most = {1: 20, 2: 12, 3: 6}[rank]
    return b.pick(
        dtypes,
        rank + 2,
        rank + 2,
        where=lambda v: 0 not in v.shape and v.shape[1] <= 40,
        shape=lambda: (
            b.number(1, 2),
            b.one([1, 2, 3, 4, 8, 16, 6]),
            *(b.number(3, most) for _ in range(rank)),
        ),
    )


def window(b: Builder, x: Value, kernel, pool: bool = False, ceil: bool = False) -> dict:
    """Attributes of a window that fits an image."""
    rank = len(kernel)
    attributes: dict = {}
    if b.chance(0.5):
        attributes["strides"] = [b.number(1, 3) for _ in kernel]
    if not pool and b.chance(0.3):
        attributes["dilations"] = [b.number(1, 2) for _ in kernel]
    kind = b.number(0, 4)
    if kind == 0:
        attributes["auto_pad"] = b.one(["SAME_UPPER", "SAME_LOWER", "VALID"])
        if "strides" in attributes:  # windows with gaps between: the references do not agree, or refuse them
            strides = [min(s, k) for s, k in zip(attributes["strides"], kernel, strict=True)]
            attributes["strides"] = strides
    elif kind <= 2:
        attributes["pads"] = [b.number(0, k - 1 if pool else k) for k in (*kernel, *kernel)]
        if kind == 1:
            attributes["pads"] = [p for p in attributes["pads"][:rank]] * 2
    return attributes


@operator(8)
def conv(b: Builder) -> None:
    rank = b.one([2, 2, 2, 1, 3])
    x = image(b, rank)
    channels = x.shape[1]
    group = b.one([1, 1, 1, channels, *[g for g in (2, 4) if channels % g == 0]])
    filters = group * b.number(1, 4)
    kernel = [b.one([1, 3, 2, 5, 3]) for _ in range(rank)] if b.chance(0.8) else [1] * rank
    w = b.fresh(x.dtype, (filters, channels // group, *kernel), -0.5, 0.5, 0.85)
    bias = [b.fresh(x.dtype, (filters,), p_const=0.85)] if b.chance(0.6) else []
    y = b.op(
        "Conv",
        [x, w, *bias],
        group=group if group > 1 or b.chance(0.2) else None,
        kernel_shape=kernel if b.chance(0.6) else None,
        **window(b, x, kernel),
    )
    if 0 in y.shape:
        raise Rejected("nothing left")


@operator(2)
def conv_transpose(b: Builder) -> None:
    rank = b.one([2, 2, 1, 3])
    x = image(b, rank)
    channels = x.shape[1]
    group = b.one([1, 1, *[g for g in (2,) if channels % g == 0]])
    kernel = [b.number(1, 4) for _ in range(rank)]
    w = b.fresh(x.dtype, (channels, b.number(1, 4), *kernel), -0.5, 0.5, 0.85)
    attributes: dict = {}
    strides = [b.number(1, 3) for _ in kernel]
    if b.chance(0.6):
        attributes["strides"] = strides
        if b.chance(0.4):
            attributes["output_padding"] = [b.number(0, s - 1) for s in strides]
    if b.chance(0.4):
        attributes["pads"] = [b.number(0, k - 1) for k in (*kernel, *kernel)]
    elif b.chance(0.2):
        attributes["auto_pad"] = b.one(["SAME_UPPER", "SAME_LOWER", "VALID"])
    if b.chance(0.2):
        attributes["dilations"] = [b.number(1, 2) for _ in kernel]
    if "auto_pad" not in attributes and "pads" not in attributes and b.chance(0.3):
        reach = [s * (d - 1) + k for s, d, k in zip(strides, x.shape[2:], kernel, strict=True)]
        attributes = {"strides": strides, "output_shape": [r - b.number(0, 1) for r in reach]}
    bias = [b.fresh(x.dtype, (w.shape[1] * group,))] if b.chance(0.5) else []
    y = b.op(
        "ConvTranspose", [x, w, *bias], group=group if group > 1 else None, kernel_shape=kernel, **attributes
    )
    if 0 in y.shape:
        raise Rejected("nothing left")


@operator(5)
def pool(b: Builder) -> None:
    rank = b.one([2, 2, 1, 3])
    op = b.one(["MaxPool", "AveragePool", "MaxPool", "AveragePool", "LpPool"])
    dtypes = WIDE if op != "MaxPool" or b.opset < 12 or b.chance(0.85) else ("int8", "uint8")
    if b.special and op == "MaxPool":
        raise Rejected("the references drop NaN of a window or keep it, depending on where it stands")
    if b.special:  # the evaluator leaves NaN out of a mean, and ONNX Runtime takes float32 alone
        dtypes = ("float32",)
    x = image(b, rank, dtypes)
    kernel = [b.number(1, min(4, d)) for d in x.shape[2:]]
    attributes = window(b, x, kernel, pool=True)
    if (op == "MaxPool" and b.opset >= 10 or b.opset >= 19) and b.chance(0.2):
        attributes["dilations"] = [b.number(1, 2) for _ in kernel]
    if (op != "LpPool" and b.opset >= 10 or b.opset >= 18) and "auto_pad" not in attributes and b.chance(0.3):
        if op == "MaxPool" or x.dtype == "float32":  # the evaluator's means are wrong there, if it is alone
            attributes["ceil_mode"] = 1
    if op == "AveragePool" and b.chance(0.4):
        attributes["count_include_pad"] = b.number(0, 1)
    if op == "LpPool" and b.chance(0.5):
        attributes["p"] = b.number(1, 3)
    results: list[bool] = [True]
    if op == "MaxPool" and b.chance(0.1):
        results = [True, True]
    for y in b.node(op, [x], results, kernel_shape=kernel, **attributes):
        if 0 in y.shape:
            raise Rejected("nothing left")


@operator(2)
def global_pool(b: Builder) -> None:
    op = b.one(["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
    if b.special and op == "GlobalMaxPool":
        raise Rejected("as MaxPool")
    p = {"p": b.number(1, 3)} if op == "GlobalLpPool" and b.chance(0.5) else {}
    b.op(op, [image(b, b.one([2, 2, 1, 3]))], **p)


@operator(5)
def norm_of_channels(b: Builder) -> None:
    op = b.one(
        [
            "BatchNormalization",
            "BatchNormalization",
            "InstanceNormalization",
            "GroupNormalization",
            "LRN",
            "MeanVarianceNormalization",
            "LpNormalization",
        ]
    )
    x = image(b, b.one([2, 2, 1, 3]), ("float32",) if b.chance(0.9) else WIDE)
    channels = x.shape[1]
    epsilon = {"epsilon": b.one([1e-5, 1e-3, 0.1])} if b.chance(0.5) else {}
    if op == "LRN":
        b.op(
            op,
            [x],
            size=b.one([1, 3, 5, 2]),
            alpha=b.one([None, 0.1]),
            beta=b.one([None, 0.5]),
            bias=b.one([None, 2.0]),
        )
    elif op == "MeanVarianceNormalization":
        b.op(op, [x], axes=b.one([None, [0, 2], [1, 2]]))
    elif op == "LpNormalization":
        b.op(op, [x], axis=b.axis(x), p=b.one([None, 1, 2]))
    elif op == "GroupNormalization":
        groups = b.one([g for g in (1, 2, 3, 4, channels) if channels % g == 0])
        size = channels if b.opset >= 21 else groups
        parts = [b.fresh(x.dtype, (size,), p_const=0.8) for _ in range(2)]
        b.op(op, [x, *parts], num_groups=groups, **epsilon)
    else:
        scale, bias = (b.fresh(x.dtype, (channels,), p_const=0.85) for _ in range(2))
        if op == "InstanceNormalization":
            b.op(op, [x, scale, bias], **epsilon)
            return
        mean = b.fresh(x.dtype, (channels,), p_const=0.85)
        variance = b.fresh(x.dtype, (channels,), 0.3, 2, p_const=0.85)
        b.op(op, [x, scale, bias, mean, variance], **epsilon, momentum=b.one([None, 0.8]))


@operator(4)
def norm_of_rows(b: Builder) -> None:
    op = b.one(["LayerNormalization", "LayerNormalization", "RMSNormalization"])
    x = b.pick(FLOATS, low=1)
    axis = -1 if b.chance(0.6) else b.axis(x)
    shape = x.shape[axis % x.rank :]
    if 0 in shape:
        raise Rejected("nothing there")
    parts = [b.fresh(x.dtype, shape, p_const=0.8)]
    results = [True]
    if op == "LayerNormalization" and b.chance(0.7):
        parts.append(b.fresh(x.dtype, shape, p_const=0.8))
    if op == "LayerNormalization" and b.chance(0.15):
        results = b.one([[True, True], [True, False, True], [True, True, True]])
    b.node(
        op,
        [x, *parts],
        results,
        axis=axis if b.chance(0.8) or axis != -1 else None,
        epsilon=b.one([None, 1e-6, 1e-2]),
    )


@operator(5)
def softmax(b: Builder) -> None:
    x = b.pick(FLOATS, low=1)
    axis = b.axis(x, negative=b.opset >= 11)
    op = b.one(["Softmax", "Softmax", "Softmax", "LogSoftmax", "Hardmax"])
    if op == "Hardmax":
        from tests.campaign.graphs.indexing import _distinct_values

        _distinct_values(b, x, axis)
    b.op(op, [x], axis=axis if b.chance(0.8) else None)
