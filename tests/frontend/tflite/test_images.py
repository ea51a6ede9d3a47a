"""Convolutions, pooling, resizing and layers compute what LiteRT computes."""

import numpy as np
import pytest

pytest.importorskip("tflite")
pytest.importorskip("ai_edge_litert")

from hetero_tvm.frontend.tflite.load import read_program  # noqa: E402
from hetero_tvm.frontend.tflite.translation import to_onnx  # noqa: E402
from tests.frontend.tflite.judge import assert_same  # noqa: E402
from tests.frontend.tflite.written import Call, T, const, file, one  # noqa: E402

RANDOM = np.random.default_rng(0)


def weights(*shape):
    return const(RANDOM.standard_normal(shape).astype("float32"))


def extents(size, kernel, stride, dilation, same):
    reach = (kernel - 1) * dilation + 1
    return -(-size // stride) if same else (size - reach) // stride + 1


CASES = [(3, 1, 1, 0), (3, 2, 1, 0), (2, 2, 1, 1), (3, 1, 2, 0), (5, 3, 1, 1), (1, 1, 1, 0)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernel, stride, dilation, padding", CASES)
@pytest.mark.parametrize("kind", ["CONV_2D", "DEPTHWISE_CONV_2D"])
def test_convolutions(kind, kernel, stride, dilation, padding):
    size = [extents(n, kernel, stride, dilation, padding == 0) for n in (11, 8)]
    plain = kind == "CONV_2D"
    fields = {
        "Padding": padding, "StrideH": stride, "StrideW": stride,
        "DilationHFactor": dilation, "DilationWFactor": dilation, "FusedActivationFunction": 1,
    }  # fmt: skip
    fields |= {} if plain else {"DepthMultiplier": 2}
    w = weights(6, kernel, kernel, 3) if plain else weights(1, kernel, kernel, 6)
    options = "Conv2DOptions" if plain else "DepthwiseConv2DOptions"
    assert_same(one(kind, [T((2, 11, 8, 3)), w, weights(6)], [T((2, *size, 6))], options, **fields))


@pytest.mark.parametrize("kind", ["CONV_2D", "DEPTHWISE_CONV_2D"])
def test_quantised_convolutions(kind):
    plain, steps = kind == "CONV_2D", tuple(RANDOM.uniform(0.01, 0.05, 6))
    shape = (6, 3, 3, 3) if plain else (1, 3, 3, 6)
    w = const(RANDOM.integers(-127, 128, shape, "int8"), scale=steps, axis=0 if plain else 3)
    x = T((1, 9, 7, 3), "int8", scale=(0.04,), zero=(11,))
    bias = const(RANDOM.integers(-900, 900, 6, "int32"), scale=tuple(0.04 * s for s in steps))
    y = T((1, 5, 4, 6), "int8", scale=(0.2,), zero=(-128,))
    fields = {"Padding": 0, "StrideH": 2, "StrideW": 2, "FusedActivationFunction": 3}
    fields |= {} if plain else {"DepthMultiplier": 2}
    options = "Conv2DOptions" if plain else "DepthwiseConv2DOptions"
    assert_same(one(kind, [x, w, bias], [y], options, **fields))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "stride, padding, out", [(2, 0, (10, 14)), (2, 1, (11, 15)), (1, 0, (5, 7)), (3, 0, (15, 21))]
)
def test_transposed_convolutions(stride, padding, out):
    shape = const(np.array([1, *out, 4], "int32"))
    fields = {"Padding": padding, "StrideH": stride, "StrideW": stride}
    operands = [shape, weights(4, 3, 3, 3), T((1, 5, 7, 3)), weights(4)]
    assert_same(one("TRANSPOSE_CONV", operands, [T((1, *out, 4))], "TransposeConvOptions", **fields))


@pytest.mark.parametrize("stride, padding, out", [(2, 0, (6, 8, 10)), (1, 1, (5, 6, 7))])
def test_transposed_convolutions_of_volumes(stride, padding, out):
    shape = const(np.array([1, *out, 4], "int32"))
    fields = {"Padding": padding, **{f"Stride{letter}": stride for letter in "DHW"}}
    operands = [shape, weights(3, 3, 3, 4, 2), T((1, 3, 4, 5, 2)), weights(4)]
    assert_same(one("CONV_3D_TRANSPOSE", operands, [T((1, *out, 4))], "Conv3DOptions", **fields))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["MAX_POOL_2D", "AVERAGE_POOL_2D"])
@pytest.mark.parametrize("size, stride, padding", [(2, 2, 0), (3, 2, 0), (3, 1, 1), (2, 3, 0)])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_pooling(kind, size, stride, padding, dtype):
    out = [extents(n, size, stride, 1, padding == 0) for n in (11, 8)]
    more = {"dtype": "int8", "scale": (0.1,), "zero": (4,)} if dtype == "int8" else {}
    fields = {
        "Padding": padding,
        "StrideH": stride,
        "StrideW": stride,
        "FilterHeight": size,
        "FilterWidth": size,
    }
    assert_same(one(kind, [T((2, 11, 8, 3), **more)], [T((2, *out, 3), **more)], "Pool2DOptions", **fields))


@pytest.mark.exhaustive
@pytest.mark.parametrize("corners, centers", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("kind", ["RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"])
@pytest.mark.parametrize("out", [(12, 9), (3, 4), (7, 5)])
def test_resizing(kind, corners, centers, out):
    options = "ResizeBilinearOptions" if kind == "RESIZE_BILINEAR" else "ResizeNearestNeighborOptions"
    operands = [T((1, 6, 5, 2)), const(np.array(out, "int32"))]
    fields = {"AlignCorners": corners, "HalfPixelCenters": centers}
    assert_same(one(kind, operands, [T((1, *out, 2))], options, **fields))


@pytest.mark.exhaustive
def test_depth_and_blocks():
    assert_same(
        one("SPACE_TO_DEPTH", [T((1, 4, 6, 3))], [T((1, 2, 3, 12))], "SpaceToDepthOptions", BlockSize=2)
    )
    assert_same(
        one("DEPTH_TO_SPACE", [T((1, 2, 3, 12))], [T((1, 4, 6, 3))], "DepthToSpaceOptions", BlockSize=2)
    )
    block, pads = const(np.array([2, 3], "int32")), const(np.array([[1, 0], [2, 1]], "int32"))
    assert_same(one("SPACE_TO_BATCH_ND", [T((2, 5, 6, 3)), block, pads], [T((12, 3, 3, 3))]))
    assert_same(one("BATCH_TO_SPACE_ND", [T((12, 3, 3, 3)), block, pads], [T((2, 5, 6, 3))]))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "shape, keep", [((4, 6), False), ((2, 3, 6), True), ((2, 3, 6), False), ((2, 3, 2), False)]
)
def test_layers(shape, keep):
    rows = int(np.prod(shape)) // 6
    result = T((*shape[:-1], 5) if keep else (rows, 5))
    fields = {"KeepNumDims": keep, "FusedActivationFunction": 1}
    operands = [T(shape), weights(5, 6), weights(5)]
    assert_same(one("FULLY_CONNECTED", operands, [result], "FullyConnectedOptions", **fields))


def test_quantised_layer():
    w = const(RANDOM.integers(-127, 128, (5, 6), "int8"), scale=(0.02,), zero=(0,))
    bias = const(RANDOM.integers(-500, 500, 5, "int32"), scale=(0.001,))
    x, y = T((4, 6), "int8", scale=(0.05,), zero=(-3,)), T((4, 5), "int8", scale=(0.4,), zero=(7,))
    assert_same(one("FULLY_CONNECTED", [x, w, bias], [y], "FullyConnectedOptions", FusedActivationFunction=0))


@pytest.mark.exhaustive
@pytest.mark.parametrize("left, right", [(False, False), (True, False), (False, True)])
def test_products(left, right):
    shapes = [(2, 5, 3) if left else (2, 3, 5), (2, 4, 5) if right else (2, 5, 4)]
    fields = {"AdjX": left, "AdjY": right}
    assert_same(one("BATCH_MATMUL", [T(s) for s in shapes], [T((2, 3, 4))], "BatchMatMulOptions", **fields))


def test_images_stay_channels_first_between_convolutions():
    """Two convolutions, a sum of both and a mean: one transpose at the entry."""
    one_by_one = {"Padding": 0, "StrideH": 1, "StrideW": 1}
    x, w = T((1, 8, 8, 3)), [weights(3, 3, 3, 3), weights(3, 3, 3, 3), weights(3)]
    calls = [
        Call("CONV_2D", (0, 1, 3), (4,), "Conv2DOptions", one_by_one),
        Call("CONV_2D", (4, 2, 3), (5,), "Conv2DOptions", one_by_one),
        Call("ADD", (4, 5), (6,), "AddOptions", {"FusedActivationFunction": 1}),
        Call("MEAN", (6, 7), (8,), "ReducerOptions", {"KeepDims": False}),
    ]
    image = T((1, 8, 8, 3))
    tensors = [x, *w, image, image, image, const(np.array([1, 2], "int32")), T((1, 3))]
    data = file(tensors, calls, [0], [8])
    assert_same(data)
    kinds = [node.op_type for node in to_onnx(read_program(data, "")).graph.node]
    assert kinds.count("Transpose") == 1
