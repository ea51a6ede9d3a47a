"""Steps that add resizing, sampling, recurrent layers, transforms and losses."""

from __future__ import annotations

import numpy as np

from tests.campaign.graphs.builder import Builder
from tests.campaign.graphs.products import WIDE, image
from tests.campaign.graphs.registry import operator
from tests.campaign.graphs.shaping import ints
from tests.campaign.graphs.values import Rejected


@operator(3)
def resize(b: Builder) -> None:
    x = image(b, b.one([2, 2, 2, 1, 3]), ("float32",) if b.chance(0.9) else WIDE)
    rank = x.rank - 2
    factors = [b.one([1.0, 2.0, 0.5, 1.5, 3.0, 0.7]) for _ in range(rank)]
    mode = b.one(["nearest", "nearest", "linear", "linear", "cubic"])
    if b.special:  # the references read neighbours of no weight, or not, depending on their last digits
        mode = "nearest"
    scales = b.const([1.0, 1.0, *factors], "float32")
    if b.opset < 10:
        whole = [max(1.0, f) for f in factors]
        mode = "nearest" if mode == "cubic" else mode
        if b.opset < 9:
            b.op("Upsample", [x], mode=mode, scales=[1.0, 1.0, *whole])
        else:
            b.op("Upsample", [x, b.const([1.0, 1.0, *whole], "float32")], mode=mode)
        return
    if b.opset == 10:
        b.op("Resize", [x, scales], mode="nearest" if mode == "cubic" else mode)
        return
    attributes: dict = {"mode": mode} if mode != "nearest" or b.chance(0.5) else {}
    kinds = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel"]
    kinds += ["half_pixel_symmetric"] if b.opset >= 19 else []
    if b.chance(0.7):
        attributes["coordinate_transformation_mode"] = b.one(kinds)
    if mode == "nearest" and b.chance(0.5):
        attributes["nearest_mode"] = b.one(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    if mode == "cubic":
        attributes |= {"cubic_coeff_a": b.one([-0.75, -0.5]), "exclude_outside": b.number(0, 1)}
    if b.opset >= 18 and mode != "nearest" and b.chance(0.2):
        attributes["antialias"] = 1
    sizes = [max(1, int(d * f)) for d, f in zip(x.shape[2:], factors, strict=True)]
    axes = list(range(2, x.rank))
    if b.opset >= 18 and b.chance(0.3):
        attributes["axes"] = axes
        scales, target = b.const(factors, "float32"), ints(b, sizes)
        if b.chance(0.4):
            attributes["keep_aspect_ratio_policy"] = b.one(["stretch", "not_larger", "not_smaller"])
            if attributes["keep_aspect_ratio_policy"] != "stretch":
                b.op("Resize", [x, None, None, target], **attributes)
                return
    else:
        target = ints(b, [*x.shape[:2], *sizes])
    empty = None if b.opset >= 13 or b.chance(0.5) else b.const(np.zeros(0, np.float32))
    if b.opset < 13:
        empty = b.const(np.zeros(0, np.float32))
    if b.chance(0.6):
        b.op("Resize", [x, empty, scales], **attributes)
    else:
        b.op(
            "Resize",
            [x, empty, None if b.opset >= 13 else b.const(np.zeros(0, np.float32)), target],
            **attributes,
        )


@operator(1)
def grid(b: Builder) -> None:
    x = image(b, 2, ("float32",))
    h, w = b.number(1, 5), b.number(1, 5)
    if b.opset >= 20 and b.chance(0.3):
        theta = b.fresh("float32", (x.shape[0], 2, 3), -1, 1)
        place = b.op("AffineGrid", [theta, ints(b, [*x.shape[:2], h, w])], align_corners=b.one([None, 0, 1]))
    else:
        place = b.fresh("float32", (x.shape[0], h, w, 2), -1.3, 1.3)
    modes = ["linear", "nearest", "cubic"] if b.opset >= 20 else ["bilinear", "nearest", "bicubic"]
    b.op(
        "GridSample",
        [x, place],
        mode=b.one(modes),
        padding_mode=b.one([None, "zeros", "border", "reflection"]),
        align_corners=b.one([None, 0, 1]),
    )


@operator(0.8)
def roi_align(b: Builder) -> None:
    x = image(b, 2, ("float32",))
    count = b.number(1, 3)
    corner = b.rng.uniform(0, 3, (count, 2))
    boxes = np.concatenate([corner, corner + b.rng.uniform(1, 4, (count, 2))], 1)
    at = b.fresh("int64", (count,), 0, x.shape[0] - 1)
    modes = (
        {"coordinate_transformation_mode": b.one(["half_pixel", "output_half_pixel"])}
        if b.opset >= 16
        else {}
    )
    b.op(
        "RoiAlign",
        [x, b.const(boxes, "float32"), at],
        output_height=b.number(1, 3),
        output_width=b.number(1, 3),
        sampling_ratio=b.one([None, 0, 1, 2]),
        spatial_scale=b.one([None, 0.5, 1.0]),
        **modes,
    )


@operator(1.5)
def recurrent(b: Builder) -> None:
    op = b.one(["LSTM", "GRU", "RNN"])
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    x = b.pick(
        ("float32",),
        3,
        3,
        where=lambda v: 0 not in v.shape and v.shape[0] <= 8 and v.shape[2] <= 20,
        shape=lambda: (b.number(1, 5), b.number(1, 3), b.number(1, 6)),
    )
    length, batch, width = x.shape
    hidden, direction = b.number(1, 5), b.one(["forward", "reverse", "bidirectional", None])
    ways = 2 if direction == "bidirectional" else 1
    inputs: list = [
        x,
        b.weight("float32", (ways, gates * hidden, width), -0.5, 0.5),
        b.weight("float32", (ways, gates * hidden, hidden), -0.5, 0.5),
    ]
    inputs.append(b.weight("float32", (ways, 2 * gates * hidden), -0.5, 0.5) if b.chance(0.6) else None)
    inputs.append(b.fresh("int32", (batch,), 1, length) if b.chance(0.2) else None)
    inputs.append(b.fresh("float32", (ways, batch, hidden), -1, 1) if b.chance(0.4) else None)
    if op == "LSTM":
        inputs.append(b.fresh("float32", (ways, batch, hidden), -1, 1) if b.chance(0.4) else None)
        inputs.append(b.weight("float32", (ways, 3 * hidden), -0.5, 0.5) if b.chance(0.2) else None)
    while inputs[-1] is None:
        inputs.pop()
    extra = {"linear_before_reset": b.number(0, 1)} if op == "GRU" and b.chance(0.6) else {}
    results = b.one([[True, True], [True], [False, True]])
    b.node(op, inputs, results, hidden_size=hidden, direction=direction, **extra)


@operator(0.7)
def transforms(b: Builder) -> None:
    kind = b.one(["DFT", "Col2Im", "STFT"])
    if kind == "DFT":
        x = b.fresh("float32", (b.number(1, 2), b.number(2, 9), b.one([1, 2])), p_const=0.2)
        if b.opset >= 20:
            b.op(kind, [x, None, ints(b, 1)], inverse=1 if x.shape[-1] == 2 and b.chance(0.4) else None)
        else:
            b.op(kind, [x], axis=1, onesided=b.one([None, 1]) if x.shape[-1] == 1 else None)
    elif kind == "Col2Im":
        h, w, k = b.number(2, 5), b.number(2, 5), b.number(1, 2)
        x = b.fresh("float32", (1, 2 * k * k, (h - k + 1) * (w - k + 1)))
        b.op(kind, [x, ints(b, [h, w]), ints(b, [k, k])])
    else:
        x = b.fresh("float32", (1, 20, 1), p_const=0.2)
        b.op(kind, [x, ints(b, 4), b.weight("float32", (8,)), ints(b, 8)], onesided=b.one([None, 0, 1]))


@operator(0.7)
def losses(b: Builder) -> None:
    x = b.pick(("float32",), 2, 4, where=lambda v: 0 not in v.shape)
    classes = x.shape[1]
    target = b.fresh("int64", (x.shape[0], *x.shape[2:]), 0, classes - 1)
    weight = [b.fresh("float32", (classes,), 0.3, 2)] if b.chance(0.4) else []
    op = b.one(["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
    b.op(
        op,
        [x, target, *weight],
        reduction=b.one([None, "none", "mean", "sum"]),
        ignore_index=b.one([None, 0]),
    )


@operator(0.5)
def unpool(b: Builder) -> None:
    x = image(b, 2, ("float32",))
    if min(x.shape[2:]) < 2 or b.special:
        raise Rejected("too small")
    y, at = b.node("MaxPool", [x], 2, kernel_shape=[2, 2], strides=[2, 2])
    b.op("MaxUnpool", [y, at], kernel_shape=[2, 2], strides=[2, 2])
