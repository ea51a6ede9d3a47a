"""Operators of every kind with extents and attributes that are drawn: what nobody picked for being fast.

A case is named after its kind and a number, which say all of it: the same name is the same case everywhere.
Extents are those of real models, and odd ones among them; a case moves at most about 16 MB and multiplies at
most about two thousand million times, so that a call takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from benchmarks.operator_cases import Net

_CHANNELS = (3, 16, 20, 24, 32, 40, 48, 64, 72, 80, 96, 100, 112, 128, 160, 192, 240, 256, 320, 384, 512, 768)
_PIXELS = (
    7,
    8,
    10,
    13,
    14,
    16,
    19,
    20,
    24,
    26,
    28,
    32,
    33,
    38,
    40,
    48,
    52,
    56,
    64,
    65,
    75,
    80,
    96,
    104,
    112,
    128,
)
_ROWS = (
    1,
    2,
    3,
    4,
    7,
    8,
    13,
    16,
    32,
    49,
    50,
    64,
    77,
    100,
    128,
    196,
    197,
    256,
    300,
    384,
    512,
    577,
    1000,
    1024,
)
_WIDTHS = (
    10,
    32,
    48,
    64,
    80,
    96,
    100,
    128,
    192,
    256,
    300,
    384,
    512,
    640,
    768,
    1000,
    1024,
    1280,
    1536,
    2048,
    3072,
)
_ELEMENTS = 3_000_000
_PRODUCTS = 1_000_000_000

Kind = Callable[[Net], Any]
KINDS: dict[str, Kind] = {}


def _kind(make: Kind) -> Kind:
    KINDS[make.__name__.strip("_").replace("_", " ")] = make
    return make


def drawn_cases(first: int, last: int) -> dict[str, Kind]:
    """Cases ``first`` to ``last`` of every kind."""
    numbers = range(first, last + 1)
    return {f"{kind} #{number}": make for number in numbers for kind, make in KINDS.items()}


def _any(n: Net, *choices: Any) -> Any:
    return choices[n.random.integers(len(choices))]


def _fitting(n: Net, draw: Callable[[], tuple[Any, ...]], cost: Callable[..., float], most: float) -> tuple:
    """What ``draw`` gives the first time that it does not cost more than ``most``, nor next to nothing."""
    while True:
        drawn = draw()
        if most / 100 <= cost(*drawn) <= most:
            return drawn


def _shape(n: Net, rank: int, most: int = _ELEMENTS) -> tuple[int, ...]:
    """A tensor's shape: the last extents are larger than those of the first ones."""

    def draw() -> tuple[tuple[int, ...]]:
        first = [_any(n, 1, 2, 3, 4, 6, 8, 12, 16) for _ in range(rank - 2)]
        last = [int(_any(n, *_ROWS, *_WIDTHS)) for _ in range(min(rank, 2))]
        return ((*first, *last),)

    return _fitting(n, draw, lambda shape: prod(shape), most)[0]


def _axis(n: Net, rank: int) -> int:
    return int(n.random.integers(rank))


# contractions --------------------------------------------------------------------------------------
def _image(n: Net, rank: int, grouped: bool = False, transposed: bool = False) -> None:
    """A convolution, plain, of groups, or transposed, of ``rank`` spatial axes."""

    def draw() -> tuple[Any, ...]:
        kernel = [int(_any(n, 1, 2, 3, 3, 3, 4, 5, 7)) for _ in range(rank)]
        if n.random.random() < 0.6:
            kernel = [kernel[0]] * rank
        sides = [int(_any(n, *_PIXELS)) * (1 if rank == 2 else 20 if rank == 1 else 1) for _ in range(rank)]
        if rank == 3:
            sides[0] = int(_any(n, 4, 8, 16))
        c, f = int(_any(n, *_CHANNELS)), int(_any(n, *_CHANNELS))
        group = 1
        if grouped:
            group = c if n.random.random() < 0.5 else int(_any(n, 2, 4, 8))
            f = c * (2 if n.random.random() < 0.2 else 1)
            c, f = c // group * group or group, f // group * group or group
        return int(_any(n, 1, 1, 1, 2, 4)), c, f, group, kernel, sides

    def cost(batch: int, c: int, f: int, group: int, kernel: list[int], sides: list[int]) -> float:
        if batch * max(c, f) * prod(sides) > _ELEMENTS:
            return 1e30
        return batch * prod(sides) * c * f // group * prod(kernel) * (50 if group == c else 1)

    batch, c, f, group, kernel, sides = _fitting(n, draw, cost, _PRODUCTS)
    strides = [int(_any(n, 1, 1, 2))] * rank
    dilations = [1 if transposed or strides[0] > 1 else int(_any(n, 1, 1, 1, 2))] * rank
    pads = [d * (k - 1) // 2 for k, d in zip(kernel, dilations, strict=True)] * 2
    if transposed:
        strides, kernel, pads = [2] * rank, [max(k, 2) for k in kernel], [0] * (2 * rank)
    weights = n.w(c, f // group, *kernel) if transposed else n.w(f, c // group, *kernel)
    operands = [n.x(batch, c, *sides), weights, *([n.w(f)] if n.random.random() < 0.7 else [])]
    more = {"strides": strides, "pads": pads, "group": group, "kernel_shape": kernel}
    if not transposed:
        more["dilations"] = dilations
    n.op("ConvTranspose" if transposed else "Conv", *operands, **more)


@_kind
def _conv1d(n: Net) -> None:
    _image(n, 1)


@_kind
def _conv2d(n: Net) -> None:
    _image(n, 2)


@_kind
def _conv2d_too(n: Net) -> None:
    _image(n, 2)


@_kind
def _conv3d(n: Net) -> None:
    _image(n, 3)


@_kind
def _conv1d_grouped(n: Net) -> None:
    _image(n, 1, grouped=True)


@_kind
def _conv2d_grouped(n: Net) -> None:
    _image(n, 2, grouped=True)


@_kind
def _conv_transpose(n: Net) -> None:
    _image(n, int(_any(n, 1, 2, 2, 3)), transposed=True)


@_kind
def _matmul(n: Net) -> None:
    def draw() -> tuple[int, int, int]:
        return tuple(int(_any(n, *sizes)) for sizes in (_ROWS, _WIDTHS, _WIDTHS))

    m, k, w = _fitting(n, draw, lambda *e: prod(e), _PRODUCTS)
    n.op("MatMul", n.x(m, k), n.w(k, w))


@_kind
def _gemm(n: Net) -> None:
    m, k, w = (int(_any(n, *sizes)) for sizes in (_ROWS, _WIDTHS, _WIDTHS))
    turn_a, turn_b = int(_any(n, 0, 1)), int(_any(n, 0, 1))
    a, b = ((k, m) if turn_a else (m, k)), ((w, k) if turn_b else (k, w))
    n.op("Gemm", n.x(*a), (n.w if n.random.random() < 0.5 else n.x)(*b), n.w(w), transA=turn_a, transB=turn_b)


@_kind
def _batch_matmul(n: Net) -> None:
    def draw() -> tuple[int, ...]:
        return int(_any(n, 2, 3, 4, 8, 12, 16, 32)), *(int(_any(n, *_ROWS)) for _ in range(3))

    b, m, k, w = _fitting(n, draw, lambda *e: prod(e), _PRODUCTS)
    right = n.x(b, w, k) if n.random.random() < 0.5 else n.x(b, k, w)
    if n.values[right].shape != (b, k, w):
        right = n.op("Transpose", right, perm=[0, 2, 1])
    n.op("MatMul", n.x(b, m, k), right)


@_kind
def _einsum(n: Net) -> None:
    equation = _any(
        n, "bij,bjk->bik", "bhqd,bkhd->bhqk", "bhqk,bkhd->bqhd", "ij,kj->ik", "bcn,bcm->bnm", "bld,hdk->bhlk",
        "nchw,ck->nkhw", "bi,bj->bij", "abc,cd->abd", "ijk,ilk->ijl", "bhc,bhd->bcd", "ij,ij->i",
        "bnd,bnd->bn", "bxyd,xkd->bxyk", "bqhd,bkhd->bhqk", "ijkl,jm->imkl", "nij,nkj->nik", "ab,bc,cd->ad",
    )  # fmt: skip
    letters = sorted(set(equation) - set(",->"))

    def draw() -> tuple[dict[str, int]]:
        return (
            {letter: int(_any(n, 4, 7, 12, 16, 24, 33, 49, 64, 77, 100, 128, 256)) for letter in letters},
        )

    def cost(sizes: dict[str, int]) -> float:
        tensors = (prod(sizes[letter] for letter in part) for part in equation.replace("->", ",").split(","))
        return max(prod(sizes.values()), _PRODUCTS // _ELEMENTS * max(tensors))

    (sizes,) = _fitting(n, draw, cost, _PRODUCTS)
    operands = [n.x(*(sizes[letter] for letter in part)) for part in equation.split("->")[0].split(",")]
    n.op("Einsum", *operands, equation=equation)


@_kind
def _recurrent(n: Net) -> None:
    kind, gates = _any(n, ("LSTM", 4), ("GRU", 3), ("RNN", 1))
    steps, batch, width = (
        int(_any(n, 10, 30, 64, 100)),
        int(_any(n, 1, 2, 8, 16)),
        int(_any(n, 32, 64, 100, 128, 256)),
    )
    hidden, ways = int(_any(n, 32, 64, 100, 128, 256)), int(_any(n, 1, 2))
    weights = [
        n.w(ways, gates * hidden, width),
        n.w(ways, gates * hidden, hidden),
        n.w(ways, 2 * gates * hidden),
    ]
    direction = "bidirectional" if ways == 2 else _any(n, "forward", "reverse")
    n.op(kind, n.x(steps, batch, width), *weights, outputs=2, hidden_size=hidden, direction=direction)


# windows, reductions, norms --------------------------------------------------------------------------
@_kind
def _pool(n: Net) -> None:
    rank = int(_any(n, 1, 2, 2, 2, 3))

    def draw() -> tuple[int, int, list[int]]:
        sides = [int(_any(n, *_PIXELS)) for _ in range(rank)]
        return int(_any(n, 1, 1, 2, 4)), int(_any(n, *_CHANNELS)), sides

    batch, c, sides = _fitting(n, draw, lambda b, c, s: b * c * prod(s), _ELEMENTS)
    kernel = [int(_any(n, 2, 2, 3, 3, 5)) for _ in range(rank)]
    more: dict[str, Any] = {"strides": [int(_any(n, 1, 2, 2, 3))] * rank, "ceil_mode": int(_any(n, 0, 0, 1))}
    kind = _any(n, "MaxPool", "AveragePool", "LpPool")
    if n.random.random() < 0.5:
        more["pads"] = [(k - 1) // 2 for k in kernel] * 2
    if kind == "AveragePool":
        more["count_include_pad"] = int(_any(n, 0, 1))
    n.op(kind, n.x(batch, c, *sides), kernel_shape=kernel, **more)


@_kind
def _reduction(n: Net) -> None:
    rank = int(_any(n, 2, 3, 4, 5))
    axes = sorted({_axis(n, rank) for _ in range(int(_any(n, 1, 1, 2, 3)))})
    kinds = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp", "LogSum")
    x = n.x(*_shape(n, rank))
    if (kind := _any(n, *kinds)) == "LogSum":
        x = n.op("Abs", x)
    n.op(f"Reduce{kind}", x, n.c(axes, "int64"), keepdims=int(_any(n, 0, 1)))


@_kind
def _arg_reduction(n: Net) -> None:
    shape = _shape(n, rank := int(_any(n, 2, 3, 4)))
    n.op(_any(n, "ArgMax", "ArgMin"), n.x(*shape), axis=_axis(n, rank), keepdims=int(_any(n, 0, 1)))


@_kind
def _softmax(n: Net) -> None:
    shape = _shape(n, rank := int(_any(n, 2, 3, 4)))
    n.op(_any(n, "Softmax", "Softmax", "LogSoftmax", "Hardmax"), n.x(*shape), axis=_axis(n, rank))


@_kind
def _layer_norm(n: Net) -> None:
    shape = _shape(n, int(_any(n, 2, 3, 4)))
    axis = len(shape) - int(_any(n, 1, 1, 2))
    operands = [n.x(*shape), n.w(*shape[axis:]), *([n.w(*shape[axis:])] if n.random.random() < 0.7 else [])]
    n.op("LayerNormalization", *operands, axis=axis)


@_kind
def _image_norm(n: Net) -> None:
    def draw() -> tuple[int, int, list[int]]:
        sides = [int(_any(n, *_PIXELS))] * int(_any(n, 1, 2, 2, 3))
        return int(_any(n, 1, 2, 4, 8)), int(_any(n, *_CHANNELS)) // 4 * 4 or 4, sides

    batch, c, sides = _fitting(n, draw, lambda b, c, s: b * c * prod(s), _ELEMENTS)
    x, scale, shift = n.x(batch, c, *sides), n.w(c), n.w(c)
    kind = _any(n, "instance", "batch", "group", "lrn", "rows")
    if kind == "instance":
        n.op("InstanceNormalization", x, scale, shift)
    elif kind == "batch":
        n.op("BatchNormalization", x, scale, shift, n.w(c), n.c(np.ones(c, "float32")))
    elif kind == "group":
        grouped = n.op("Reshape", x, n.c([batch, 4, -1], "int64"))
        ones, zeros = n.c(np.ones(4, "float32")), n.c(np.zeros(4, "float32"))
        normed = n.op("InstanceNormalization", grouped, ones, zeros)
        back = n.op("Reshape", normed, n.c([batch, c, *sides], "int64"))
        n.op("Mul", back, n.w(c, *[1] * len(sides)))
    elif kind == "lrn" and len(sides) == 2:
        n.op("LRN", x, size=5)
    else:
        mean = n.op("ReduceMean", n.op("Mul", x, x), n.c([1], "int64"))
        n.op("Div", x, n.op("Sqrt", n.op("Add", mean, n.c(1e-6))))


# moves -----------------------------------------------------------------------------------------------
@_kind
def _transpose(n: Net) -> None:
    shape = _shape(n, rank := int(_any(n, 2, 3, 4, 4, 5, 6)))
    n.op("Transpose", n.x(*shape), perm=[int(axis) for axis in n.random.permutation(rank)])


@_kind
def _concat(n: Net) -> None:
    shape = list(_shape(n, rank := int(_any(n, 2, 3, 4)), _ELEMENTS // 3))
    axis, parts = _axis(n, rank), []
    for _ in range(int(_any(n, 2, 3, 4))):
        shape[axis] = max(1, int(shape[axis] * n.random.uniform(0.5, 1)))
        parts.append(n.x(*shape))
    n.op("Concat", *parts, axis=axis)


@_kind
def _split(n: Net) -> None:
    shape = list(_shape(n, rank := int(_any(n, 2, 3, 4)), _ELEMENTS))
    axis = _axis(n, rank)
    parts = min(int(_any(n, 2, 3, 4)), shape[axis])
    n.op("Split", n.x(*shape), outputs=parts, axis=axis, num_outputs=parts)


@_kind
def _slice(n: Net) -> None:
    shape = _shape(n, rank := int(_any(n, 2, 3, 4)))
    step = int(_any(n, 1, 1, 2, 3, -1))
    start, end = (1, 2**31) if step > 0 else (-1, -(2**31))
    n.op("Slice", n.x(*shape), *(n.c([value], "int64") for value in (start, end, _axis(n, rank), step)))


@_kind
def _pad(n: Net) -> None:
    shape = _shape(n, int(_any(n, 2, 3, 4)))
    before, after = ([int(n.random.integers(0, min(5, e))) for e in shape] for _ in range(2))
    n.op(
        "Pad", n.x(*shape), n.c(before + after, "int64"), mode=_any(n, "constant", "reflect", "edge", "wrap")
    )


@_kind
def _repeat(n: Net) -> None:
    shape = _shape(n, rank := int(_any(n, 2, 3)), _ELEMENTS // 8)
    if n.random.random() < 0.5:
        n.op("Tile", n.x(*shape), n.c([int(_any(n, 1, 2)) for _ in range(rank)], "int64"))
    else:
        axis = _axis(n, rank)
        column = [1 if at == axis else extent for at, extent in enumerate(shape)]
        n.op("Expand", n.x(*column), n.c(list(shape), "int64"))


@_kind
def _gather(n: Net) -> None:
    shape = _shape(n, rank := int(_any(n, 2, 3)))
    axis = _axis(n, rank)
    rows = max(1, min(512, _ELEMENTS * shape[axis] // prod(shape)))
    indices = n.random.integers(-shape[axis], shape[axis], rows)
    table = n.w(*shape) if axis == 0 else n.x(*shape)
    n.op("Gather", table, n.given(indices.astype(_any(n, "int32", "int64"))), axis=axis)


@_kind
def _gather_elements(n: Net) -> None:
    shape = _shape(n, rank := int(_any(n, 2, 3)))
    axis = _axis(n, rank)
    n.op("GatherElements", n.x(*shape), n.given(n.random.integers(0, shape[axis], shape)), axis=axis)


@_kind
def _gather_nd(n: Net) -> None:
    shape = _shape(n, 3)
    indices = np.stack([n.random.integers(0, e, 2000) for e in shape[: int(_any(n, 2, 3))]], -1)
    n.op("GatherND", n.x(*shape), n.given(indices))


@_kind
def _scatter(n: Net) -> None:
    rows, width, updates = (
        int(_any(n, 300, 1000, 4000)),
        int(_any(n, 1, 16, 64, 256)),
        int(_any(n, 100, 2000)),
    )
    more = {"reduction": reduction} if (reduction := _any(n, "none", "add", "max", "mul")) != "none" else {}
    if n.random.random() < 0.5:
        indices = n.random.permutation(rows)[: min(rows, updates)][:, None]
        n.op("ScatterND", n.x(rows, width), n.given(indices), n.x(len(indices), width), **more)
        return
    indices = np.stack([n.random.permutation(rows)[: min(rows, updates)] for _ in range(width)], 1)
    n.op("ScatterElements", n.x(rows, width), n.given(indices), n.x(*indices.shape), axis=0, **more)


@_kind
def _resize(n: Net) -> None:
    def draw() -> tuple[int, int, list[int], float]:
        sides = [int(_any(n, *_PIXELS)) for _ in range(2)]
        return (
            int(_any(n, 1, 1, 2)),
            int(_any(n, *_CHANNELS)),
            sides,
            float(_any(n, 0.5, 0.8, 1.5, 2.0, 2.0, 3.0, 4.0)),
        )

    batch, c, sides, scale = _fitting(n, draw, lambda b, c, s, f: b * c * prod(s) * max(f, 1) ** 2, _ELEMENTS)
    mode = _any(n, "nearest", "linear", "linear", "cubic")
    how = _any(n, "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    more = {"nearest_mode": "floor"} if mode == "nearest" else {}
    scales = n.c([1.0, 1.0, scale, scale], "float32")
    n.op("Resize", n.x(batch, c, *sides), "", scales, mode=mode, coordinate_transformation_mode=how, **more)


@_kind
def _grid_sample(n: Net) -> None:
    batch, c, side = int(_any(n, 1, 2)), int(_any(n, *_CHANNELS)), int(_any(n, 20, 40, 64))
    grid = n.random.uniform(-1.1, 1.1, (batch, side, side, 2)).astype("float32")
    more = {"mode": _any(n, "linear", "nearest"), "padding_mode": _any(n, "zeros", "border", "reflection")}
    n.op("GridSample", n.x(batch, c, side, side), n.given(grid), align_corners=int(_any(n, 0, 1)), **more)


@_kind
def _roi_align(n: Net) -> None:
    c, rois = int(_any(n, 32, 64, 256)), int(_any(n, 10, 50, 100))
    corners = n.random.uniform(0, 30, (rois, 2))
    boxes = np.concatenate([corners, corners + n.random.uniform(1, 30, (rois, 2))], 1).astype("float32")
    size = {"output_height": int(_any(n, 7, 14)), "output_width": 7, "sampling_ratio": int(_any(n, 0, 2))}
    batch = n.given(np.zeros(rois, "int64"))
    n.op(
        "RoiAlign", n.x(1, c, 50, 60), n.given(boxes), batch, spatial_scale=float(_any(n, 1.0, 0.25)), **size
    )


@_kind
def _space_and_depth(n: Net) -> None:
    block, side, c = int(_any(n, 2, 3, 4)), int(_any(n, 16, 40, 64)), int(_any(n, 3, 8, 16, 64))
    if n.random.random() < 0.5:
        x = n.x(1, c * block**2, side, side)
        n.op("DepthToSpace", x, blocksize=block, mode=_any(n, "DCR", "CRD"))
    else:
        n.op("SpaceToDepth", n.x(1, c, side * block, side * block), blocksize=block)


# selection, scans, elements --------------------------------------------------------------------------
@_kind
def _top_k(n: Net) -> None:
    shape = _shape(n, rank := int(_any(n, 2, 3)), 500_000)
    axis = rank - 1 if n.random.random() < 0.7 else _axis(n, rank)
    k = max(1, min(shape[axis], int(_any(n, 1, 5, 20, 100, 300))))
    n.op("TopK", n.x(*shape), n.c([k], "int64"), outputs=2, axis=axis, largest=int(_any(n, 0, 1)))


@_kind
def _scan(n: Net) -> None:
    shape = _shape(n, rank := int(_any(n, 2, 3)))
    more = {"exclusive": int(_any(n, 0, 1)), "reverse": int(_any(n, 0, 1))}
    n.op("CumSum", n.x(*shape), n.c(_axis(n, rank), "int64"), **more)


@_kind
def _boxes(n: Net) -> None:
    number, classes = int(_any(n, 100, 500, 1000)), int(_any(n, 1, 4, 20))
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


@_kind
def _unary(n: Net) -> None:
    n.op(_any(n, *_UNARY), n.x(*_shape(n, int(_any(n, 2, 3, 4)))))


@_kind
def _binary(n: Net) -> None:
    shape = _shape(n, int(_any(n, 2, 3, 4)))
    other = [1 if n.random.random() < 0.4 else extent for extent in shape]
    kind = _any(n, "Add", "Sub", "Mul", "Div", "Max", "Min", "Mod", "Less", "Equal", "PRelu")
    more = {"fmod": 1} if kind == "Mod" else {}
    n.op(kind, n.x(*shape), n.x(*other[int(_any(n, 0, 0, 1)) :]), **more)


@_kind
def _where(n: Net) -> None:
    shape = _shape(n, int(_any(n, 2, 3)))
    n.op("Where", n.given(n.random.random(shape) > 0.5), n.x(*shape), _any(n, n.c(-1e9), n.x(*shape)))


@_kind
def _chain(n: Net) -> None:
    x = n.x(*(shape := _shape(n, int(_any(n, 2, 3, 4)))))
    for _ in range(int(_any(n, 3, 5, 8))):
        if n.random.random() < 0.5:
            x = n.op(_any(n, "Sigmoid", "Tanh", "Relu", "Abs", "Neg", "Softplus"), x)
        else:
            x = n.op(_any(n, "Add", "Mul", "Sub"), x, _any(n, n.c(0.5), n.w(shape[-1]), n.x(*shape)))


@_kind
def _cast(n: Net) -> None:
    shape = _shape(n, int(_any(n, 2, 3)))
    to = int(_any(n, 2, 3, 6, 7, 9, 10, 11, 16))
    scaled = n.op("Mul", n.op("Abs", n.x(*shape)), n.c(20.0))
    n.op("Cast", n.op("Cast", scaled, to=to), to=1)


@_kind
def _integers(n: Net) -> None:
    shape = _shape(n, int(_any(n, 2, 3)))
    a, b = (n.given(n.random.integers(1, 99, shape).astype("int64")) for _ in range(2))
    n.op(_any(n, "Add", "Mul", "Sub", "Div", "Mod", "Max", "Less", "Equal"), a, b)


@_kind
def _triangle(n: Net) -> None:
    n.op(
        "Trilu",
        n.x(*_shape(n, int(_any(n, 2, 3, 4)))),
        n.c(int(_any(n, -3, 0, 2)), "int64"),
        upper=int(_any(n, 0, 1)),
    )


@_kind
def _one_hot(n: Net) -> None:
    rows, depth = int(_any(n, 64, 512, 2048)), int(_any(n, 10, 100, 1000))
    n.op(
        "OneHot", n.given(n.random.integers(0, depth, rows)), n.c(depth, "int64"), n.c([0.0, 1.0], "float32")
    )


# 8 bits ----------------------------------------------------------------------------------------------
def _bytes(n: Net, *shape: int) -> str:
    return n.given(n.random.integers(0, 255, shape).astype(np.uint8))


@_kind
def _quantizer(n: Net) -> None:
    shape = _shape(n, int(_any(n, 2, 3, 4)))
    if n.random.random() < 0.5:
        n.op("QuantizeLinear", n.x(*shape), n.c(0.03), n.c(128, "uint8"))
    else:
        n.op("DequantizeLinear", _bytes(n, *shape), n.c(0.03), n.c(128, "uint8"))


@_kind
def _matmul_of_bytes(n: Net) -> None:
    def draw() -> tuple[int, ...]:
        return tuple(int(_any(n, *sizes)) for sizes in (_ROWS, _WIDTHS, _WIDTHS))

    m, k, w = _fitting(n, draw, lambda *e: prod(e), _PRODUCTS)
    weights = n.c(n.random.integers(-60, 60, (k, w)), "int8")
    scales = n.c(0.02), n.c(128, "uint8"), n.c(0.01), n.c(0, "int8"), n.c(0.05), n.c(128, "uint8")
    a, a_zero, b, b_zero, y, y_zero = scales
    n.op("QLinearMatMul", _bytes(n, m, k), a, a_zero, weights, b, b_zero, y, y_zero)


@_kind
def _conv_of_bytes(n: Net) -> None:
    def draw() -> tuple[int, ...]:
        return tuple(int(_any(n, *sizes)) for sizes in (_CHANNELS, _CHANNELS, _PIXELS, (1, 3, 3, 5)))

    c, f, side, k = _fitting(n, draw, lambda c, f, side, k: c * f * side**2 * k**2, _PRODUCTS)
    group = c if n.random.random() < 0.3 else 1
    f = c if group > 1 else f
    weights = n.c(n.random.integers(-60, 60, (f, c // group, k, k)), "int8")
    operands = [_bytes(n, 1, c, side, side), n.c(0.02), n.c(128, "uint8"), weights, n.c(0.01), n.c(0, "int8")]
    more = {"strides": [int(_any(n, 1, 1, 2))] * 2, "pads": [k // 2] * 4, "group": group}
    n.op("QLinearConv", *operands, n.c(0.1), n.c(128, "uint8"), **more)
