"""Operators on elements compute what LiteRT computes."""

import numpy as np
import pytest

pytest.importorskip("tflite")
pytest.importorskip("ai_edge_litert")

from hetero_tvm.frontend.tflite.load import read_program  # noqa: E402
from hetero_tvm.frontend.tflite.translation import to_onnx  # noqa: E402
from tests.frontend.tflite.judge import assert_same  # noqa: E402
from tests.frontend.tflite.written import Call, T, const, file, one  # noqa: E402

X, ROW = (2, 3, 4, 5), (5,)
FUNCTIONS = """ABS NEG EXP SIN COS FLOOR CEIL LOGISTIC TANH RELU RELU6 RELU_N1_TO_1 SQUARE ELU
    HARD_SWISH ROUND"""
Q8 = {"dtype": "int8", "scale": (0.05,), "zero": (3,)}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", FUNCTIONS.split())
def test_of_one_operand(kind):
    assert_same(one(kind, [T(X)], [T(X)]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["LOG", "SQRT", "RSQRT"])
def test_of_positive_numbers(kind):
    calls = [Call("EXP", (0,), (1,)), Call(kind, (1,), (2,))]
    assert_same(file([T(X), T(X), T(X)], calls, [0], [2]))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "kind, options, fields",
    [("GELU", "GeluOptions", {"Approximate": True}), ("GELU", "GeluOptions", {"Approximate": False}),
     ("LEAKY_RELU", "LeakyReluOptions", {"Alpha": 0.2}), ("SOFTMAX", "SoftmaxOptions", {"Beta": 0.5}),
     ("LOG_SOFTMAX", "", {}), ("L2_NORMALIZATION", "", {})],
)  # fmt: skip
def test_with_options(kind, options, fields):
    assert_same(one(kind, [T(X)], [T(X)], options, **fields))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "kind", "ADD SUB MUL DIV MAXIMUM MINIMUM SQUARED_DIFFERENCE FLOOR_DIV FLOOR_MOD".split()
)
@pytest.mark.parametrize("other", [X, ROW, ()])
def test_of_two_operands(kind, other):
    constant = const(np.random.default_rng(2).uniform(0.5, 2, other).astype("float32"))
    assert_same(one(kind, [T(X), constant], [T(X)]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("activation", [1, 2, 3])
def test_activation_behind_a_sum(activation):
    assert_same(one("ADD", [T(X), T(X)], [T(X)], "AddOptions", FusedActivationFunction=activation))


@pytest.mark.parametrize("kind", "EQUAL NOT_EQUAL GREATER GREATER_EQUAL LESS LESS_EQUAL".split())
def test_comparisons(kind):
    assert_same(one(kind, [T(X, "int32"), T(ROW, "int32")], [T(X, "bool")]), low=0, high=3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["FLOOR_DIV", "FLOOR_MOD", "ADD", "MUL"])
def test_whole_numbers(kind):
    divisors = const(np.array([-3, -2, 1, 2, 5], "int32"))
    assert_same(one(kind, [T(X, "int32"), divisors], [T(X, "int32")]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["LOGICAL_AND", "LOGICAL_OR"])
def test_booleans(kind):
    assert_same(one(kind, [T(X, "bool"), T(X, "bool")], [T(X, "bool")]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"])
@pytest.mark.parametrize("axes, keep", [((1, 2), True), ((1, 2), False), ((-1,), False)])
def test_reductions(kind, axes, keep):
    shape = np.zeros(X).sum(axes, keepdims=keep).shape
    axes = const(np.array(axes, "int32"))
    assert_same(one(kind, [T(X), axes], [T(shape)], "ReducerOptions", KeepDims=keep))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind, options", [("ARG_MAX", "ArgMaxOptions"), ("ARG_MIN", "ArgMinOptions")])
def test_places_of_extrema(kind, options):
    result = T((2, 3, 5), "int64")
    assert_same(one(kind, [T(X), const(np.int32(2))], [result], options, OutputType=4))


def test_running_sums_and_choices():
    assert_same(
        one("CUMSUM", [T(X), const(np.int32(1))], [T(X)], "CumsumOptions", Exclusive=True, Reverse=True)
    )
    assert_same(one("SELECT_V2", [T(X, "bool"), T(X), T(ROW)], [T(X)]))
    assert_same(one("PRELU", [T(X), const(np.full((1, 1, 5), 0.3, "float32"))], [T(X)]))
    assert_same(one("CAST", [T(X)], [T(X, "int32")]))


@pytest.mark.parametrize("kind", ["ADD", "SUB", "MUL", "MAXIMUM"])
def test_quantised_pairs(kind):
    other = T(X, "int8", scale=(0.03,), zero=(-20,))
    other = T(X, **Q8) if kind == "MAXIMUM" else other
    result = T(X, **Q8) if kind == "MAXIMUM" else T(X, "int8", scale=(0.1,), zero=(-5,))
    assert_same(one(kind, [T(X, **Q8), other], [result]))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "kind, scale, zero", [("LOGISTIC", 1 / 256, -128), ("TANH", 1 / 128, 0), ("SOFTMAX", 1 / 256, -128)]
)
def test_quantised_functions(kind, scale, zero):
    options = {"options": "SoftmaxOptions", "Beta": 1.0} if kind == "SOFTMAX" else {}
    assert_same(one(kind, [T((4, 10), **Q8)], [T((4, 10), "int8", scale=(scale,), zero=(zero,))], **options))


def test_quantisers():
    coarse = T(X, "int8", scale=(0.02,), zero=(-7,))
    assert_same(one("QUANTIZE", [T(X)], [coarse]))
    assert_same(one("QUANTIZE", [T(X, **Q8)], [coarse]))
    assert_same(one("DEQUANTIZE", [T(X, **Q8)], [T(X)]))


def test_a_norm_as_keras_writes_it_is_one_product():
    """x * r + (-m) * r is written as (x - m) * r."""
    column = (2, 3, 4, 1)
    calls = [Call("NEG", (1,), (3,)), Call("MUL", (0, 2), (4,)), Call("MUL", (3, 2), (5,)),
             Call("ADD", (4, 5), (6,))]  # fmt: skip
    tensors = [T(X), T(column), T(column), T(column), T(X), T(column), T(X)]
    data = file(tensors, calls, [0, 1, 2], [6])
    assert_same(data)
    kinds = [node.op_type for node in to_onnx(read_program(data, "")).graph.node]
    assert "Sub" in kinds and "Add" not in kinds


def test_a_norm_with_a_shift():
    """x * r + (beta - m * r) is written as (x - m) * r + beta."""
    column = (2, 3, 4, 1)
    calls = [Call("MUL", (0, 2), (4,)), Call("MUL", (1, 2), (5,)), Call("SUB", (3, 5), (6,)),
             Call("ADD", (6, 4), (7,))]  # fmt: skip
    beta = const(np.arange(5, dtype="float32"))
    data = file([T(X), T(column), T(column), beta, T(X), T(column), T(X), T(X)], calls, [0, 1, 2], [7])
    assert_same(data)
    nodes = {node.output[0]: node for node in to_onnx(read_program(data, "")).graph.node}
    (last,) = [node for node in nodes.values() if node.op_type == "Add"]
    assert nodes[nodes[last.input[0]].input[0]].op_type == "Sub"


@pytest.mark.parametrize("signs", [(1, 1), (-1, 1), (1, -1), (-1, -1)])
def test_angles(signs):
    y, x = (const(sign * np.array([0, 1, 0, 2, 0.5], "float32")[order]) for sign, order in
            zip(signs, ([0, 1, 1, 3, 4], [1, 0, 0, 4, 3]), strict=True))  # fmt: skip
    assert_same(one("ATAN2", [T(ROW), x], [T(ROW)]))
    calls = [Call("ADD", (0, 2), (3,), "AddOptions"), Call("ATAN2", (3, 1), (4,))]
    assert_same(file([y, x, T(ROW), T(ROW), T(ROW)], calls, [2], [4]))


def test_bits():
    mask = const(np.array([1, 7, -3, 100, 0], "int32"))
    assert_same(one("BITWISE_XOR", [T(X, "int32"), mask], [T(X, "int32")]))
    places = const(np.array([0, 1, 2, 5, 31], "int32"))
    assert_same(one("RIGHT_SHIFT", [T(X, "int32"), places], [T(X, "int32")]))
