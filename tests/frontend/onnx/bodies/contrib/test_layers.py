"""ONNX Runtime's layers for devices written out: against ONNX Runtime, or NumPy where its CPU lacks them."""

import math

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import contrib_model, operators, run_onnxruntime, text_model

RANDOM = np.random.default_rng(0)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def fast_gelu(x):
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def ours(kind, values, attributes, results=1):
    model, inputs = contrib_model(kind, values, attributes, given=(0,), results=results)
    return run_onnxruntime(import_onnx(model).onnx_model, inputs)


SHORT = (floats(2, 6, 5), floats(6, 1, 4), floats(6), floats(2, 6, 3))
WINDOW = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
CASES = {
    "short convolution": ("CausalConvWithState", SHORT, {"activation": "silu"}, 2),
    "first steps": ("CausalConvWithState", SHORT[:2], {"dilation": 2}, 2),
    "gated norm": ("GatedRMSNorm", (floats(2, 5, 16), floats(8), floats(2, 5, 16)), {}, 1),
    "gate": ("GatedRMSNorm", (floats(2, 16), floats(16), floats(2, 16)), {"activation": "sigmoid"}, 1),
    "triangle": ("Trilu", (floats(3, 4),), {"upper": 0}, 1),
    "turned product": ("TransposeMatMul", (floats(2, 4, 3), floats(2, 4, 5)), {"transA": 1, "alpha": 0.5}, 1),
    "distances": ("CDist", (floats(4, 3), floats(6, 3)), {"metric": "euclidean"}, 1),
    "squares": ("CDist", (floats(4, 3), floats(6, 3)), {"metric": "sqeuclidean"}, 1),
    "padding": ("Pad", (floats(2, 3), np.array([0, 1, 2, 1]), np.float32(3)), {}, 1),
    "matrix of padding": ("Pad", (floats(2, 3), np.array([[0, 1, 0, 2]])), {"mode": "reflect"}, 1),
    "new axis": ("ExpandDims", (floats(2, 3), np.array(1, np.int32)), {}, 1),
    "new last axis": ("ExpandDims", (floats(2, 3), np.array(-1, np.int32)), {}, 1),
    "windows": ("UnfoldTensor", (floats(2, 7, 3),), {"dim": 1, "size": 3, "step": 2}, 1),
    "last windows": ("UnfoldTensor", (floats(2, 7),), {"size": 4}, 1),
    "grid": ("GridSample", (floats(1, 2, 4, 5), floats(1, 3, 3, 2)), {"align_corners": 1}, 1),
    "points": ("GatherND", (floats(3, 4, 2), np.array([[0, 1], [2, 3]])), {}, 1),
    "turned batches": ("FusedMatMul", (floats(4, 2, 3, 5), floats(2, 3, 5, 6)), {"transBatchA": 1}, 1),
    "all turned": (
        "FusedMatMul",
        (floats(5, 2, 4), floats(6, 2, 5)),
        {"transBatchA": 1, "transA": 1, "transBatchB": 1, "transB": 1},
        1,
    ),
    "pooling": ("NhwcMaxPool", (RANDOM.integers(-128, 128, (1, 8, 9, 3)).astype(np.int8),), WINDOW, 1),
}


STEPS = {
    "rows": (np.array([1], np.float32), np.array([4], np.float32), np.array([0.5], np.float32)),
    "scalars": (np.int64(7), np.int64(2), np.int64(-2)),
    "by 1": (np.int32(2), np.array([5], np.int32)),
}


@pytest.mark.parametrize("values", STEPS.values(), ids=STEPS.keys())
def test_range(values):
    model, inputs = contrib_model("Range", values, {}, given=(0,))
    have = run_onnxruntime(import_onnx(model, values=inputs).onnx_model, {})[0]
    want = run_onnxruntime(model, inputs)[0]
    assert have.dtype == want.dtype
    np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("kind, values, attributes, results", CASES.values(), ids=CASES.keys())
def test_numbers(kind, values, attributes, results):
    model, inputs = contrib_model(kind, values, attributes, given=(0,), results=results)
    expected = run_onnxruntime(model, inputs)
    for have, want in zip(ours(kind, values, attributes, results), expected, strict=True):
        assert have.shape == want.shape and have.dtype == want.dtype
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("last", [0, 1])
def test_norms_of_groups_of_channels(last, activation):
    x, skip, bias, gamma, beta = floats(2, 8, 4, 5), floats(2, 8, 4, 5), floats(8), floats(8), floats(8)

    def norm(image):
        rows = image.astype(np.float64).reshape(2, 4, -1)
        rows = (rows - rows.mean(2, keepdims=True)) / np.sqrt(rows.var(2, keepdims=True) + 1e-5)
        y = rows.reshape(image.shape) * gamma[:, None, None] + beta[:, None, None]
        return silu(y) if activation else y

    def turned(image):
        return np.ascontiguousarray(image.transpose(0, 2, 3, 1)) if last else image

    options = {"groups": 4, "activation": activation, "channels_last": last}
    (y,) = ours("GroupNorm", (turned(x), gamma, beta), options)
    np.testing.assert_allclose(y, turned(norm(x)), rtol=1e-4, atol=1e-5)
    if last:
        y, total = ours("SkipGroupNorm", (turned(x), gamma, beta, turned(skip), bias), options, 2)
        added = x + skip + bias[:, None, None]
        np.testing.assert_allclose(total, turned(added), rtol=1e-6)
        np.testing.assert_allclose(y, turned(norm(added)), rtol=1e-4, atol=1e-5)


def test_short_convolutions_with_a_state_in_another_layout_are_refused():
    with pytest.raises(UnsupportedOperatorError, match="has state_channels_last=1"):
        ours("CausalConvWithState", SHORT, {"state_channels_last": 1}, 2)


def test_biases():
    x, bias, more = floats(2, 5, 16), floats(16), floats(2, 5, 16)
    (y,) = ours("BiasAdd", (x, bias, more), {})
    np.testing.assert_allclose(y, x + bias + more, rtol=1e-6)
    (y,) = ours("BiasSplitGelu", (x, bias), {})
    np.testing.assert_allclose(y, (x + bias)[..., :8] * gelu((x + bias)[..., 8:]), rtol=1e-5, atol=1e-6)
    (y,) = ours("BiasSoftmax", (x, more[:, :1]), {"axis": 2, "is_inner_broadcast": 1})
    powers = np.exp(x + more[:, :1])
    np.testing.assert_allclose(y, powers / powers.sum(2, keepdims=True), rtol=1e-5)
    weight = floats(16, 4)
    (y,) = ours("GemmFastGelu", (x, weight, bias[:4]), {})
    np.testing.assert_allclose(y, fast_gelu(x @ weight + bias[:4]), rtol=1e-4, atol=1e-5)
    with pytest.raises(UnsupportedOperatorError, match="has axis=1"):
        ours("BiasSoftmax", (x, more), {"axis": 1})


def test_convolutions_with_channels_last():
    x, weight, bias = floats(1, 6, 7, 3), floats(4, 3, 3, 3), floats(4)
    (y,) = ours("NhwcConv", (x, weight, bias), {"pads": [1, 1, 1, 1]})
    plain, inputs = contrib_model(
        "Conv",
        (x.transpose(0, 3, 1, 2).copy(), weight.transpose(0, 3, 1, 2).copy(), bias),
        {"pads": [1, 1, 1, 1]},
        given=(0,),
        domain="",
    )
    np.testing.assert_allclose(
        y.transpose(0, 3, 1, 2), run_onnxruntime(plain, inputs)[0], rtol=1e-5, atol=1e-5
    )


def test_files_that_onnxruntime_put_into_channels_last(tmp_path):
    """With all its optimisations on, ONNX Runtime saves quantised convolutions as operators of its own."""
    weights, nodes = [], []

    def value(name, array):
        weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    scale, zero = value("scale", np.float32(0.05)), value("zero", np.uint8(128))
    x = "x"
    for n, inner in enumerate((3, 8)):
        kernel = RANDOM.integers(-60, 60, (8, inner, 3, 3)).astype(np.int8)
        w = [value(f"w{n}", kernel), value(f"s{n}", np.float32(0.01)), value(f"z{n}", np.int8(0))]
        nodes.append(
            helper.make_node("QLinearConv", [x, scale, zero, *w, scale, zero], [f"y{n}"], pads=[1] * 4)
        )
        nodes.append(helper.make_node("MaxPool", [f"y{n}"], [f"p{n}"], kernel_shape=[2, 2], strides=[2, 2]))
        x = f"p{n}"
    given = helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, [1, 3, 16, 16])
    result = helper.make_tensor_value_info(x, onnx.TensorProto.UINT8, None)
    graph = helper.make_graph(nodes, "quantised", [given], [result], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    saved = onnx.load(options.optimized_model_filepath)
    image = {"x": RANDOM.integers(0, 256, (1, 3, 16, 16)).astype(np.uint8)}
    imported = import_onnx(saved)
    assert "NhwcMaxPool" not in operators(imported)
    (got,) = run_onnxruntime(imported.onnx_model, image)
    assert np.abs(got.astype(int) - run_onnxruntime(model, image)[0].astype(int)).max() <= 1
    assert {n.domain for n in saved.graph.node} >= {"com.microsoft"}


def test_distances_of_far_rows_keep_their_digits():
    """Squares of numbers around 1,000 would leave none of the distances between them."""
    x, y = floats(4, 3) + 1000, floats(6, 3) + 1000
    want = np.sqrt(((x[:, None].astype(float) - y) ** 2).sum(-1))
    (found,) = ours("CDist", (x, y), {"metric": "euclidean"})
    np.testing.assert_allclose(found, want, rtol=1e-3)


@pytest.mark.thorough
def test_values_once():
    source = text_model(
        "g (float[9] x) => (float[N] u, int64[9] i, int64[N] c) { u, i, c = com.microsoft.Unique(x) }"
    )
    source.opset_import.add(domain="com.microsoft", version=1)
    inputs = {"x": np.array([3, 1, 2, 3, 3, 0, 1, 2, 9], np.float32)}
    results = build_model(optimize_model(import_model(source)), use_shipped=False).run(inputs)
    for result, wanted in zip(results, run_onnxruntime(source, inputs), strict=True):
        np.testing.assert_array_equal(result, wanted)
