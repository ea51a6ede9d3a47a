"""Recurrence: the reference is PyTorch's layer, and the TensorIR is the reference."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import tvm
from hetero_tvm.ops.base import from_json
from hetero_tvm.ops.loops.recurrence import GATES, Recurrence
from tests.plain import PLAIN

torch = pytest.importorskip("torch")

ORDER = {"lstm": [0, 3, 1, 2], "gru": [1, 0, 2], "rnn_tanh": [0], "rnn_relu": [0]}
"""Places of our gates in PyTorch's weights."""


def results_of(op, *operands):
    """Results of the TensorIR, compiled as it is."""
    function = tvm.compile(tvm.IRModule({"main": op.workload().with_attr("global_symbol", "main")}), PLAIN)
    results = [tvm.runtime.tensor(np.zeros(o.shape, o.dtype)) for o in op.outputs]
    single = (a.astype(np.float32) if a.dtype == np.float64 else a for a in operands)
    function["main"](*map(tvm.runtime.tensor, single), *results)
    return [result.numpy() for result in results]


def all_of(found):
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("cell", [cell for cell in GATES if cell != "gru_before"])
@pytest.mark.parametrize("reverse", [False, True])
def test_reference_and_workload(cell, reverse):
    op = Recurrence(cell, 4, 2, 5, reverse, initial=True)
    generator = np.random.default_rng(0)
    w, r = (generator.standard_normal((GATES[cell], 5, 5)) / 3 for _ in range(2))
    bias, h, c = generator.standard_normal((3, 1, 2, 5)) / 2
    x = generator.standard_normal((4, 2, 5))
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(cell, torch.nn.RNN)
    more = {"nonlinearity": cell[4:]} if cell.startswith("rnn") else {}
    layer = kind(5, 5, **more).double()
    with torch.no_grad():
        by_gate = np.argsort(ORDER[cell])
        layer.weight_ih_l0.copy_(torch.tensor(w[by_gate].reshape(-1, 5)))
        layer.weight_hh_l0.copy_(torch.tensor(r[by_gate].reshape(-1, 5)))
        for value in (layer.bias_ih_l0, layer.bias_hh_l0):
            value.zero_()
        if cell == "gru":
            layer.bias_hh_l0[10:] = torch.tensor(bias[0, 0])
        given = torch.tensor(x[::-1].copy() if reverse else x)
        states = (torch.tensor(h), torch.tensor(c)) if cell == "lstm" else torch.tensor(h)
        wanted, last = layer(given, states)
    wanted = wanted.numpy()[::-1] if reverse else wanted.numpy()
    by_column = [x @ w.reshape(-1, 5).T, r.reshape(-1, 5).T, *([bias[0, 0]] if cell == "gru" else []), h[0]]
    operands = [*by_column, *([c[0]] if cell == "lstm" else [])]
    found = op.reference(*operands)
    if cell == "lstm":
        np.testing.assert_allclose(found[0], last[1][0], atol=1e-12)
    np.testing.assert_allclose(found[1] if cell == "lstm" else found, wanted, atol=1e-12)
    for one, two in zip(results_of(op, *operands), all_of(found), strict=True):
        np.testing.assert_allclose(one, two, atol=2e-6)


@pytest.mark.parametrize("reverse", [False, True])
def test_state_that_is_reset_before_the_product(reverse):
    """The reference is ONNX's own evaluator."""
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    op = Recurrence("gru_before", 4, 2, 5, reverse, initial=True)
    generator = np.random.default_rng(0)
    w, r = generator.standard_normal((2, 1, 15, 5)) / 3
    x, h = generator.standard_normal((4, 2, 5)), generator.standard_normal((1, 2, 5)) / 2
    node = helper.make_node("GRU", ["x", "w", "r", "", "", "h"], ["y"], hidden_size=5, linear_before_reset=0)
    infos = [
        helper.make_tensor_value_info(n, 11, v.shape) for n, v in (("x", x), ("w", w), ("r", r), ("h", h))
    ]
    graph = helper.make_graph([node], "gru", infos, [helper.make_tensor_value_info("y", 11, None)])
    forward = ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    (wanted,) = forward.run(None, {"x": x[::-1].copy() if reverse else x, "w": w, "r": r, "h": h})
    operands = x @ w[0].T, r[0].T, h[0]
    found = op.reference(*operands)
    np.testing.assert_allclose(found[-1][::-1] if reverse else found[-1], wanted[:, 0], atol=1e-12)
    for one, two in zip(results_of(op, *operands), found, strict=True):
        np.testing.assert_allclose(one, two, atol=2e-6)


def test_contract():
    op = Recurrence("lstm", 7, 2, 16, reverse=True)
    assert op.label == "lstm_7x2x16_reverse" and from_json(op.to_json()) == op
    assert [o.name for o in op.inputs] == ["X", "R"] and [o.name for o in op.outputs] == ["C", "Y"]
    assert [o.name for o in Recurrence("gru", 7, 2, 16, initial=True).inputs] == ["X", "R", "bias", "h"]


@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("reverse", [False, True])
def test_sequences_that_end_early(cell, reverse):
    """Each as if it was alone, and zeros behind it."""
    op = Recurrence(cell, 4, 3, 5, reverse, lengths=True)
    assert "lengths" in op.to_json() and "lengths" not in Recurrence(cell, 4, 3, 5).to_json()
    generator = np.random.default_rng(0)
    operands = [generator.standard_normal(o.shape) / 2 for o in op.inputs[:-1]]
    lengths = np.array([4, 0, 2], np.int32)
    found = op.reference(*operands, lengths)
    y = all_of(found)[-1]
    for b, length in enumerate(lengths):
        assert not y[length:, b].any()
        if not length:
            continue
        alone = Recurrence(cell, int(length), 1, 5, reverse)
        expected = alone.reference(operands[0][:length, b : b + 1], *operands[1:])
        np.testing.assert_allclose(y[:length, b : b + 1], all_of(expected)[-1])
        if cell == "lstm":
            np.testing.assert_allclose(found[0][b : b + 1], expected[0])
    for one, two in zip(results_of(op, *operands, lengths), all_of(found), strict=True):
        np.testing.assert_allclose(one, two, atol=2e-6)


@pytest.mark.parametrize("cell", GATES)
def test_kernels_are_judged_by_states_that_forget(cell):
    """Of normal values in R a float32 result has nothing in common with that of float64."""
    op = Recurrence(cell, 80, 3, 96, lengths=True)
    random = np.random.default_rng(0)
    drawn = [random.standard_normal(operand.shape).astype(operand.dtype) for operand in op.inputs]
    arrays = op.admissible(drawn)
    assert sorted(arrays[-1]) == [0, 40, 80]

    def result(dtype):
        return all_of(op.reference(*(a.astype(dtype) if a.dtype == np.float32 else a for a in arrays)))[-1]

    exact = result(np.float64)
    assert np.abs(result(np.float32) - exact).max() < 1e-5 * np.abs(exact).max()
