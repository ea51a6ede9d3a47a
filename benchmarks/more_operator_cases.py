"""Single operators beside the common ones: odd extents, batches, run-time operands, moves of several axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.operator_cases import _case, _conv, _matmul, _one, _pool, _reduce, _topk

# convolutions ------------------------------------------------------------------------------------
_SAME = [1, 1, 1, 1]
_conv("3x3 to 17 channels", (1, 3, 96, 96), 17, (3, 3), pads=_SAME)
_conv("3x3 of 33 channels", (2, 33, 30, 41), 65, (3, 3), pads=_SAME)
_conv("3x3 dilated 2 batch 4", (4, 64, 28, 28), 64, (3, 3), pads=[2, 2, 2, 2], dilations=[2, 2])
_conv("3x3 dilated 12 of DeepLab", (1, 256, 33, 33), 64, (3, 3), pads=[12] * 4, dilations=[12, 12])
_conv("3x3 stride 2 batch 4", (4, 64, 56, 56), 128, (3, 3), pads=_SAME, strides=[2, 2])
_conv("1x1 batch 16", (16, 96, 14, 14), 160, (1, 1))
_conv("1x1 to one channel", (1, 64, 256, 256), 1, (1, 1))
_conv("11x11 stem", (1, 3, 224, 224), 64, (11, 11), pads=[2, 2, 2, 2], strides=[4, 4])
_conv("patches 4", (1, 3, 224, 224), 96, (4, 4), strides=[4, 4])
_conv("patches 2", (1, 96, 56, 56), 192, (2, 2), strides=[2, 2])
_conv("depthwise 5x5 stride 2", (1, 144, 56, 56), 144, (5, 5), pads=[2, 2, 2, 2], strides=[2, 2], group=144)
_conv("depthwise 3x3 batch 4", (4, 100, 28, 28), 100, (3, 3), pads=_SAME, group=100)
_conv("grouped 4", (1, 128, 28, 28), 128, (3, 3), pads=_SAME, group=4)
_conv("3x1", (1, 64, 60, 80), 64, (3, 1), pads=[1, 0, 1, 0])
_case("conv2d of two inputs", lambda n: n.op("Conv", n.x(1, 64, 28, 28), n.x(64, 64, 3, 3), pads=_SAME))
_pool("3x3 s2 batch 5", "MaxPool", (5, 17, 55, 55), [3, 3], strides=[2, 2])
_pool("7x7", "AveragePool", (1, 1024, 7, 7), [7, 7])

# products ----------------------------------------------------------------------------------------
_matmul(1, 4096, 4096)
_matmul(16, 768, 3072 + 5)
_matmul(1000, 1000, 1000)
_matmul(7, 1023, 513)


def _einsum(name: str, equation: str, *shapes: tuple[int, ...]) -> None:
    _case(f"einsum {name}", lambda n: n.op("Einsum", *(n.x(*shape) for shape in shapes), equation=equation))


_einsum("bhid,bhjd->bhij", "bhid,bhjd->bhij", (2, 5, 77, 33), (2, 5, 91, 33))
_einsum("nkctv,kvw->nctw", "nkctv,kvw->nctw", (1, 3, 64, 50, 25), (3, 25, 25))
_einsum("of outer products", "bi,bj->bij", (64, 100), (64, 130))
_case(
    "matmul with b transposed in batches",
    lambda n: n.op("MatMul", n.x(12, 256, 64), n.op("Transpose", n.x(12, 200, 64), perm=[0, 2, 1])),
)
_case("matmul of a constant from the left", lambda n: n.op("MatMul", n.w(300, 768), n.x(768, 200)))
_case("matmul of many small ones", lambda n: n.op("MatMul", n.x(512, 16, 32), n.x(512, 32, 16)))
_case("matmul vector with run-time matrix", lambda n: n.op("MatMul", n.x(1, 2048), n.x(2048, 1024)))

# reductions, norms -------------------------------------------------------------------------------
_reduce("sum of channels", "ReduceSum", (1, 64, 112, 112), [1])
_reduce("mean of pixels with channels last", "ReduceMean", (2, 49, 768), [1])
_reduce("product of a short axis", "ReduceProd", (4096, 7), [1])
_case("argmin of rows", lambda n: n.op("ArgMin", n.x(512, 333), axis=1))
_case("layer norm odd", lambda n: n.op("LayerNormalization", n.x(1, 77, 513), n.w(513), n.w(513)))
_case("norm of channels of an image", lambda n: _norm_of_channels(n, n.x(1, 96, 56, 56), 96))
_case("variance", lambda n: _variance(n, n.x(256, 2000)))
_one("softmax of a short axis", "Softmax", (4096, 10), axis=-1)
_one("log softmax of a short axis", "LogSoftmax", (2048, 81), axis=-1)
_one("softmax of an odd middle axis", "Softmax", (3, 19, 65, 67), axis=1)


def _variance(n: Any, x: str) -> str:
    centred = n.op("Sub", x, n.op("ReduceMean", x, n.c([1], "int64"), keepdims=1))
    return n.op("ReduceMean", n.op("Mul", centred, centred), n.c([1], "int64"), keepdims=0)


def _norm_of_channels(n: Any, x: str, channels: int) -> str:
    mean = n.op("ReduceMean", x, n.c([1], "int64"), keepdims=1)
    centred = n.op("Sub", x, mean)
    square = n.op("ReduceMean", n.op("Mul", centred, centred), n.c([1], "int64"), keepdims=1)
    whole = n.op("Div", centred, n.op("Sqrt", n.op("Add", square, n.c(1e-6))))
    return n.op("Add", n.op("Mul", whole, n.w(channels, 1, 1)), n.w(channels, 1, 1))


# moves -------------------------------------------------------------------------------------------
_one("concat of four", "Concat", *[(1, 64, 28, 28)] * 4, axis=1)
_one("transpose of windows", "Transpose", (8, 7, 8, 7, 96), perm=[0, 2, 1, 3, 4])
_one("transpose of batches of heads", "Transpose", (8, 64, 12, 32), perm=[0, 2, 3, 1])
_one("transpose odd", "Transpose", (777, 1031), perm=[1, 0])
_one("depth to space DCR", "DepthToSpace", (1, 48, 64, 64), blocksize=4, mode="DCR")
_case("roll", lambda n: _roll(n, n.x(1, 56, 56, 96)))
_case(
    "gather of many embeddings",
    lambda n: n.op("Gather", n.w(1000, 64), n.given(n.random.integers(0, 1000, (128, 128)))),
)
_case(
    "gather elements of the first axis",
    lambda n: n.op("GatherElements", n.x(500, 512), n.given(n.random.integers(0, 500, (300, 512))), axis=0),
)
_case(
    "scatter elements",
    lambda n: n.op(
        "ScatterElements",
        n.x(256, 1000),
        n.given(np.argsort(n.random.random((256, 1000)), 1)[:, :100].astype("int64")),
        n.x(256, 100),
        axis=1,
    ),
)
_case(
    "resize to 513",
    lambda n: n.op("Resize", n.x(1, 21, 65, 65), "", "", n.c([1, 21, 513, 513], "int64"), mode="linear"),
)


def _roll(n: Any, x: str) -> str:
    axis = n.c([1], "int64")
    tail = n.op("Slice", x, n.c([3], "int64"), n.c([56], "int64"), axis)
    head = n.op("Slice", x, n.c([0], "int64"), n.c([3], "int64"), axis)
    return n.op("Concat", tail, head, axis=1)


# elements ----------------------------------------------------------------------------------------
_case("gelu of four million", lambda n: n.op("Gelu", n.x(1, 1024, 4096)))
_case("tanh gelu", lambda n: n.op("Gelu", n.x(1, 512, 3072), approximate="tanh"))
_one("softplus", "Softplus", (1024, 1024))
_one("log", "Log", (1024, 1000))
_case("prelu", lambda n: n.op("PRelu", n.x(1, 64, 112, 112), n.w(64, 1, 1)))
_case("add of int64", lambda n: n.op("Add", n.given(n.random.integers(-9, 9, (1024, 1024))), n.c(3, "int64")))
_case("less", lambda n: n.op("Less", n.x(1024, 1024), n.x(1024, 1)))
_case(
    "quantize",
    lambda n: n.op("QuantizeLinear", n.x(1, 256, 56, 56), n.c(0.05), n.c(np.uint8(128), "uint8")),
)
_topk((4, 128, 300), 20)
_topk((16, 1000), 1000, largest=0)
