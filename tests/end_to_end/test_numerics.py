"""Special values on every target, row by row of docs/numerics.md."""

import functools
import math
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from hetero_tvm.api import build_model, import_model, optimize_model
from tests.frontend.onnx.helpers import FLOAT, add_weight
from tests.targets.cuda.fixtures import emulated  # noqa: F401

NAN, INF = np.nan, np.inf
LEAST = float(np.finfo(np.float32).min)
RNG = np.random.default_rng(0)
# The first row is of numbers; each other one has what its place says.
X = RNG.standard_normal((9, 40)).astype(np.float32)
X[1, 0] = X[2, 39] = X[3, 7] = NAN
X[3, 3] = X[4, 5] = INF
X[5], X[6], X[7] = -INF, INF, NAN
X[8] = 3.0
Z = np.where(np.arange(X.size).reshape(X.shape) % 11 == 0, NAN, 0.5).astype(np.float32)
IMAGE = RNG.standard_normal((1, 8, 9, 9)).astype(np.float32)
IMAGE[0, 1, 4, 4], IMAGE[0, 2, 2, 3], IMAGE[0, 3], IMAGE[0, 4, 0, 0] = NAN, INF, -INF, NAN
KERNEL = (RNG.standard_normal((8, 8, 3, 3)) / 8).astype(np.float32)
WEIGHT = (RNG.standard_normal((40, 24)) / 8).astype(np.float32)
Q, K, V = (RNG.standard_normal((1, 2, n, 16)).astype(np.float32) for n in (6, 7, 7))
MASK = np.zeros((1, 1, 6, 7), np.float32)
MASK[..., 1, :3] = MASK[..., 2, :] = -INF
MASK[..., 4, 2] = NAN
A = np.array([-(2**31), -(2**31), 7, -7, 5], np.int32)
B = np.array([-1, 3, -2, 2, 1], np.int32)
DIVISORS = np.array([0, -1, 0, 2, 3], np.int32)


def windows(x, size, stride):
    view = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))
    return view[:, :, ::stride, ::stride].max((-1, -2))


def convolved(x):
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    view = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return np.einsum("nchwij,ocij->nohw", view, KERNEL)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(mask, guarded=False):
    weights = softmax(Q @ K.swapaxes(-1, -2) * 0.25 + mask)
    return np.where(np.isnan(weights), 0, weights) @ V if guarded else weights @ V


def attended(mask, guarded=False):
    """Nodes of an attention."""
    weights = [("IsNaN", ["p"], "t", {}), ("Where", ["t", "zero", "p"], "w", {})] if guarded else []
    return [
        ("Transpose", ["k"], "kt", {"perm": [0, 1, 3, 2]}), ("MatMul", ["q", "kt"], "s", {}),
        ("Mul", ["s", "scale"], "c", {}), ("Add", ["c", mask], "m", {}),
        ("Softmax", ["m"], "p", {"axis": -1}), *weights, ("MatMul", ["w" if guarded else "p", "v"], "y", {}),
    ]  # fmt: skip


def top(x, alike=False):
    """The three greatest of each row; ``alike``: NaN counts as infinity."""
    if alike:
        order = np.argsort(-np.where(np.isnan(x), INF, x), 1, kind="stable")[:, :3]
        return np.take_along_axis(x, order, 1)
    order = np.lexsort((np.broadcast_to(np.arange(x.shape[1]), x.shape), -x, ~np.isnan(x)), axis=1)[:, :3]
    return np.take_along_axis(x, order, 1)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step(kind, *inputs, **attributes):
    """One node, of which ``y`` is the result."""
    return [(kind, list(inputs), "y", attributes)]


GIVEN = {"x": X, "z": Z, "image": IMAGE, "q": Q, "k": K, "v": V, "mask": MASK, "a": A, "b": B, "d": DIVISORS}
GIVEN["hidden"] = np.where(np.isnan(MASK), np.float32(0), MASK)
GIVEN["least"] = np.maximum(GIVEN["hidden"], np.float32(LEAST))
WEIGHTS = {
    "low": -1.0,
    "high": 1.0,
    "zero": 0.0,
    "slope": [0.25],
    "scale": 0.25,
    "kernel": KERNEL,
    "weight": WEIGHT,
}
WEIGHTS = {name: np.array(value, np.float32) for name, value in WEIGHTS.items()}
WEIGHTS |= {"axis": np.array([1]), "three": np.array([3])}
POOL = {"kernel_shape": [3, 3], "strides": [2, 2]}
ROWS = {
    "Relu, Clip, LeakyRelu, PRelu, HardSigmoid": [
        (step("Relu", "x"), lambda: np.maximum(X, 0)),
        (step("Clip", "x", "low", "high"), lambda: np.clip(X, -1, 1)),
        (step("Clip", "x", "low"), lambda: np.maximum(X, -1)),
        (step("LeakyRelu", "x", alpha=0.1), lambda: np.where(X < 0, np.float32(0.1) * X, X)),
        (step("PRelu", "x", "slope"), lambda: np.where(X < 0, np.float32(0.25) * X, X)),
        (step("HardSigmoid", "x"), lambda: np.clip(0.2 * X + 0.5, 0, 1)),
    ],
    "Sigmoid, Tanh, Erf, Softplus, Elu": [
        (step("Sigmoid", "x"), lambda: sigmoid(X)),
        (step("Tanh", "x"), lambda: np.tanh(X)),
        (step("Erf", "x"), lambda: np.vectorize(math.erf)(X)),
        (step("Softplus", "x"), lambda: np.logaddexp(X, 0)),
        (step("Elu", "x"), lambda: np.where(X < 0, np.expm1(X), X)),
    ],
    "Sign, ThresholdedRelu": [
        (step("Sign", "x"), lambda: np.sign(X)),
        (step("ThresholdedRelu", "x", alpha=0.5), lambda: np.where(X > 0.5, X, 0)),
    ],
    "Max, Min": [
        (step("Max", "x", "z"), lambda: np.maximum(X, Z)),
        (step("Min", "z", "x"), lambda: np.minimum(X, Z)),
        (step("Max", "z", "high", "x"), lambda: np.maximum(np.maximum(X, Z), 1)),
    ],
    "ReduceMax, ReduceMin": [
        (step("ReduceMax", "x", axes=[1]), lambda: X.max(1, keepdims=True)),
        (step("ReduceMin", "x", axes=[1]), lambda: X.min(1, keepdims=True)),
        (step("ReduceMax", "x", axes=[0]), lambda: X.max(0, keepdims=True)),
    ],
    "MaxPool, GlobalMaxPool": [
        (step("MaxPool", "image", **POOL), lambda: windows(IMAGE, 3, 2)),
        (step("GlobalMaxPool", "image"), lambda: IMAGE.max((2, 3), keepdims=True)),
    ],
    "ArgMax, ArgMin": [
        (step("ArgMax", "x", axis=1), lambda: X.argmax(1)[:, None]),
        (step("ArgMin", "x", axis=1, keepdims=0), lambda: X.argmin(1)),
        (step("ArgMax", "x", axis=0, keepdims=0), lambda: X.argmax(0)),
        ([("Cast", ["x"], "d", {"to": 11}), *step("ArgMax", "d", axis=1)], lambda: X.argmax(1)[:, None]),
        ([("Cast", ["x"], "d", {"to": 11}), *step("ArgMin", "d", axis=1)], lambda: X.argmin(1)[:, None]),
    ],
    "TopK": [(step("TopK", "x", "three"), lambda: top(X))],
    "Softmax": [(step("Softmax", "x", axis=-1), lambda: softmax(X))],
    "ReduceLogSumExp": [
        (step("ReduceLogSumExp", "x", axes=[1]), lambda: np.logaddexp.reduce(X, 1, keepdims=True)),
    ],
    "Mul by 0": [(step("Mul", "x", "zero"), lambda: X * np.float32(0))],
    "Conv, MatMul with an epilogue": [
        ([("Conv", ["image", "kernel"], "c", {"pads": [1] * 4}), *step("Relu", "c")],
         lambda: np.maximum(convolved(IMAGE), 0)),
        ([("Conv", ["image", "kernel"], "c", {"pads": [1] * 4}), *step("Clip", "c", "low", "high")],
         lambda: np.clip(convolved(IMAGE), -1, 1)),
        ([("MatMul", ["x", "weight"], "c", {}), *step("Relu", "c")], lambda: np.maximum(X @ WEIGHT, 0)),
        ([("MatMul", ["x", "weight"], "c", {}), *step("HardSigmoid", "c")],
         lambda: np.clip(0.2 * (X @ WEIGHT) + 0.5, 0, 1)),
    ],
    "Attention, mask −∞": [(attended("mask"), lambda: attention(MASK))],
    "Attention, mask least number": [(attended("least"), lambda: attention(GIVEN["least"]))],
    "Attention, guarded": [
        (attended("hidden", guarded=True), lambda: attention(GIVEN["hidden"], guarded=True)),
    ],
    "Cast to int32, int64": [],  # below: targets differ
    "Integer Div, Mod": [
        (step("Div", "a", "b"), lambda: np.array([-(2**31), -715827882, -3, -3, 5])),
        (step("Mod", "a", "d"), lambda: np.array([0, 0, 0, 1, 2])),
        (step("Mod", "a", "b", fmod=1), lambda: np.array([0, -2, 1, -1, 0])),
    ],
}  # fmt: skip

ON_NPU = {
    "Attention, mask −∞": lambda: attention(np.maximum(MASK, np.float32(LEAST))),
    "TopK": lambda: top(X, alike=True),
}
"""Rows that differ there: float16 has no number as low as float32's least one, a mask of which is -inf, and
none between its infinity and what stands for NaN."""


@functools.cache
def model() -> onnx.ModelProto:
    """Everything in ``ROWS`` as one model; output names say the row and the case."""
    nodes, outputs = [], []
    for row, cases in ROWS.items():
        for number, (steps, _) in enumerate(cases):
            prefix = f"{row} {number} "
            made = {name for _, _, name, _ in steps}
            for kind, inputs, name, attributes in steps:
                renamed = [prefix + i if i in made else i for i in inputs]
                results = [prefix + name] + ([prefix + "places"] if kind == "TopK" else [])
                nodes.append(helper.make_node(kind, renamed, results, name=prefix + name, **attributes))
            outputs.append(onnx.ValueInfoProto(name=prefix + "y"))
    given = [
        helper.make_tensor_value_info(
            name, FLOAT if a.dtype == np.float32 else onnx.TensorProto.INT32, a.shape
        )
        for name, a in GIVEN.items()
    ]
    graph = helper.make_graph(nodes, "special", given, outputs)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for name, array in WEIGHTS.items():
        add_weight(made, name, array)
    return onnx.shape_inference.infer_shapes(made)


@functools.cache
def results(target: str) -> dict[str, np.ndarray]:
    built = build_model(optimize_model(import_model(model()), target), use_shipped=False)
    return dict(zip([value.name for value in model().graph.output], built.run(GIVEN), strict=True))


@pytest.fixture(params=["cpu", "cuda:sm_80", "npu"])
def target(request):
    if request.param.startswith("cuda"):
        request.getfixturevalue("emulated")
    return request.param


@pytest.mark.thorough
@pytest.mark.parametrize("row", [row for row, cases in ROWS.items() if cases])
def test_row(row, target):
    for number, (steps, reference) in enumerate(ROWS[row]):
        with np.errstate(all="ignore"):
            own = ON_NPU.get(row) if target == "npu" else None
            expected = np.asarray((own or reference)())
        result = results(target)[f"{row} {number} y"]
        assert result.shape == expected.shape
        tolerance = 2e-2 if target == "npu" else 1e-5  # 11 bits
        np.testing.assert_allclose(
            result.astype("f8"), expected.astype("f8"), rtol=tolerance, atol=tolerance, err_msg=str(steps)
        )


def test_casts_of_what_no_integer_is(target):
    x = np.array([NAN, INF, -INF, 1e20, -1e20, 2.7, -2.7], np.float32)
    given = [helper.make_tensor_value_info("x", FLOAT, x.shape)]
    types = {"int32": onnx.TensorProto.INT32, "int64": onnx.TensorProto.INT64}
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], [name], to=number) for name, number in types.items()],
        "casts", given, [helper.make_tensor_value_info(n, t, x.shape) for n, t in types.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    built = build_model(optimize_model(import_model(made), target), use_shipped=False)
    for name, result in zip(types, built.run({"x": x}), strict=True):
        assert result[5:].tolist() == [2, -2]
        if not target.startswith("cuda"):  # the emulation of a GPU is not exact here
            assert result[:5].tolist() == [np.iinfo(name).min] * 5


def test_every_row_of_the_table_is_tested():
    text = (Path(__file__).parents[2] / "docs/numerics.md").read_text()
    table = text[text.index("| row |") : text.index("Powers with")]
    documented = re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)[1:]
    assert documented == list(ROWS)
