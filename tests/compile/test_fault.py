"""The fault finder names the step that is wrong: a kernel, or what the passes made of the graph."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.compile.fault import first_fault
from hetero_tvm.errors import AccuracyError
from hetero_tvm.frontend.onnx.converters import CONVERTERS
from hetero_tvm.frontend.onnx.forms import FORMS
from hetero_tvm.frontend.onnx.graph.body import Body
from hetero_tvm.host.tvm import relax, tvm, tvm_ffi
from hetero_tvm.reference import sample_inputs
from tests.frontend.onnx.helpers import add_weight, text_model


@pytest.fixture(scope="module")
def optimized():
    return optimize_model(import_model("zoo:minilm-l6-tiny"), "cpu")


class Spoiled:
    """A design space whose weights are packed wrong."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def pack(self, op, point, machine):
        packers = self._inner.pack(op, point, machine)
        return {index: lambda w, pack=pack: pack(w) * 1.5 for index, pack in packers.items()}


@pytest.mark.thorough
def test_a_kernel_that_computes_something_else_is_named(optimized):
    task = next(task for task in optimized.tasks if task.name.startswith("matmul") and "gelu" in task.name)
    tasks = tuple(
        dataclasses.replace(one, space=Spoiled(one.space)) if one is task else one for one in optimized.tasks
    )
    built = build_model(dataclasses.replace(optimized, tasks=tasks), use_shipped=False)
    with pytest.raises(AccuracyError) as caught:
        built.check()
    (line,) = [problem for problem in caught.value.problems if "first wrong kernel" in problem]
    assert task.name in line and task.calls[0][0] in line
    assert "nothing was exported" in caught.value.hint


@pytest.mark.thorough
def test_a_graph_that_is_not_the_models_is_named(optimized):
    """Every kernel keeps its contract, and one of them has another constant than the file."""
    spoiled = []

    def other(constant):
        array = constant.value.numpy()
        if array.ndim == 2 and not spoiled:
            spoiled.append(array.shape)
            return relax.const(array * np.float32(1.25))
        return constant

    module = optimized.module
    main = tvm_ffi.structural_map(module["main"], (type(relax.const(np.float32(0))), other))
    changed = tvm.IRModule({**{v: f for v, f in module.functions.items() if v.name_hint != "main"}})
    changed.update_func(module.get_global_var("main"), main)
    built = build_model(dataclasses.replace(optimized, module=changed), use_shipped=False)
    assert spoiled
    with pytest.raises(AccuracyError) as caught:
        built.check()
    assert any("first wrong result" in problem for problem in caught.value.problems), caught.value.problems


@pytest.mark.thorough
def test_a_right_model_has_no_fault(optimized):
    built = build_model(optimized, use_shipped=False)
    message = first_fault(optimized, built.choices, sample_inputs(optimized.model, 3))
    assert message.startswith("no single kernel deviates")


def plainly_built(source):
    return build_model(optimize_model(import_model(source)), use_shipped=False)


@pytest.mark.thorough
@pytest.mark.parametrize("wrong_by", [1.25, np.nan])
def test_a_node_that_the_import_converts_wrongly_is_named(wrong_by, monkeypatch):
    def wrong(inputs, attrs):
        return relax.op.multiply(relax.op.nn.relu(inputs[0]), relax.const(np.float32(wrong_by)))

    monkeypatch.setitem(CONVERTERS, "Relu", wrong)
    text = "g (float[4, 8] x) => (float[4, 8] y) { a = Cos(x) b = Relu(a) y = Sin(b) }"
    built = build_model(
        optimize_model(import_model(text_model(text, "c", "culprit", "s"))), use_shipped=False
    )
    with pytest.raises(AccuracyError) as caught:
        built.check()
    assert "the import is wrong: the conversion of node culprit (Relu) to Relax" in caught.value.problems[-1]


@pytest.mark.exhaustive
def test_a_node_that_the_clean_up_rewrites_wrongly_is_named(monkeypatch):
    def wrong(node, opset, types, pool):
        body = Body(node, opset)
        body.end(0, body.op("Sign", node.input[0]))
        return body.nodes

    monkeypatch.setitem(FORMS, "Relu", wrong)
    text = "g (float[4, 8] x) => (float[4, 8] y) { a = Cos(x) b = Relu(a) y = Sin(b) }"
    built = build_model(
        optimize_model(import_model(text_model(text, "c", "culprit", "s"))), use_shipped=False
    )
    with pytest.raises(AccuracyError) as caught:
        built.check()
    assert "the import is wrong: the conversion of node culprit (Relu):" in caught.value.problems[-1]


def test_integers_and_truth_values_of_the_file_are_judged_too(monkeypatch):
    def wrong(node, opset, types, pool):
        body = Body(node, opset)
        body.end(0, body.op("Not", body.op("IsNaN", node.input[0])))
        return body.nodes

    monkeypatch.setitem(FORMS, "IsInf", wrong)
    text = "g (float[4, 8] x) => (bool[4, 8] y) { y = IsInf(x) }"
    built = plainly_built(text_model(text, "culprit"))
    with pytest.raises(AccuracyError) as caught:
        built.check()
    assert "node culprit (IsInf)" in caught.value.problems[-1]


def test_few_bits_that_lose_too_much_are_no_fault_of_the_import():
    """Sines of large arguments, which bfloat16 moves by whole turns."""
    body = "agraph (float[4, 64] x) => (float[4, 64] y) { large = MatMul(x, w) y = Sin(large) }"
    model = add_weight(text_model(body), "w", np.random.default_rng(0).normal(0, 300, (64, 64)).astype("f4"))
    built = build_model(optimize_model(import_model(model), "cpu", precision="bf16"))
    with pytest.raises(AccuracyError) as caught:
        built.check()
    assert "loses more in few bits" in str(caught.value) and "the import is wrong" not in str(caught.value)
    assert "--least-cosine" in caught.value.hint
