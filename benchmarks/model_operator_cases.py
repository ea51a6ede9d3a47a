"""Single operators as detectors, speech, diffusion and language models and recommenders have them."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.operator_cases import _case, _conv, _deconv, _group_norm, _one, _pad, _pool, _reduce, _slice

# detectors, segmenters ---------------------------------------------------------------------------
_conv("1x1 of a detection head", (1, 576, 20, 20), 273, (1, 1))
_conv("3x3 of a P6 level", (2, 256, 25, 34), 36, (3, 3), pads=[1] * 4)
_conv("depthwise 5x5 of EfficientNet", (2, 672, 24, 24), 672, (5, 5), pads=[2] * 4, group=672)
_conv("depthwise 3x3 stride 2 of EfficientNet", (1, 240, 75, 75), 240, (3, 3), pads=[1] * 4, group=240,
      strides=[2, 2])  # fmt: skip
_conv("grouped 3x3 of RegNet", (2, 216, 28, 28), 216, (3, 3), pads=[1] * 4, group=9)
_conv("1x1 of a gate", (4, 960, 1, 1), 240, (1, 1))
_conv("3x3 dilated 6", (2, 160, 33, 33), 160, (3, 3), pads=[6] * 4, dilations=[6, 6])
_conv("3x3 to 19 classes", (1, 128, 64, 128), 19, (3, 3), pads=[1] * 4)
_conv("3x3 stem of 416", (1, 3, 416, 416), 16, (3, 3), pads=[1] * 4, strides=[2, 2])
_conv("7x7 stride 4 of SegFormer", (1, 3, 224, 224), 32, (7, 7), pads=[3] * 4, strides=[4, 4])
_deconv("4x4 s2 of a pose net", (1, 256, 16, 12), 256, (4, 4), pads=[1] * 4, strides=[2, 2])
_deconv("16x16 s8 of FCN", (1, 21, 34, 34), 21, (16, 16), pads=[4] * 4, strides=[8, 8])
_pool("3x3 s2 rounded up", "MaxPool", (2, 96, 55, 55), [3, 3], strides=[2, 2], ceil_mode=1)
_pool("9x9 s1 of YOLO", "MaxPool", (1, 128, 13, 13), [9, 9], pads=[4] * 4)
_case("decoded boxes", lambda n: _boxes(n, n.x(1, 8400, 4), n.x(8400, 2)))
_case("sigmoid of scores and best class", lambda n: _best(n, n.x(1, 80, 8400)))
_case(
    "resize nearest to 40x60",
    lambda n: n.op("Resize", n.x(2, 96, 20, 30), "", "", n.c([2, 96, 40, 60], "int64"), mode="nearest",
                   coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
)  # fmt: skip
_case(
    "resize linear to 128x256",
    lambda n: n.op("Resize", n.x(1, 19, 32, 64), "", "", n.c([1, 19, 128, 256], "int64"), mode="linear"),
)


def _boxes(n: Any, distances: str, points: str) -> str:
    near = n.op("Slice", distances, n.c([0], "int64"), n.c([2], "int64"), n.c([2], "int64"))
    far = n.op("Slice", distances, n.c([2], "int64"), n.c([4], "int64"), n.c([2], "int64"))
    return n.op("Concat", n.op("Sub", points, near), n.op("Add", points, far), axis=2)


def _best(n: Any, scores: str) -> str:
    return n.op("ReduceMax", n.op("Sigmoid", scores), n.c([1], "int64"), keepdims=0)


# speech ------------------------------------------------------------------------------------------
_conv("k15 depthwise of Conformer", (2, 144, 401), 144, (15,), pads=[7, 7], group=144)
_conv("k11 dilated 5 of HiFi-GAN", (1, 64, 4096), 64, (11,), pads=[25, 25], dilations=[5])
_conv("k7 to one channel", (1, 32, 16384), 1, (7,), pads=[3, 3])
_conv("k3 stride 2 of wav2vec", (2, 512, 799), 512, (3,), strides=[2])
_deconv("k16 s8 odd", (1, 192, 67), 96, (16,), pads=[4, 4], strides=[8])
_deconv("k4 s2 batch 2", (2, 80, 500), 40, (4,), pads=[1, 1], strides=[2])
_case("gated linear unit", lambda n: _glu(n, n.x(2, 401, 512)))
_case("frames to powers", lambda n: _power(n, n.x(1, 401, 201), n.x(1, 401, 201)))
_case("relative shift", lambda n: _shift(n, n.x(4, 201, 401)))


def _glu(n: Any, x: str) -> str:
    n.op("Split", x, outputs=2, axis=2, num_outputs=2)
    first = n.nodes[-1].output
    return n.op("Mul", first[0], n.op("Sigmoid", first[1]))


def _power(n: Any, real: str, imaginary: str) -> str:
    power = n.op("Add", n.op("Mul", real, real), n.op("Mul", imaginary, imaginary))
    mel = n.op("MatMul", power, n.c(np.abs(n.random.standard_normal((201, 80))).astype("float32")))
    return n.op("Log", n.op("Max", mel, n.c(1e-6)))


def _shift(n: Any, scores: str) -> str:
    """Relative positions of Transformer-XL: a column of zeros, another view, without the first row."""
    padded = n.op("Pad", scores, n.c([0, 0, 1, 0, 0, 0], "int64"))
    turned = n.op("Reshape", padded, n.c([4, 402, 201], "int64"))
    whole = n.op("Slice", turned, n.c([1], "int64"), n.c([402], "int64"), n.c([1], "int64"))
    return n.op("Reshape", whole, n.c([4, 201, 401], "int64"))


# diffusion, vision transformers ------------------------------------------------------------------
_conv("3x3 of a latent", (2, 4, 64, 64), 320, (3, 3), pads=[1] * 4)
_conv("3x3 320 at 32", (2, 320, 32, 32), 320, (3, 3), pads=[1] * 4)
_conv("3x3 stride 2 padded at the end", (1, 128, 65, 65), 128, (3, 3), strides=[2, 2])
_case("group norm and silu", lambda n: _silu(n, _group_norm(n, (2, 320, 32, 32), 32)))
_case("geglu", lambda n: _geglu(n, n.x(2, 256, 2560)))
_case("attention of windows", lambda n: n.op("Einsum", n.x(64, 3, 49, 32), n.x(64, 3, 49, 32),
                                             equation="whqd,whkd->whqk"))  # fmt: skip
_one("transpose of patches", "Transpose", (1, 3, 14, 16, 14, 16), perm=[0, 2, 4, 3, 5, 1])
_one("transpose of channels last", "Transpose", (2, 48, 48, 128), perm=[0, 3, 1, 2])
_case("shifted windows", lambda n: _windows(n, n.x(1, 56, 56, 96)))
_case("scale and shift of tokens", lambda n: _modulated(n, n.x(2, 256, 384), n.x(2, 1, 384), n.x(2, 1, 384)))


def _silu(n: Any, x: str) -> str:
    return n.op("Mul", x, n.op("Sigmoid", x))


def _geglu(n: Any, x: str) -> str:
    n.op("Split", x, outputs=2, axis=2, num_outputs=2)
    first = n.nodes[-1].output
    return n.op("Mul", first[0], n.op("Gelu", first[1]))


def _windows(n: Any, x: str) -> str:
    shape = n.op("Reshape", x, n.c([1, 8, 7, 8, 7, 96], "int64"))
    return n.op("Transpose", shape, perm=[0, 1, 3, 2, 4, 5])


def _modulated(n: Any, x: str, scale: str, shift: str) -> str:
    centred = n.op("LayerNormalization", x, n.c(np.ones(384)), n.c(np.zeros(384)), epsilon=1e-6)
    return n.op("Add", n.op("Mul", centred, n.op("Add", scale, n.c(1.0))), shift)


# language models, recommenders -------------------------------------------------------------------
_one("softmax of causal scores", "Softmax", (2, 12, 129, 129), axis=-1)
_case("scores with a mask", lambda n: _masked(n, n.x(2, 12, 128, 128), n.random.random((2, 1, 1, 128)) > 0.2))
_case("rotated halves", lambda n: _rotated(n, n.x(1, 32, 128, 64), n.x(128, 64), n.x(128, 64)))
_case(
    "keys repeated for groups",
    lambda n: n.op("Expand", n.x(1, 8, 1, 256, 64), n.c([1, 8, 4, 256, 64], "int64")),
)
_case(
    "router of experts",
    lambda n: n.op("TopK", n.op("Softmax", n.x(512, 64), axis=-1), n.c([8], "int64"), outputs=2),
)
_case("logits of the last token", lambda n: n.op("MatMul", n.x(1, 512), n.w(512, 32003)))
_case(
    "sum of gathered features",
    lambda n: n.op("ReduceSum", n.op("Gather", n.w(5000, 16), n.given(n.random.integers(0, 5000, (512, 26)))),
                   n.c([1], "int64"), keepdims=0),
)  # fmt: skip
_case("pairs of features", lambda n: _pairs(n, n.x(128, 27, 64)))
_case(
    "mean of masked tokens", lambda n: _pooled(n, n.x(8, 128, 384), n.given(np.ones((8, 128, 1), "float32")))
)
_reduce("deviation axes 0 and 2", "ReduceSumSquare", (16, 100, 333), [0, 2])
_reduce("max of axes 1 and 3", "ReduceMax", (4, 30, 50, 70), [1, 3], 1)
_slice("of channels with a step", (2, 96, 40, 40), [1], [96], [1], [2])
_pad("of tokens", (2, 197, 384), [0, 3, 0, 0, 0, 0])
_one("concat of a class token", "Concat", (4, 1, 384), (4, 196, 384), axis=1)
_case(
    "split of odd parts",
    lambda n: n.op("Split", n.x(2, 300, 520), n.c([200, 64, 256], "int64"), outputs=3, axis=2),
)


def _masked(n: Any, scores: str, mask: np.ndarray) -> str:
    added = n.op("Add", n.op("Mul", scores, n.c(0.125)), n.given(np.where(mask, 0, -1e9).astype("float32")))
    return n.op("Softmax", added, axis=-1)


def _rotated(n: Any, x: str, cosine: str, sine: str) -> str:
    n.op("Split", x, outputs=2, axis=3, num_outputs=2)
    first, second = n.nodes[-1].output
    turned = n.op("Concat", n.op("Neg", second), first, axis=3)
    return n.op("Add", n.op("Mul", x, cosine), n.op("Mul", turned, sine))


def _pairs(n: Any, x: str) -> str:
    """Products of all pairs of features, as in DLRM."""
    scores = n.op("MatMul", x, n.op("Transpose", x, perm=[0, 2, 1]))
    row, column = np.tril_indices(27, -1)
    flat = n.op("Reshape", scores, n.c([128, 729], "int64"))
    return n.op("Gather", flat, n.c(row * 27 + column, "int64"), axis=1)


def _pooled(n: Any, x: str, mask: str) -> str:
    total = n.op("ReduceSum", n.op("Mul", x, mask), n.c([1], "int64"), keepdims=0)
    count = n.op("Max", n.op("ReduceSum", mask, n.c([1], "int64"), keepdims=0), n.c(1e-9))
    return n.op("Div", total, count)
