"""Drawn moves, selections, scans, elements, and rarer operators."""

from __future__ import annotations

from math import prod

import numpy as np

from benchmarks.drawn_operator_cases import (
    CHANNELS,
    ELEMENTS,
    PIXELS,
    ROWS,
    axis_of,
    bytes_of,
    fitting,
    kind,
    pick,
    shape_of,
)
from benchmarks.operator_cases import Net


# moves ---------------------------------------------------------------------------------------------
@kind
def _transpose(n: Net) -> None:
    shape = shape_of(n, rank := int(pick(n, 2, 3, 4, 4, 5, 6)))
    n.op("Transpose", n.x(*shape), perm=[int(axis) for axis in n.random.permutation(rank)])


@kind
def _concat(n: Net) -> None:
    shape = list(shape_of(n, rank := int(pick(n, 2, 3, 4)), ELEMENTS // 3))
    axis, parts = axis_of(n, rank), []
    for _ in range(int(pick(n, 2, 3, 4))):
        shape[axis] = max(1, int(shape[axis] * n.random.uniform(0.5, 1)))
        parts.append(n.x(*shape))
    n.op("Concat", *parts, axis=axis)


@kind
def _split(n: Net) -> None:
    shape = list(shape_of(n, rank := int(pick(n, 2, 3, 4)), ELEMENTS))
    axis = axis_of(n, rank)
    parts = min(int(pick(n, 2, 3, 4)), shape[axis])
    n.op("Split", n.x(*shape), outputs=parts, axis=axis, num_outputs=parts)


@kind
def _slice(n: Net) -> None:
    shape = shape_of(n, rank := int(pick(n, 2, 3, 4)))
    step = int(pick(n, 1, 1, 2, 3, -1))
    start, end = (1, 2**31) if step > 0 else (-1, -(2**31))
    n.op("Slice", n.x(*shape), *(n.c([value], "int64") for value in (start, end, axis_of(n, rank), step)))


@kind
def _pad(n: Net) -> None:
    shape = shape_of(n, int(pick(n, 2, 3, 4)))
    before, after = ([int(n.random.integers(0, min(5, e))) for e in shape] for _ in range(2))
    n.op(
        "Pad",
        n.x(*shape),
        n.c(before + after, "int64"),
        mode=pick(n, "constant", "reflect", "edge", "wrap"),
    )


@kind
def _repeat(n: Net) -> None:
    shape = shape_of(n, rank := int(pick(n, 2, 3)), ELEMENTS // 8)
    if n.random.random() < 0.5:
        n.op("Tile", n.x(*shape), n.c([int(pick(n, 1, 2)) for _ in range(rank)], "int64"))
    else:
        axis = axis_of(n, rank)
        column = [1 if at == axis else extent for at, extent in enumerate(shape)]
        n.op("Expand", n.x(*column), n.c(list(shape), "int64"))


@kind
def _gather(n: Net) -> None:
    shape = shape_of(n, rank := int(pick(n, 2, 3)))
    axis = axis_of(n, rank)
    rows = max(1, min(512, ELEMENTS * shape[axis] // prod(shape)))
    indices = n.random.integers(-shape[axis], shape[axis], rows)
    table = n.w(*shape) if axis == 0 else n.x(*shape)
    n.op("Gather", table, n.given(indices.astype(pick(n, "int32", "int64"))), axis=axis)


@kind
def _gather_elements(n: Net) -> None:
    shape = shape_of(n, rank := int(pick(n, 2, 3)))
    axis = axis_of(n, rank)
    n.op("GatherElements", n.x(*shape), n.given(n.random.integers(0, shape[axis], shape)), axis=axis)


@kind
def _gather_nd(n: Net) -> None:
    shape = shape_of(n, 3)
    indices = np.stack([n.random.integers(0, e, 2000) for e in shape[: int(pick(n, 2, 3))]], -1)
    n.op("GatherND", n.x(*shape), n.given(indices))


@kind
def _scatter(n: Net) -> None:
    rows, width, updates = (
        int(pick(n, 300, 1000, 4000)),
        int(pick(n, 1, 16, 64, 256)),
        int(pick(n, 100, 2000)),
    )
    more = {"reduction": reduction} if (reduction := pick(n, "none", "add", "max", "mul")) != "none" else {}
    if n.random.random() < 0.5:
        indices = n.random.permutation(rows)[: min(rows, updates)][:, None]
        n.op("ScatterND", n.x(rows, width), n.given(indices), n.x(len(indices), width), **more)
        return
    indices = np.stack([n.random.permutation(rows)[: min(rows, updates)] for _ in range(width)], 1)
    n.op("ScatterElements", n.x(rows, width), n.given(indices), n.x(*indices.shape), axis=0, **more)


@kind
def _resize(n: Net) -> None:
    def draw() -> tuple[int, int, list[int], float]:
        sides = [int(pick(n, *PIXELS)) for _ in range(2)]
        return (
            int(pick(n, 1, 1, 2)),
            int(pick(n, *CHANNELS)),
            sides,
            float(pick(n, 0.5, 0.8, 1.5, 2.0, 2.0, 3.0, 4.0)),
        )

    batch, c, sides, scale = fitting(n, draw, lambda b, c, s, f: b * c * prod(s) * max(f, 1) ** 2, ELEMENTS)
    mode = pick(n, "nearest", "linear", "linear", "cubic")
    how = pick(n, "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    more = {"nearest_mode": "floor"} if mode == "nearest" else {}
    scales = n.c([1.0, 1.0, scale, scale], "float32")
    n.op("Resize", n.x(batch, c, *sides), "", scales, mode=mode, coordinate_transformation_mode=how, **more)


@kind
def _grid_sample(n: Net) -> None:
    batch, c, side = int(pick(n, 1, 2)), int(pick(n, *CHANNELS)), int(pick(n, 20, 40, 64))
    grid = n.random.uniform(-1.1, 1.1, (batch, side, side, 2)).astype("float32")
    more = {
        "mode": pick(n, "linear", "nearest"),
        "padding_mode": pick(n, "zeros", "border", "reflection"),
    }
    n.op("GridSample", n.x(batch, c, side, side), n.given(grid), align_corners=int(pick(n, 0, 1)), **more)


@kind
def _roi_align(n: Net) -> None:
    c, rois = int(pick(n, 32, 64, 256)), int(pick(n, 10, 50, 100))
    corners = n.random.uniform(0, 30, (rois, 2))
    boxes = np.concatenate([corners, corners + n.random.uniform(1, 30, (rois, 2))], 1).astype("float32")
    size = {"output_height": int(pick(n, 7, 14)), "output_width": 7, "sampling_ratio": int(pick(n, 0, 2))}
    batch = n.given(np.zeros(rois, "int64"))
    n.op(
        "RoiAlign",
        n.x(1, c, 50, 60),
        n.given(boxes),
        batch,
        spatial_scale=float(pick(n, 1.0, 0.25)),
        **size,
    )


@kind
def _space_and_depth(n: Net) -> None:
    block, side, c = int(pick(n, 2, 3, 4)), int(pick(n, 16, 40, 64)), int(pick(n, 3, 8, 16, 64))
    if n.random.random() < 0.5:
        x = n.x(1, c * block**2, side, side)
        n.op("DepthToSpace", x, blocksize=block, mode=pick(n, "DCR", "CRD"))
    else:
        n.op("SpaceToDepth", n.x(1, c, side * block, side * block), blocksize=block)


# selection, scans, elements ------------------------------------------------------------------------
@kind
def _top_k(n: Net) -> None:
    shape = shape_of(n, rank := int(pick(n, 2, 3)), 500_000)
    axis = rank - 1 if n.random.random() < 0.7 else axis_of(n, rank)
    k = max(1, min(shape[axis], int(pick(n, 1, 5, 20, 100, 300))))
    n.op("TopK", n.x(*shape), n.c([k], "int64"), outputs=2, axis=axis, largest=int(pick(n, 0, 1)))


@kind
def _scan(n: Net) -> None:
    shape = shape_of(n, rank := int(pick(n, 2, 3)))
    more = {"exclusive": int(pick(n, 0, 1)), "reverse": int(pick(n, 0, 1))}
    n.op("CumSum", n.x(*shape), n.c(axis_of(n, rank), "int64"), **more)


@kind
def _boxes(n: Net) -> None:
    number, classes = int(pick(n, 100, 500, 1000)), int(pick(n, 1, 4, 20))
    corners = n.random.uniform(0, 500, (1, number, 2))
    boxes = np.concatenate([corners, corners + n.random.uniform(5, 60, (1, number, 2))], 2).astype("float32")
    scores = n.given(n.random.random((1, classes, number)).astype("float32"))
    limits = n.c([50], "int64"), n.c([0.5], "float32"), n.c([0.3], "float32")
    n.op("NonMaxSuppression", n.given(boxes), scores, *limits)


_UNARY = (
    "Abs", "Acos", "Asinh", "Atan", "Ceil", "Celu", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu",
    "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid",
    "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Tan", "Tanh", "ThresholdedRelu", "Shrink",
)  # fmt: skip


@kind
def _unary(n: Net) -> None:
    n.op(pick(n, *_UNARY), n.x(*shape_of(n, int(pick(n, 2, 3, 4)))))


@kind
def _binary(n: Net) -> None:
    shape = shape_of(n, int(pick(n, 2, 3, 4)))
    other = [1 if n.random.random() < 0.4 else extent for extent in shape]
    kind = pick(n, "Add", "Sub", "Mul", "Div", "Max", "Min", "Mod", "Less", "Equal", "PRelu")
    more = {"fmod": 1} if kind == "Mod" else {}
    n.op(kind, n.x(*shape), n.x(*other[int(pick(n, 0, 0, 1)) :]), **more)


@kind
def _where(n: Net) -> None:
    shape = shape_of(n, int(pick(n, 2, 3)))
    n.op("Where", n.given(n.random.random(shape) > 0.5), n.x(*shape), pick(n, n.c(-1e9), n.x(*shape)))


@kind
def _chain(n: Net) -> None:
    x = n.x(*(shape := shape_of(n, int(pick(n, 2, 3, 4)))))
    for _ in range(int(pick(n, 3, 5, 8))):
        if n.random.random() < 0.5:
            x = n.op(pick(n, "Sigmoid", "Tanh", "Relu", "Abs", "Neg", "Softplus"), x)
        else:
            x = n.op(pick(n, "Add", "Mul", "Sub"), x, pick(n, n.c(0.5), n.w(shape[-1]), n.x(*shape)))


@kind
def _cast(n: Net) -> None:
    shape = shape_of(n, int(pick(n, 2, 3)))
    to = int(pick(n, 2, 3, 6, 7, 9, 10, 11, 16))
    scaled = n.op("Mul", n.op("Abs", n.x(*shape)), n.c(20.0))
    n.op("Cast", n.op("Cast", scaled, to=to), to=1)


@kind
def _integers(n: Net) -> None:
    shape = shape_of(n, int(pick(n, 2, 3)))
    a, b = (n.given(n.random.integers(1, 99, shape).astype("int64")) for _ in range(2))
    n.op(pick(n, "Add", "Mul", "Sub", "Div", "Mod", "Max", "Less", "Equal"), a, b)


@kind
def _triangle(n: Net) -> None:
    n.op(
        "Trilu",
        n.x(*shape_of(n, int(pick(n, 2, 3, 4)))),
        n.c(int(pick(n, -3, 0, 2)), "int64"),
        upper=int(pick(n, 0, 1)),
    )


@kind
def _one_hot(n: Net) -> None:
    rows, depth = int(pick(n, 64, 512, 2048)), int(pick(n, 10, 100, 1000))
    n.op(
        "OneHot", n.given(n.random.integers(0, depth, rows)), n.c(depth, "int64"), n.c([0.0, 1.0], "float32")
    )


# rarer ones ----------------------------------------------------------------------------------------
@kind
def _deformed_conv(n: Net) -> None:
    c, f, side = int(pick(n, 16, 32, 64, 128)), int(pick(n, 16, 64, 100)), int(pick(n, 14, 28, 40))
    offsets = n.x(1, 2 * 9, side, side)
    mask = [n.x(1, 9, side, side)] if n.random.random() < 0.5 else []
    operands = [n.x(1, c, side, side), n.w(f, c, 3, 3), offsets, *(["", *mask] if mask else [])]
    n.op("DeformConv", *operands, kernel_shape=[3, 3], pads=[1] * 4)


@kind
def _unpooled(n: Net) -> None:
    c, side = int(pick(n, 16, 64, 128)), int(pick(n, 14, 28, 56))
    x = n.x(1, c, 2 * side, 2 * side)
    pooled = n.op("MaxPool", x, outputs=2, kernel_shape=[2, 2], strides=[2, 2])
    n.op("MaxUnpool", pooled, f"{pooled}_1", kernel_shape=[2, 2], strides=[2, 2])


@kind
def _columns_to_image(n: Net) -> None:
    c, side, k = int(pick(n, 8, 32, 64)), int(pick(n, 28, 56)), int(pick(n, 2, 3))
    pads = [(k - 1) // 2] * 4
    count = (side + 2 * pads[0] - k + 1) ** 2
    n.op("Col2Im", n.x(1, c * k * k, count), n.c([side, side], "int64"), n.c([k, k], "int64"), pads=pads)


@kind
def _resized_volume(n: Net) -> None:
    c, sides = int(pick(n, 4, 16, 32)), [int(pick(n, 8, 16, 24)) for _ in range(3)]
    scales = n.c([1.0, 1.0, 2.0, 2.0, 2.0], "float32")
    mode = pick(n, "nearest", "linear")
    more = {"nearest_mode": "floor"} if mode == "nearest" else {}
    how = {"coordinate_transformation_mode": "asymmetric"} if mode == "nearest" else {}
    n.op("Resize", n.x(1, c, *sides), "", scales, mode=mode, **more, **how)


@kind
def _sampled_volume(n: Net) -> None:
    c, side = int(pick(n, 1, 4, 16)), int(pick(n, 12, 24, 32))
    grid = n.random.uniform(-1.1, 1.1, (1, side, side, side, 3)).astype("float32")
    n.op("GridSample", n.x(1, c, side, side, side), n.given(grid), mode="linear")


@kind
def _sampled_by_cubes(n: Net) -> None:
    c, side = int(pick(n, 3, 16, 64)), int(pick(n, 24, 48))
    grid = n.random.uniform(-1.1, 1.1, (1, side, side, 2)).astype("float32")
    n.op(
        "GridSample",
        n.x(1, c, side, side),
        n.given(grid),
        mode="cubic",
        padding_mode=pick(n, "zeros", "border"),
    )


@kind
def _affine_grid(n: Net) -> None:
    side = int(pick(n, 32, 100, 224))
    n.op("AffineGrid", n.x(2, 2, 3), n.c([2, 3, side, side], "int64"), align_corners=int(pick(n, 0, 1)))


@kind
def _spectrum(n: Net) -> None:
    rows, length = int(pick(n, 1, 8, 64)), int(pick(n, 256, 400, 512, 1000))
    n.op("DFT", n.x(rows, length, 1), "", n.c(1, "int64"), onesided=int(pick(n, 0, 1)))


@kind
def _short_time_spectrum(n: Net) -> None:
    length, frame = int(pick(n, 8000, 16000)), int(pick(n, 256, 400, 512))
    window = n.c(np.hanning(frame).astype("float32"))
    n.op("STFT", n.x(1, length, 1), n.c(frame // 4, "int64"), window, n.c(frame, "int64"), onesided=1)


@kind
def _reversed_sequences(n: Net) -> None:
    steps, batch, width = int(pick(n, 50, 200)), int(pick(n, 4, 16)), int(pick(n, 64, 256))
    lengths = n.given(n.random.integers(1, steps + 1, batch))
    n.op("ReverseSequence", n.x(steps, batch, width), lengths, time_axis=0, batch_axis=1)


@kind
def _normalised(n: Net) -> None:
    shape = shape_of(n, rank := int(pick(n, 2, 3)))
    n.op("LpNormalization", n.x(*shape), axis=axis_of(n, rank), p=int(pick(n, 1, 2)))


@kind
def _loss(n: Net) -> None:
    rows, classes = int(pick(n, 64, 512, 2048)), int(pick(n, 10, 100, 1000))
    labels = n.given(n.random.integers(0, classes, rows))
    n.op("SoftmaxCrossEntropyLoss", n.x(rows, classes), labels, reduction=pick(n, "mean", "none"))


@kind
def _dynamic_quantizer(n: Net) -> None:
    n.op("DynamicQuantizeLinear", n.x(*shape_of(n, int(pick(n, 2, 3)))), outputs=3)


@kind
def _matmul_of_integers(n: Net) -> None:
    m, k, w = int(pick(n, *ROWS)), int(pick(n, 64, 256, 768)), int(pick(n, 64, 256, 768))
    weights = n.c(n.random.integers(-60, 60, (k, w)), "int8")
    n.op("MatMulInteger", bytes_of(n, m, k), weights, n.c(128, "uint8"), n.c(0, "int8"))
