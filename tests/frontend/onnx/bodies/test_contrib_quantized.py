"""ONNX Runtime's operators on 8-bit tensors: written out, and equal to ONNX Runtime up to one step."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend import import_model
from hetero_tvm.frontend.onnx.bodies.contrib_quantized import QUANTIZED
from tests.frontend.onnx.helpers import run_tvm

RNG = np.random.default_rng(0)
MS = "com.microsoft"


def f32(*values):
    return np.float32(values if len(values) > 1 else values[0])


def u8(value):
    return np.uint8(value)


X = RNG.integers(0, 256, (2, 3, 5, 6)).astype(np.uint8)
ROWS = RNG.integers(0, 256, (4, 6)).astype(np.uint8)
W = RNG.integers(-60, 61, (6, 5)).astype(np.int8)
BIAS = np.arange(-4000, 6000, 2000, dtype=np.int32)
IN, OUT = (f32(0.05), u8(120)), (f32(0.11), u8(7))
WINDOW = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
MANY = f32(0.01, 0.02, 0.03, 0.04, 0.05)
FLOATS = RNG.standard_normal((4, 6)).astype(np.float32)

# Operator, x, the inputs with x where it stands, attributes, type of the result.
CASES = {
    "add": ("QLinearAdd", X, ["x", *IN, X[:1], f32(0.02), u8(3), *OUT], {}),
    "mul": ("QLinearMul", X, ["x", *IN, "x", *IN, f32(0.4), u8(9)], {}),
    "sigmoid": ("QLinearSigmoid", X, ["x", *IN, f32(1 / 256), u8(0)], {}),
    "leaky relu": ("QLinearLeakyRelu", X, ["x", *IN, *OUT], {"alpha": 0.2}),
    "average": ("QLinearAveragePool", X, ["x", *IN, *OUT], WINDOW),
    "average of all": ("QLinearGlobalAveragePool", X, ["x", *IN, f32(0.02), u8(99)], {}),
    "softmax": ("QLinearSoftmax", X, ["x", *IN, f32(1 / 256), u8(0)], {"axis": -1, "opset": 13}),
    "concat": ("QLinearConcat", X, [*OUT, "x", *IN, X[:, :1], f32(0.03), u8(3)], {"axis": 1}),
    "where": ("QLinearWhere", X, [X[0, 0] > 99, "x", *IN, X[:1], f32(0.03), u8(3), *OUT], {}),
    "gemm": ("QGemm", ROWS, ["x", *IN, W, f32(0.02), np.int8(0), BIAS, f32(0.5), u8(99)], {}),
    "gemm, turned, by column, float": (
        "QGemm",
        ROWS,
        ["x", *IN, np.ascontiguousarray(W.T), MANY, np.zeros(5, np.int8), BIAS],
        {"transB": 1, "alpha": 0.5},
    ),
    "product with scales": ("MatMulIntegerToFloat", ROWS, ["x", W, f32(0.1), MANY, u8(9)], {}),
    "product quantised here": ("DynamicQuantizeMatMul", FLOATS, ["x", W, f32(0.1), np.int8(0)], {}),
    "quantise": ("QuantizeLinear", FLOATS, ["x", f32(0.02), u8(99)], {}),
    "dequantise": ("DequantizeLinear", X, ["x", *IN], {}),
}


FLOATING = ("gemm, turned, by column, float", "product with scales", "product quantised here", "dequantise")


def model_of(cases, shapes=None):
    """One node for each case, with an input and an output of its own."""
    nodes, weights, starts, ends = [], [], [], []
    for name, (kind, x, given, attributes) in cases.items():
        names = [f"{name} x" if isinstance(one, str) else f"{name} {n}" for n, one in enumerate(given)]
        weights += [
            numpy_helper.from_array(np.asarray(one), at)
            for at, one in zip(names, given, strict=True)
            if not isinstance(one, str)
        ]
        nodes.append(helper.make_node(kind, names, [f"{name} y"], name, domain=MS, **attributes))
        dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
        starts.append(helper.make_tensor_value_info(f"{name} x", dtype, x.shape))
        result = TensorProto.FLOAT if name in FLOATING else TensorProto.UINT8
        ends.append(helper.make_tensor_value_info(f"{name} y", result, shapes and shapes[name]))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    graph = helper.make_graph(nodes, "g", starts, ends, weights)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_every_operator_gives_the_numbers_of_onnx_runtime():
    assert set(QUANTIZED) == {kind for kind, *_ in CASES.values()}
    inputs = {f"{name} x": case[1] for name, case in CASES.items()}
    session = onnxruntime.InferenceSession(model_of(CASES).SerializeToString())
    wanted = dict(zip(CASES, session.run(None, inputs), strict=True))
    model = model_of(CASES, {name: array.shape for name, array in wanted.items()})
    results = dict(zip(CASES, run_tvm(import_model(model), inputs), strict=True))
    for name, expected in wanted.items():
        found = results[name]
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
        if expected.dtype == np.float32:
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=name)
        else:
            difference = np.abs(found.astype(int) - expected).max()
            assert difference <= 1 and expected.std() > 1, (name, difference)


def test_channels_last_are_refused():
    kind, x, given, _ = CASES["average of all"]
    model = model_of(
        {"average of all": (kind, x, given, {"channels_last": 1})}, {"average of all": (2, 3, 5, 1)}
    )
    with pytest.raises(UnsupportedOperatorError, match="average of all.*channels_last"):
        import_model(model)
