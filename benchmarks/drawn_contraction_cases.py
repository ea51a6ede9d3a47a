"""Drawn convolutions, products, recurrent layers, windows, reductions and norms."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from benchmarks.drawn_operator_cases import (
    CHANNELS,
    ELEMENTS,
    PIXELS,
    PRODUCTS,
    ROWS,
    WIDTHS,
    axis_of,
    bytes_of,
    fitting,
    kind,
    pick,
    shape_of,
)
from benchmarks.operator_cases import Net


# contractions --------------------------------------------------------------------------------------
def _image(n: Net, rank: int, grouped: bool = False, transposed: bool = False) -> None:
    """A convolution, plain, of groups, or transposed, of ``rank`` spatial axes."""

    def draw() -> tuple[Any, ...]:
        kernel = [int(pick(n, 1, 2, 3, 3, 3, 4, 5, 7)) for _ in range(rank)]
        if n.random.random() < 0.6:
            kernel = [kernel[0]] * rank
        sides = [int(pick(n, *PIXELS)) * (1 if rank == 2 else 20 if rank == 1 else 1) for _ in range(rank)]
        if rank == 3:
            sides[0] = int(pick(n, 4, 8, 16))
        c, f = int(pick(n, *CHANNELS)), int(pick(n, *CHANNELS))
        group = 1
        if grouped:
            group = c if n.random.random() < 0.5 else int(pick(n, 2, 4, 8))
            f = c * (2 if n.random.random() < 0.2 else 1)
            c, f = c // group * group or group, f // group * group or group
        return int(pick(n, 1, 1, 1, 2, 4)), c, f, group, kernel, sides

    def cost(batch: int, c: int, f: int, group: int, kernel: list[int], sides: list[int]) -> float:
        if batch * max(c, f) * prod(sides) > ELEMENTS:
            return 1e30
        return batch * prod(sides) * c * f // group * prod(kernel) * (50 if group == c else 1)

    batch, c, f, group, kernel, sides = fitting(n, draw, cost, PRODUCTS)
    strides = [int(pick(n, 1, 1, 2))] * rank
    dilations = [1 if transposed or strides[0] > 1 else int(pick(n, 1, 1, 1, 2))] * rank
    pads = [d * (k - 1) // 2 for k, d in zip(kernel, dilations, strict=True)] * 2
    if transposed:
        strides, kernel, pads = [2] * rank, [max(k, 2) for k in kernel], [0] * (2 * rank)
    weights = n.w(c, f // group, *kernel) if transposed else n.w(f, c // group, *kernel)
    operands = [n.x(batch, c, *sides), weights, *([n.w(f)] if n.random.random() < 0.7 else [])]
    more = {"strides": strides, "pads": pads, "group": group, "kernel_shape": kernel}
    if not transposed:
        more["dilations"] = dilations
    n.op("ConvTranspose" if transposed else "Conv", *operands, **more)


@kind
def _conv1d(n: Net) -> None:
    _image(n, 1)


@kind
def _conv2d(n: Net) -> None:
    _image(n, 2)


@kind
def _conv2d_too(n: Net) -> None:
    _image(n, 2)


@kind
def _conv3d(n: Net) -> None:
    _image(n, 3)


@kind
def _conv1d_grouped(n: Net) -> None:
    _image(n, 1, grouped=True)


@kind
def _conv2d_grouped(n: Net) -> None:
    _image(n, 2, grouped=True)


@kind
def _conv_transpose(n: Net) -> None:
    _image(n, int(pick(n, 1, 2, 2, 3)), transposed=True)


@kind
def _matmul(n: Net) -> None:
    def draw() -> tuple[int, int, int]:
        return tuple(int(pick(n, *sizes)) for sizes in (ROWS, WIDTHS, WIDTHS))

    m, k, w = fitting(n, draw, lambda *e: prod(e), PRODUCTS)
    n.op("MatMul", n.x(m, k), n.w(k, w))


@kind
def _gemm(n: Net) -> None:
    m, k, w = (int(pick(n, *sizes)) for sizes in (ROWS, WIDTHS, WIDTHS))
    turn_a, turn_b = int(pick(n, 0, 1)), int(pick(n, 0, 1))
    a, b = ((k, m) if turn_a else (m, k)), ((w, k) if turn_b else (k, w))
    n.op("Gemm", n.x(*a), (n.w if n.random.random() < 0.5 else n.x)(*b), n.w(w), transA=turn_a, transB=turn_b)


@kind
def _batch_matmul(n: Net) -> None:
    def draw() -> tuple[int, ...]:
        return int(pick(n, 2, 3, 4, 8, 12, 16, 32)), *(int(pick(n, *ROWS)) for _ in range(3))

    b, m, k, w = fitting(n, draw, lambda *e: prod(e), PRODUCTS)
    right = n.x(b, w, k) if n.random.random() < 0.5 else n.x(b, k, w)
    if n.values[right].shape != (b, k, w):
        right = n.op("Transpose", right, perm=[0, 2, 1])
    n.op("MatMul", n.x(b, m, k), right)


@kind
def _einsum(n: Net) -> None:
    equation = pick(
        n, "bij,bjk->bik", "bhqd,bkhd->bhqk", "bhqk,bkhd->bqhd", "ij,kj->ik", "bcn,bcm->bnm", "bld,hdk->bhlk",
        "nchw,ck->nkhw", "bi,bj->bij", "abc,cd->abd", "ijk,ilk->ijl", "bhc,bhd->bcd", "ij,ij->i",
        "bnd,bnd->bn", "bxyd,xkd->bxyk", "bqhd,bkhd->bhqk", "ijkl,jm->imkl", "nij,nkj->nik", "ab,bc,cd->ad",
    )  # fmt: skip
    letters = sorted(set(equation) - set(",->"))

    def draw() -> tuple[dict[str, int]]:
        return (
            {letter: int(pick(n, 4, 7, 12, 16, 24, 33, 49, 64, 77, 100, 128, 256)) for letter in letters},
        )

    def cost(sizes: dict[str, int]) -> float:
        tensors = (prod(sizes[letter] for letter in part) for part in equation.replace("->", ",").split(","))
        return max(prod(sizes.values()), PRODUCTS // ELEMENTS * max(tensors))

    (sizes,) = fitting(n, draw, cost, PRODUCTS)
    operands = [n.x(*(sizes[letter] for letter in part)) for part in equation.split("->")[0].split(",")]
    n.op("Einsum", *operands, equation=equation)


@kind
def _recurrent(n: Net) -> None:
    kind, gates = pick(n, ("LSTM", 4), ("GRU", 3), ("RNN", 1))
    steps, batch, width = (
        int(pick(n, 10, 30, 64, 100)),
        int(pick(n, 1, 2, 8, 16)),
        int(pick(n, 32, 64, 100, 128, 256)),
    )
    hidden, ways = int(pick(n, 32, 64, 100, 128, 256)), int(pick(n, 1, 2))
    weights = [
        n.w(ways, gates * hidden, width),
        n.w(ways, gates * hidden, hidden),
        n.w(ways, 2 * gates * hidden),
    ]
    direction = "bidirectional" if ways == 2 else pick(n, "forward", "reverse")
    n.op(kind, n.x(steps, batch, width), *weights, outputs=2, hidden_size=hidden, direction=direction)


# 8 bits --------------------------------------------------------------------------------------------
@kind
def _quantizer(n: Net) -> None:
    shape = shape_of(n, int(pick(n, 2, 3, 4)))
    if n.random.random() < 0.5:
        n.op("QuantizeLinear", n.x(*shape), n.c(0.03), n.c(128, "uint8"))
    else:
        n.op("DequantizeLinear", bytes_of(n, *shape), n.c(0.03), n.c(128, "uint8"))


@kind
def _matmul_of_bytes(n: Net) -> None:
    def draw() -> tuple[int, ...]:
        return tuple(int(pick(n, *sizes)) for sizes in (ROWS, WIDTHS, WIDTHS))

    m, k, w = fitting(n, draw, lambda *e: prod(e), PRODUCTS)
    weights = n.c(n.random.integers(-60, 60, (k, w)), "int8")
    scales = n.c(0.02), n.c(128, "uint8"), n.c(0.01), n.c(0, "int8"), n.c(0.05), n.c(128, "uint8")
    a, a_zero, b, b_zero, y, y_zero = scales
    n.op("QLinearMatMul", bytes_of(n, m, k), a, a_zero, weights, b, b_zero, y, y_zero)


@kind
def _conv_of_bytes(n: Net) -> None:
    def draw() -> tuple[int, ...]:
        return tuple(int(pick(n, *sizes)) for sizes in (CHANNELS, CHANNELS, PIXELS, (1, 3, 3, 5)))

    c, f, side, k = fitting(n, draw, lambda c, f, side, k: c * f * side**2 * k**2, PRODUCTS)
    group = c if n.random.random() < 0.3 else 1
    f = c if group > 1 else f
    weights = n.c(n.random.integers(-60, 60, (f, c // group, k, k)), "int8")
    operands = [
        bytes_of(n, 1, c, side, side),
        n.c(0.02),
        n.c(128, "uint8"),
        weights,
        n.c(0.01),
        n.c(0, "int8"),
    ]
    more = {"strides": [int(pick(n, 1, 1, 2))] * 2, "pads": [k // 2] * 4, "group": group}
    n.op("QLinearConv", *operands, n.c(0.1), n.c(128, "uint8"), **more)


# windows, reductions, norms ------------------------------------------------------------------------
@kind
def _pool(n: Net) -> None:
    rank = int(pick(n, 1, 2, 2, 2, 3))

    def draw() -> tuple[int, int, list[int]]:
        sides = [int(pick(n, *PIXELS)) for _ in range(rank)]
        return int(pick(n, 1, 1, 2, 4)), int(pick(n, *CHANNELS)), sides

    batch, c, sides = fitting(n, draw, lambda b, c, s: b * c * prod(s), ELEMENTS)
    kernel = [int(pick(n, 2, 2, 3, 3, 5)) for _ in range(rank)]
    more: dict[str, Any] = {
        "strides": [int(pick(n, 1, 2, 2, 3))] * rank,
        "ceil_mode": int(pick(n, 0, 0, 1)),
    }
    kind = pick(n, "MaxPool", "AveragePool", "LpPool")
    if n.random.random() < 0.5:
        more["pads"] = [(k - 1) // 2 for k in kernel] * 2
    if kind == "AveragePool":
        more["count_include_pad"] = int(pick(n, 0, 1))
    n.op(kind, n.x(batch, c, *sides), kernel_shape=kernel, **more)


@kind
def _reduction(n: Net) -> None:
    rank = int(pick(n, 2, 3, 4, 5))
    axes = sorted({axis_of(n, rank) for _ in range(int(pick(n, 1, 1, 2, 3)))})
    kinds = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp", "LogSum")
    x = n.x(*shape_of(n, rank))
    if (kind := pick(n, *kinds)) == "LogSum":
        x = n.op("Abs", x)
    n.op(f"Reduce{kind}", x, n.c(axes, "int64"), keepdims=int(pick(n, 0, 1)))


@kind
def _arg_reduction(n: Net) -> None:
    shape = shape_of(n, rank := int(pick(n, 2, 3, 4)))
    n.op(pick(n, "ArgMax", "ArgMin"), n.x(*shape), axis=axis_of(n, rank), keepdims=int(pick(n, 0, 1)))


@kind
def _softmax(n: Net) -> None:
    shape = shape_of(n, rank := int(pick(n, 2, 3, 4)))
    n.op(pick(n, "Softmax", "Softmax", "LogSoftmax", "Hardmax"), n.x(*shape), axis=axis_of(n, rank))


@kind
def _layer_norm(n: Net) -> None:
    shape = shape_of(n, int(pick(n, 2, 3, 4)))
    axis = len(shape) - int(pick(n, 1, 1, 2))
    operands = [n.x(*shape), n.w(*shape[axis:]), *([n.w(*shape[axis:])] if n.random.random() < 0.7 else [])]
    n.op("LayerNormalization", *operands, axis=axis)


@kind
def _image_norm(n: Net) -> None:
    def draw() -> tuple[int, int, list[int]]:
        sides = [int(pick(n, *PIXELS))] * int(pick(n, 1, 2, 2, 3))
        return int(pick(n, 1, 2, 4, 8)), int(pick(n, *CHANNELS)) // 4 * 4 or 4, sides

    batch, c, sides = fitting(n, draw, lambda b, c, s: b * c * prod(s), ELEMENTS)
    x, scale, shift = n.x(batch, c, *sides), n.w(c), n.w(c)
    kind = pick(n, "instance", "batch", "group", "lrn", "rows")
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
