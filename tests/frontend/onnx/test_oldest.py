"""Models of opsets before 7, beside ONNX Runtime on the same in newer words."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import run_tvm
from tests.selection import thorough

RNG = np.random.default_rng(0)
X = RNG.uniform(0.2, 2, (3, 3, 4, 5)).astype(np.float32)
STATES = {"w": RNG.standard_normal((1, 12, 5)), "r": RNG.standard_normal((1, 12, 3))}
GATES = {"w": RNG.standard_normal((1, 9, 5)), "r": RNG.standard_normal((1, 9, 3))}
SEQUENCE = RNG.standard_normal((4, 2, 5)).astype(np.float32)


def model(opset, node, x, constants):
    """One node with an input and constants, and results of any shape."""
    kind, attributes = node
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    inputs = [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)]
    logical = kind in ("And", "Or", "Xor", "Less", "Greater", "Equal")
    element = TensorProto.BOOL if logical else TensorProto.FLOAT
    element = attributes.pop("result", element)
    made = helper.make_node(kind, ["x", *constants], ["y"], kind, **attributes)
    outputs = [helper.make_tensor_value_info("y", element, None)]
    graph = helper.make_graph([made], "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def agree(x, old, new, constants=None, new_constants=None, opset=1):
    """The import of a node of an old opset computes what ONNX Runtime does by one of opset 13."""
    floats = {
        name: value.astype(np.float32) if value.dtype == np.float64 else value
        for name, value in (constants or {}).items()
    }
    newer = model(13, new, x, floats if new_constants is None else new_constants)
    session = onnxruntime.InferenceSession(newer.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    (result,) = run_tvm(import_onnx(model(opset, old, x, floats)), {"x": x})
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "extents, axis",
    [((3,), 1), *thorough([((3,), -3)]), ((3, 4), 1), *thorough([((5,), 3)]), ((4, 5), None), ((3, 1), 1)],
)
@pytest.mark.parametrize("kind", ["Add", "Less"])
@pytest.mark.parametrize("batch", [1, 3])  # equal to the channels, and as ONNX's converter lets pass
def test_second_operands_are_spread_from_their_axis_on(kind, extents, axis, batch):
    b = RNG.uniform(0.5, 2, extents)
    spread = b if axis is None else b.reshape(b.shape + (1,) * (4 - axis % 4 - b.ndim))
    said = {"broadcast": 1} if axis is None else {"broadcast": 1, "axis": axis}
    new = {"b": spread.astype(np.float32)}
    agree(X[:batch], (kind, said), (kind, {}), {"b": b}, new, opset=6 if kind == "Add" else 1)


def test_truth_values_are_spread():
    new = {"b": np.array([True, False, True]).reshape(3, 1, 1)}
    agree(X > 1, ("And", {"broadcast": 1, "axis": 1}), ("And", {}), {"b": new["b"].reshape(3)}, new)


def test_several_in_a_row():
    """Ranks are known behind operators of which ONNX infers no shapes."""
    b = helper.make_tensor("b", TensorProto.FLOAT, [3], [1, 2, 3])
    nodes = [
        helper.make_node("Mul", ["x", "b"], ["p"], broadcast=1, axis=1),
        helper.make_node("Add", ["p", "b"], ["q"], broadcast=1, axis=1),
        helper.make_node("PRelu", ["q", "b"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 4, 5]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [b])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 5)], ir_version=8)
    factors = np.float32([1, 2, 3]).reshape(3, 1, 1)
    for x in (X[:1], -X[:1]):
        y = x * factors + factors
        (result,) = run_tvm(import_onnx(source), {"x": x})
        np.testing.assert_allclose(result, np.where(y < 0, y * factors, y), rtol=1e-6)


FORMS = {
    "Cast": (X, ("Cast", {"to": "INT64", "result": TensorProto.INT64}), ("Cast", {"to": 7, "result": 7})),
    "Pad": (
        X,
        ("Pad", {"paddings": [0, 0, 1, 2, 0, 0, 3, 1]}),
        ("Pad", {}),
        {},
        {"p": np.array([0, 0, 1, 2, 0, 0, 3, 1])},
    ),
    "Reshape": (X, ("Reshape", {"shape": [0, -1, 5]}), ("Reshape", {}), {}, {"s": np.array([0, -1, 5])}),
    "Tile": (
        X,
        ("Tile", {}),
        ("Tile", {}),
        {"n": np.float32(2), "axis": np.float32(1)},
        {"n": np.array([1, 2, 1, 1])},
    ),
    "Upsample": (
        X,
        ("Upsample", {"height_scale": 3.0, "width_scale": 2.0}),
        ("Resize", {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
        {},
        {"roi": np.zeros(0, np.float32), "scales": np.float32([1, 1, 3, 2])},
    ),
    "Upsample, bilinear": (
        X,
        ("Upsample", {"height_scale": 3.0, "width_scale": 2.0, "mode": "bilinear"}),
        ("Resize", {"coordinate_transformation_mode": "asymmetric", "mode": "linear"}),
        {},
        {"roi": np.zeros(0, np.float32), "scales": np.float32([1, 1, 3, 2])},
    ),
    "Selu": (X - 1, ("Selu", {}), ("Selu", {"alpha": 1.6732, "gamma": 1.0507})),
    "GlobalLpPool": (X, ("GlobalLpPool", {"p": 3.0}), ("GlobalLpPool", {"p": 3})),
    "AveragePool": (
        X,
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ),
    "Dropout": (X, ("Dropout", {"is_test": 1, "consumed_inputs": [0]}), ("Dropout", {})),
    "Hardmax": (X[:, :, :1, 0], ("Hardmax", {}), ("Hardmax", {"axis": 1})),
    "LSTM": (
        SEQUENCE,
        ("LSTM", {"hidden_size": 3, "output_sequence": 1}),
        ("LSTM", {"hidden_size": 3}),
        STATES,
    ),
    "GRU": (SEQUENCE, ("GRU", {"hidden_size": 3, "output_sequence": 1}), ("GRU", {"hidden_size": 3}), GATES),
    "Gemm": (
        X[0, 0],
        ("Gemm", {"broadcast": 1, "transB": 1}),
        ("Gemm", {"transB": 1}),
        {"w": X[0, 1], "b": X[0, 0, :, 0]},
    ),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_forms_that_opset_7_has_no_more(form):
    agree(*form)


def test_a_norm_of_features_of_their_own():
    norms = {name: RNG.uniform(0.5, 2, (3, 4, 5)) for name in "sbmv"}
    x = X[:2]
    (result,) = run_tvm(
        import_onnx(
            model(
                7,
                ("BatchNormalization", {"spatial": 0}),
                x,
                {n: a.astype(np.float32) for n, a in norms.items()},
            )
        ),
        {"x": x},
    )
    s, b, m, v = norms.values()
    np.testing.assert_allclose(result, (x - m) / np.sqrt(v + 1e-5) * s + b, rtol=1e-4, atol=1e-5)


def test_what_no_constant_settles_is_refused():
    graph = helper.make_graph(
        [helper.make_node("Tile", ["x", "n", "a"], ["y"], "tile")],
        "g",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in (("x", [2]), ("n", []), ("a", []))
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 1)], ir_version=8)
    with pytest.raises(UnsupportedOperatorError, match="'tile' .Tile. has no constant as operand 2"):
        import_onnx(source)


@pytest.mark.parametrize("attributes", [{}, {"ratio": 0.3, "is_test": 0}])
def test_a_dropout_that_trains_is_refused(attributes):
    with pytest.raises(UnsupportedOperatorError, match="training mode"):
        import_onnx(model(6, ("Dropout", attributes), X, {}))


def test_models_of_other_domains_alone():
    """They name no opset of ONNX's own; ONNX Runtime takes them."""
    graph = helper.make_graph(
        [helper.make_node("FastGelu", ["x"], ["y"], domain="com.microsoft")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("com.microsoft", 1)], ir_version=8)
    x = np.array([-1, 0.5, 3], np.float32)
    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = run_tvm(import_onnx(source), {"x": x})
    np.testing.assert_allclose(y, session.run(None, {"x": x})[0], rtol=1e-4)
    graph.node[0].op_type, graph.node[0].domain = "Adam", "ai.onnx.preview.training"
    source = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("ai.onnx.preview.training", 1)], ir_version=8
    )
    with pytest.raises(UnsupportedOperatorError, match="no importer"):
        import_onnx(source)
