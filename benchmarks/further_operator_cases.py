"""Single operators that real models have beside the common ones: computed weights, rare windows, odd axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.operator_cases import _case, _conv, _deconv, _one, _pool, _reduce, _resize, _topk

# convolutions ------------------------------------------------------------------------------------
_conv("1x7 of Inception, batch 2", (2, 128, 17, 17), 128, (1, 7), pads=[0, 3, 0, 3])
_conv("3x3 stride 3", (1, 64, 57, 57), 96, (3, 3), strides=[3, 3])
_conv("3x3 padded on two sides", (1, 48, 40, 40), 64, (3, 3), pads=[0, 0, 1, 1], strides=[2, 2])
_conv("grouped 2 of AlexNet", (1, 96, 27, 27), 256, (5, 5), pads=[2] * 4, group=2)
_conv("grouped 8", (1, 256, 14, 14), 512, (3, 3), pads=[1] * 4, group=8)
_conv("multiplier 2", (1, 64, 40, 40), 128, (3, 3), pads=[1] * 4, group=64)
_conv("depthwise dilated 4", (1, 256, 33, 33), 256, (3, 3), pads=[4] * 4, dilations=[4, 4], group=256)
_conv("depthwise 9x9", (1, 64, 32, 32), 64, (9, 9), pads=[4] * 4, group=64)
_conv("9x9 of SRCNN", (1, 3, 96, 96), 64, (9, 9), pads=[4] * 4)
_conv("3x3x3 stride 2", (1, 32, 16, 28, 28), 64, (3, 3, 3), pads=[1] * 6, strides=[2, 2, 2])
_conv("1x3x3", (1, 64, 8, 28, 28), 64, (1, 3, 3), pads=[0, 1, 1, 0, 1, 1])
_conv("3x1x1", (1, 64, 8, 28, 28), 64, (3, 1, 1), pads=[1, 0, 0, 1, 0, 0])
_conv("k3 batch 8", (8, 64, 300), 128, (3,), pads=[1, 1])
_conv("k1 of a classifier", (4, 512, 1), 1000, (1,))
_deconv("3x3 s2", (1, 64, 32, 32), 32, (3, 3), pads=[1] * 4, strides=[2, 2], output_padding=[1, 1])
_deconv("depthwise 4x4 s2", (1, 32, 40, 40), 32, (4, 4), pads=[1] * 4, strides=[2, 2], group=32)


def _computed(name: str, x: tuple[int, ...], w: tuple[int, ...], **kw: Any) -> None:
    _case(f"conv by computed weights, {name}", lambda n: n.op("Conv", n.x(*x), n.x(*w), **kw))


_computed("3x3 s2", (1, 32, 57, 41), (50, 32, 3, 3), strides=[2, 2], pads=[0, 1, 1, 0])
_computed("correlation of a tracker", (1, 256, 29, 29), (256, 1, 5, 5), group=256)
_computed("15x15", (1, 128, 31, 31), (1, 128, 15, 15))
_computed("modulated in groups", (1, 128, 32, 32), (128, 64, 3, 3), pads=[1] * 4, group=2)
_computed("1-D", (1, 64, 2000), (64, 64, 3), pads=[1, 1])


# products ----------------------------------------------------------------------------------------
def _product(
    name: str,
    a: tuple[int, ...],
    b: tuple[int, ...],
    turn_a: tuple[int, ...] = (),
    turn_b: tuple[int, ...] = (),
) -> None:
    def make(n: Any) -> None:
        x, y = n.x(*a), n.x(*b)
        x = n.op("Transpose", x, perm=list(turn_a)) if turn_a else x
        n.op("MatMul", x, n.op("Transpose", y, perm=list(turn_b)) if turn_b else y)

    _case(f"product {name}", make)


_product("of a vector with a transposed matrix", (1, 2048), (1024, 2048), turn_b=(1, 0))
_product("of a matrix with a vector", (1024, 2048), (2048, 1))
_product("of two rows", (2, 2048), (2048, 1024))
_product("of four rows", (4, 2048), (2048, 1024))
_product("of vectors in batches", (16, 1, 256), (16, 256, 1024))
_product("of a vector with keys", (12, 1, 64), (12, 1024, 64), turn_b=(0, 2, 1))
_product("of transposed odd matrices", (333, 77), (129, 333), turn_a=(1, 0), turn_b=(1, 0))
_case("einsum ijk,jil->kl", lambda n: n.op("Einsum", n.x(12, 9, 40), n.x(9, 12, 50), equation="ijk,jil->kl"))
_case("einsum bn,anm,bm->ba", lambda n: _bilinear(n, n.x(16, 64), n.x(10, 64, 64), n.x(16, 64)))


def _bilinear(n: Any, x: str, a: str, y: str) -> str:
    return n.op("Einsum", x, a, y, equation="bn,anm,bm->ba")


# pooling, reductions, norms ----------------------------------------------------------------------
_pool("5x3 s2x1", "MaxPool", (1, 64, 60, 61), [5, 3], strides=[2, 1], pads=[2, 1, 2, 1])
_pool("6x6", "AveragePool", (1, 192, 12, 12), [6, 6], strides=[6, 6])
_pool("3x3 s2 with borders", "AveragePool", (1, 64, 57, 57), [3, 3], strides=[2, 2], pads=[1] * 4)
_pool("1x4", "MaxPool", (1, 64, 128, 128), [1, 4], strides=[1, 4])
_pool("k2 s2 of rows", "AveragePool", (8, 64, 1000), [2], strides=[2])
_reduce("mean of batch and pixels", "ReduceMean", (8, 64, 56, 56), [0, 2, 3])
_reduce("max of the first axis", "ReduceMax", (333, 1001), [0])
_reduce("L1 of a middle axis", "ReduceL1", (8, 64, 1000), [1])
_reduce("sum of squares", "ReduceSumSquare", (512, 1000), [1])
_one("log softmax of a middle axis", "LogSoftmax", (1, 19, 128, 128), axis=1)
_case("argmax of a middle axis", lambda n: n.op("ArgMax", n.x(8, 100, 300), axis=1, keepdims=0))
_case("layer norm 1x49x1023", lambda n: n.op("LayerNormalization", n.x(1, 49, 1023), n.w(1023), n.w(1023)))
_case("normalised rows", lambda n: _normalised(n, n.x(1000, 300)))
_case(
    "layer norm over three axes",
    lambda n: n.op("LayerNormalization", n.x(16, 8, 20, 20), n.w(8, 20, 20), axis=1),
)
_case("mean and deviation", lambda n: n.op("MeanVarianceNormalization", n.x(4, 32, 64, 64)))


def _normalised(n: Any, x: str) -> str:
    return n.op("Div", x, n.op("Max", n.op("ReduceL2", x, n.c([1], "int64"), keepdims=1), n.c(1e-12)))


# moves, selection --------------------------------------------------------------------------------
_one("concat of odd last axes", "Concat", (1024, 33), (1024, 65), (1024, 7), axis=1)
_case("split of the first axis", lambda n: n.op("Split", n.x(96, 4096), outputs=3, axis=0, num_outputs=3))
_case("pad wrap", lambda n: n.op("Pad", n.x(1, 16, 100, 100), n.c([0, 0, 4, 4] * 2, "int64"), mode="wrap"))
_case("tile of the last axis", lambda n: n.op("Tile", n.x(256, 100), n.c([1, 20], "int64")))
_case("expand of a column", lambda n: n.op("Expand", n.x(1024, 1), n.c([1024, 1024], "int64")))
_one("transpose of two pairs", "Transpose", (16, 49, 3, 96), perm=[2, 0, 1, 3])
_one("transpose of a batch of rows", "Transpose", (32, 128, 256), perm=[1, 0, 2])
_one("pixel shuffle 3", "DepthToSpace", (1, 27, 100, 100), blocksize=3, mode="CRD")
_resize("linear 1.25x", (1, 32, 52, 52), 1.25, mode="linear")
_resize("cubic 1.7x", (1, 8, 60, 60), 1.7, mode="cubic")
_resize("nearest 0.4x", (1, 64, 100, 100), 0.4, mode="nearest")
_topk((1000, 80), 1)
_topk((32, 4096), 256)
_case("sort of rows", lambda n: n.op("TopK", n.x(64, 2048), n.c([2048], "int64"), outputs=2, axis=1))
_case(
    "scatter add",
    lambda n: n.op(
        "ScatterND",
        n.x(1000, 64),
        n.given(n.random.integers(0, 1000, (5000, 1))),
        n.x(5000, 64),
        reduction="add",
    ),
)
_case("cumsum of a middle axis", lambda n: n.op("CumSum", n.x(8, 256, 100), n.c(1, "int64")))
_case("not zero", lambda n: n.op("Not", n.op("Equal", n.x(512, 1024), n.c(0.0))))
_case("any of rows", lambda n: _any(n, n.given(n.random.random((1024, 1000)) > 0.999)))
_case("triangle", lambda n: n.op("Trilu", n.x(12, 256, 256), upper=0))
_case("grid sample nearest", lambda n: _grid(n, (1, 16, 80, 80), (60, 60), mode="nearest"))
_case("grid sample of a flow", lambda n: _grid(n, (2, 64, 48, 64), (48, 64), mode="linear"))


def _any(n: Any, x: str) -> str:
    return n.op("ReduceMax", n.op("Cast", x, to=6), n.c([1], "int64"), keepdims=0)


def _grid(n: Any, x: tuple[int, ...], size: tuple[int, int], **kw: Any) -> str:
    grid = n.random.uniform(-1.1, 1.1, (x[0], *size, 2)).astype("float32")
    return n.op("GridSample", n.x(*x), n.given(grid), **kw)


# elements ----------------------------------------------------------------------------------------
_case("elu", lambda n: n.op("Elu", n.x(1, 64, 100, 100)))
_case("leaky relu", lambda n: n.op("LeakyRelu", n.x(1, 64, 100, 100), alpha=0.1))
_case("selu", lambda n: n.op("Selu", n.x(512, 1000)))
_case("hard sigmoid", lambda n: n.op("HardSigmoid", n.x(1, 64, 75, 75)))
_case("erf", lambda n: n.op("Erf", n.x(512, 1000)))
_case("sqrt of a sum", lambda n: n.op("Sqrt", n.op("Add", n.op("Abs", n.x(512, 1000)), n.c(1e-6))))
_case(
    "division of rows", lambda n: n.op("Div", n.x(512, 1000), n.op("Add", n.op("Abs", n.x(512, 1)), n.c(1.0)))
)
_case("floor and modulo", lambda n: n.op("Mod", n.x(512, 1000), n.c(0.7), fmod=1))
_case("dequantize", lambda n: _dequantize(n))
_case(
    "where of rows",
    lambda n: n.op("Where", n.given(n.random.random((1024, 1)) > 0.5), n.x(1024, 777), n.x(777)),
)


def _dequantize(n: Any) -> str:
    x = n.given(n.random.integers(0, 255, (1, 256, 56, 56)).astype(np.uint8))
    return n.op("DequantizeLinear", x, n.c(0.05), n.c(np.uint8(128), "uint8"))
