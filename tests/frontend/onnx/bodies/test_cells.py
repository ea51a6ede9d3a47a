"""Activations of recurrent cells, by name and number, against NumPy."""

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.bodies.cells import CELLS, activations
from hetero_tvm.frontend.onnx.graph.body import Body

X = np.linspace(-3, 3, 25, dtype=np.float32)

# name -> (alpha, beta, value); numbers None where the activation takes none
FORMS = {
    "Relu": (None, None, lambda x: np.maximum(x, 0)),
    "Tanh": (None, None, np.tanh),
    "Sigmoid": (None, None, lambda x: 1 / (1 + np.exp(-x))),
    "Softsign": (None, None, lambda x: x / (1 + np.abs(x))),
    "Softplus": (None, None, lambda x: np.log1p(np.exp(x))),
    "LeakyRelu": (0.3, None, lambda x: np.where(x < 0, 0.3 * x, x)),
    "ThresholdedRelu": (0.7, None, lambda x: np.where(x > 0.7, x, 0)),
    "HardSigmoid": (0.3, 0.4, lambda x: np.clip(0.3 * x + 0.4, 0, 1)),
    "Elu": (0.6, None, lambda x: np.where(x < 0, 0.6 * np.expm1(x), x)),
    "Affine": (0.5, 0.25, lambda x: 0.5 * x + 0.25),
    "ScaledTanh": (1.5, 0.5, lambda x: 1.5 * np.tanh(0.5 * x)),
}


def written(names, **numbers):
    """Values of each activation of one node, evaluated by ONNX."""
    node = helper.make_node("LSTM", ["x"], ["y"], "node", **numbers)
    body = Body(node, 17)
    for n, activate in enumerate(activations(body, names, "float32")):
        body.op("Identity", activate("x"), output=f"y{n}")
    graph = helper.make_graph(
        body.nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, X.shape)],
        [helper.make_tensor_value_info(f"y{n}", 1, X.shape) for n in range(len(names))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return ReferenceEvaluator(model).run(None, {"x": X})


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("spelling", [str, str.lower, str.encode])
def test_one_activation(name, spelling):
    alpha, beta, value = FORMS[name]
    numbers = {"activation_alpha": alpha, "activation_beta": beta}
    given = {key: [number] for key, number in numbers.items() if number is not None}
    (found,) = written([spelling(name)], **given)
    np.testing.assert_allclose(found, value(X), atol=1e-6)


def test_numbers_go_to_those_that_take_some_in_order():
    found = written(
        ["Sigmoid", "HardSigmoid", "Tanh", "LeakyRelu"], activation_alpha=[0.3, 0.3], activation_beta=[0.4]
    )
    for name, values in zip(("Sigmoid", "HardSigmoid", "Tanh", "LeakyRelu"), found, strict=True):
        np.testing.assert_allclose(values, FORMS[name][2](X), atol=1e-6)


def test_without_numbers_the_defaults_hold():
    leaky, hard = written(["LeakyRelu", "HardSigmoid"])
    np.testing.assert_allclose(leaky, np.where(X < 0, 0.01 * X, X), atol=1e-6)
    np.testing.assert_allclose(hard, np.clip(0.2 * X + 0.5, 0, 1), atol=1e-6)


def test_unknown_names_list_the_known_ones():
    with pytest.raises(UnsupportedOperatorError, match="Node 'node' .* activation 'Swish'[\\s\\S]*Softsign"):
        written(["Swish"])


def test_cells_divide_their_gates():
    for kind, (gates, count) in {"RNN": (1, 1), "GRU": (3, 2), "LSTM": (4, 3)}.items():
        cell = CELLS[kind]
        assert cell.gates == gates and len(cell.activations) == count
        for linear in (False, True):
            assert sum(n for _, n in cell.parts(linear)) == gates
