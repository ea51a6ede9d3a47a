"""Dynamo's graphs as references of their libraries."""

import numpy as np
import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import hetero_tvm.torch.compiling as compiling
from hetero_tvm.errors import AccuracyError
from hetero_tvm.torch.backend import hetero_tvm
from hetero_tvm.torch.program import exported
from hetero_tvm.torch.reference import TracedGraph


class Scaled(torch.nn.Module):
    def forward(self, x, weight, count):
        third = x.float() / 3
        return third.mul_(count) + weight.to(torch.float32), torch.tanh(third)


def traced(gm=None):
    """The graph, what an exporter that forgets a factor makes of it, and its inputs."""
    gm = gm or torch.fx.symbolic_trace(Scaled())
    x, weight = torch.tensor([1.0, 2.0, 4.0]), torch.full((3,), 0.1)
    bound = {1: weight, 2: 7}
    wrong = torch.fx.symbolic_trace(lambda x, weight, count: (x / 3 + weight, torch.tanh(x / 3)))
    program = exported(wrong, [x, weight, 7], bound)
    (name,) = program.graph_signature.user_inputs
    return TracedGraph(gm, program, {name: 0}, bound), {name: x.numpy()}


def test_the_graph_itself_judges_in_both_precisions():
    graph, given = traced()
    x = np.array([1.0, 2.0, 4.0])
    exact = x / 3 * 7 + np.float64(np.float32(0.1)), np.tanh(x / 3 * 7)
    for found, want in zip(graph.run(given), exact, strict=True):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, want, rtol=1e-6)
    for found, want in zip(graph.run(given, double=True), exact, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-15)


def test_values_inside_have_the_names_of_the_program():
    graph, given = traced()
    names = [node.name for node in graph.program.graph.nodes if node.op == "call_function"]
    assert list(graph.tensors(given, names)) == names


def test_what_has_no_float64_is_judged_by_the_program():
    def refuses(x):
        if x.dtype is torch.float64:
            raise TypeError("no such type here")
        return x

    gm = torch.fx.symbolic_trace(Scaled())
    node = next(iter(gm.graph.find_nodes(op="call_method", target="mul_")))
    with gm.graph.inserting_before(node):
        node.replace_input_with(node.args[0], gm.graph.call_function(refuses, (node.args[0],)))
    gm.recompile()
    graph, given = traced(gm)
    assert graph.run(given)[0][0] == np.float32(1 / 3) * 7 + np.float32(0.1)
    np.testing.assert_allclose(
        graph.run(given, double=True)[0], np.array([1.0, 2.0, 4.0]) / 3 + 0.1, rtol=1e-7
    )


@pytest.mark.thorough
def test_a_fault_of_the_export_cannot_hide(monkeypatch, tmp_path):
    def wrong(gm, arguments, bound):
        return exported(torch.fx.symbolic_trace(lambda *given: (torch.relu(given[-1]),)), arguments, bound)

    monkeypatch.setattr(compiling, "exported", wrong)
    options = {"cache": tmp_path, "refused": "raise"}

    def curve(x):  # Dynamo knows a built-in function by what it wraps all of them in, and its sizes as open
        return torch.nn.functional.gelu(x)

    net = torch.compile(curve, backend=hetero_tvm, options=options, dynamic=False)
    with torch.no_grad(), pytest.raises(BackendCompilerFailed) as caught:
        net(torch.randn(3, 8))
    assert isinstance(caught.value.inner_exception, AccuracyError)
