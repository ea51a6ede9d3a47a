"""Steps that add blocks of convolutional nets, and near misses of them."""

from __future__ import annotations

import numpy as np

from tests.campaign.graphs.builder import Builder
from tests.campaign.graphs.patterns import linear, peek, reduced
from tests.campaign.graphs.products import image
from tests.campaign.graphs.registry import pattern
from tests.campaign.graphs.shaping import ints
from tests.campaign.graphs.values import Rejected


@pattern(6)
def conv_block(b: Builder) -> None:
    """Padding, convolution, batch norm, activation and addition, some left out."""
    x = image(b, b.one([2, 2, 2, 1]), ("float32",))
    rank, channels = x.rank - 2, x.shape[1]
    source = x
    if b.opset >= 11 and b.chance(0.35):
        pads = [0] * (2 * x.rank)
        for n in range(2 if b.chance(0.9) else 0, x.rank):
            pads[n], pads[n + x.rank] = b.number(0, 2), b.number(0, 2)
        inputs = [x, ints(b, pads)]
        if b.chance(0.6):
            inputs.append(b.const(b.one([0, 0, 0, 1]), "float32"))
        source = b.op("Pad", inputs, mode=b.one([None, None, "edge"]))
        peek(b, source)
        channels = source.shape[1]
    same = b.chance(0.5)
    filters = channels if same else b.one([4, 8, 3, 16])
    group = b.one([1, 1, channels]) if same else 1
    k = b.one([1, 3, 3])
    w = b.weight("float32", (filters, channels // group, *[k] * rank), -0.4, 0.4)
    bias = [b.weight("float32", (filters,))] if b.chance(0.5) else []
    pads = [k // 2 if b.chance(0.8) else 0] * (2 * rank)
    y = peek(b, b.op("Conv", [source, w, *bias], group=group, pads=pads, strides=[b.one([1, 1, 2])] * rank))
    if 0 in y.shape:
        raise Rejected("nothing left")
    for _ in range(b.number(1, 4)):
        kind = b.number(0, 5)
        if kind <= 1:
            parts = [b.weight("float32", (filters,), 0.3, 1.5) for _ in range(4)]
            y = b.op("BatchNormalization", [y, *parts], epsilon=b.one([None, 1e-3]))
        elif kind == 2:
            y = b.op(b.one(["Relu", "Sigmoid", "LeakyRelu", "Tanh"]), [y])
        elif kind == 3:
            y = (
                b.op("Clip", [y], min=0.0, max=6.0)
                if b.opset < 11
                else b.op("Clip", [y, b.const(0.0, "float32"), b.const(6.0, "float32")])
            )
        elif kind == 4:
            other = x if x.shape == y.shape else b.partner(y)
            y = b.op("Add", [y, other] if b.chance(0.6) else [other, y])
        else:
            part = b.weight(
                "float32",
                b.one([(filters, *[1] * rank), (1, filters, *[1] * rank), (), y.shape[-1:]]),
                0.3,
                2,
            )
            y = b.op(b.one(["Mul", "Add", "Sub", "Div"]), [y, part])
        peek(b, y)


@pattern(2)
def squeeze_and_excite(b: Builder) -> None:
    x = image(b, 2, ("float32",))
    c = x.shape[1]
    if b.chance(0.6):
        y = b.op("GlobalAveragePool", [x])
    else:
        y = reduced(b, "ReduceMean", x, [2, 3])
    y = b.op("Conv", [y, b.weight("float32", (4, c, 1, 1), -0.5, 0.5)])
    y = b.op("Conv", [b.op("Relu", [y]), b.weight("float32", (c, 4, 1, 1), -0.5, 0.5)])
    b.op("Mul", [x, b.op(b.one(["Sigmoid", "HardSigmoid"]), [y])])


@pattern(2)
def group_norm(b: Builder) -> None:
    """Groups by a reshape, an instance norm, and back."""
    x = image(b, 2, ("float32",))
    n, c, h, w = x.shape
    groups = b.one([g for g in (1, 2, 3, 4, c) if c % g == 0])
    y = b.op("Reshape", [x, ints(b, [n if b.chance(0.5) else 0, groups, -1])])
    ones = np.ones(groups) if b.chance(0.8) else b.rng.uniform(0.5, 2, groups)
    y = b.op(
        "InstanceNormalization",
        [y, b.const(ones, "float32"), b.const(np.zeros(groups), "float32")],
        epsilon=b.one([1e-5, 1e-2]),
    )
    y = b.op("Reshape", [peek(b, y), ints(b, [n, c, h, w])])
    y = b.op("Mul", [y, b.weight("float32", b.one([(c, 1, 1), (1, c, 1, 1), ()]))])
    b.op("Add", [y, b.weight("float32", (c, 1, 1))])


@pattern(2)
def image_rows(b: Builder) -> None:
    """Patches: a convolution, flattened and turned, then normalised."""
    x = image(b, 2, ("float32",))
    w = b.weight("float32", (b.one([4, 8, 6]), x.shape[1], 2, 2), -0.4, 0.4)
    y = b.op("Conv", [x, w, b.weight("float32", (w.shape[0],))], strides=[2, 2])
    if 0 in y.shape:
        raise Rejected("nothing left")
    n, c, h, v = y.shape
    y = b.op("Transpose", [b.op("Reshape", [y, ints(b, [n, c, h * v])])], perm=[0, 2, 1])
    if b.opset >= 17:
        y = b.op("LayerNormalization", [y, b.weight("float32", (c,)), b.weight("float32", (c,))], axis=-1)
    y = linear(b, y, c)
    if b.chance(0.5):
        b.op("Reshape", [b.op("Transpose", [y], perm=[0, 2, 1]), ints(b, [n, c, h, v])])


@pattern(1.5)
def channels_last_norm(b: Builder) -> None:
    """A norm over channels between two transposes (ConvNeXt)."""
    x = image(b, 2, ("float32",))
    if b.opset < 17:
        raise Rejected("no LayerNormalization")
    c = x.shape[1]
    y = b.op("Transpose", [x], perm=[0, 2, 3, 1])
    y = b.op(
        "LayerNormalization", [y, b.weight("float32", (c,)), b.weight("float32", (c,))], axis=-1, epsilon=1e-6
    )
    b.op("Transpose", [peek(b, y)], perm=[0, 3, 1, 2] if b.chance(0.85) else [0, 3, 2, 1])
