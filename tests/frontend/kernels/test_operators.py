"""Each operator of kernel descriptions: its ONNX nodes compute what NumPy says it means."""

import numpy as np
import onnxruntime
import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend.kernels.description import parse_description
from hetero_tvm.frontend.kernels.importer import NumpyKernel, to_onnx
from hetero_tvm.frontend.kernels.operators import OPERATORS
from tests.frontend.kernels.helpers import single

A, B, C = (3, 1, 5), (4, 1), (3, 4, 5)
COMPARISONS = ("Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "NotEqual")
FUNCTIONS = (
    "Abs Ceil Cos Erf Exp Floor Log Neg Reciprocal ReLU Relu Round Rsqrt Sigmoid Sign Sin Sqrt Square Tanh"
)
ARITHMETIC = ("Add", "Sub", "Mul", "RealDiv", "Div", "Maximum", "Minimum", "Pow")
CASES = [
    *(single(kind, [C], C) for kind in FUNCTIONS.split()),
    *(single(kind, [A, B], C) for kind in ARITHMETIC),
    *(single(kind, [A, B], C, to="bool") for kind in COMPARISONS),
    *(single(kind, [A, B], C, "bool") for kind in ("LogicalAnd", "LogicalOr")),
    single("LogicalNot", [C], C, "bool"),
    single("Select", [B, A, C], C, ["bool", "float32", "float32"], "float32"),
    *(single(f"Reduce{kind}", [C], (3, 5), axis=[1]) for kind in ("Sum", "Max", "Min", "Mean", "Prod")),
    single("ReduceSum", [C], (3, 1, 1), axis=[-1, 1], keep_dims=True),
    single("ReduceMax", [C], (), axis=[], keep_dims=False),
    single("ReduceSum", [C], (1,), axis=[0, 1, 2], keep_dims=False),
    single("ReduceSum", [C], (4, 5), "int32", axis=0),
    single("AddN", [C, C, C], C),
    single("Reshape", [C], (15, 4)),
    single("ExpandDims", [C], (3, 1, 4, 5), axis=1),
    single("Squeeze", [A], (3, 5), axis=[1]),
    single("BroadcastTo", [A], C, shape=list(C)),
    single("Transpose", [C], (5, 3, 4), perm=[2, 0, 1]),
    single("Cast", [C], C, to="int32", dst_type="int32"),
    single("Cast", [C], C, "int32", to="float32"),
    single("MatMul", [(3, 7), (7, 5)], (3, 5)),
    single("MatMul", [(7, 3), (5, 7), (5,)], (3, 5), transpose_a=True, transpose_b=True),
    single("BatchMatMul", [(2, 1, 3, 7), (4, 5, 7)], (2, 4, 3, 5), transpose_b=True),
    single("Concat", [C, (3, 2, 5)], (3, 6, 5), axis=1),
    single("Gather", [C, (6,)], (3, 6, 5), ["float32", "int32"], axis=1),
    single("StridedSlice", [C], (2, 2, 5), begin=[1, 0], end=[3, 4], strides=[1, 2]),
    single("Slice", [C], (1, 3, 5), begin=[2, 1, 0], size=[1, 3, -1]),
    single("Tile", [C], (3, 8, 15), multiples=[1, 2, 3]),
]


def test_every_operator_is_tried():
    assert {case["op_desc"][0]["name"] for case in CASES} == set(OPERATORS)


@pytest.mark.parametrize(
    ("axis", "said"),
    [([3], "outside of 3"), ([1, -2], "one twice"), ("x", "whole numbers"), (True, "whole numbers")],
)
def test_axes_that_are_none_are_refused_by_their_operator(axis, said):
    with pytest.raises(ModelError, match=rf"\$\.op_desc\[0\]: ReduceSum: axis .*{said}"):
        to_onnx(parse_description(single("ReduceSum", [C], (3, 5), axis=axis)))


@pytest.mark.parametrize(
    "case",
    [
        single("ReduceSum", [C], (3, 1, 5), axis=[1], keep_dims="yes"),
        single("ReduceMax", [C], (3, 5), axis=[1], keepdims="False"),
        single("MatMul", [(3, 7), (7, 5)], (3, 5), transpose_a="false"),
        single("BatchMatMul", [(3, 7), (5, 7)], (3, 5), transpose_b=[True]),
    ],
)
def test_what_is_neither_true_nor_false_is_refused_by_its_operator(case):
    (said,) = (one["name"] for one in case["op_desc"][0]["attr"] if one["name"] != "axis")
    with pytest.raises(ModelError, match=rf"\$\.op_desc\[0\]: .*: {said} .* neither true nor false"):
        to_onnx(parse_description(case))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["op"])
def test_what_is_built_computes_what_is_meant(case):
    """Tolerance: 16 units of float32: the two libraries approximate functions differently."""
    description = parse_description(case)
    model = to_onnx(description)
    rng = np.random.default_rng()
    inputs = {}
    for tensor in description.inputs:
        kind = np.dtype(tensor.dtype).kind
        drawn = rng.uniform(0.2, 3, tensor.shape) if kind == "f" else rng.integers(0, 2, tensor.shape)
        inputs[tensor.name] = np.asarray(drawn).astype(tensor.dtype)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (actual,) = session.run(None, inputs)
    (expected,) = NumpyKernel(description, model).run(inputs)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=1e-6)
