"""Import, optimize, build, check, export, and load in a fresh process."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from hetero_tvm import zoo
from hetero_tvm.api import TunedModel, build_model, import_model, optimize_model
from hetero_tvm.codegen import vector_math
from hetero_tvm.errors import AccuracyError, UsageError
from hetero_tvm.host.tvm import tvm
from hetero_tvm.records.choose import Choice
from hetero_tvm.reference import sample_inputs
from hetero_tvm.schedules.cpu.activation_code import ActivationCode
from hetero_tvm.schedules.cpu.attention.space import AttentionSpace
from hetero_tvm.schedules.cpu.products.matmul import MatmulSpace
from hetero_tvm.schedules.sampled import trace_text
from tests.frontend.onnx.helpers import add_weight, text_model

TINY = [name for name in zoo.names() if name.endswith("-tiny")]

_FRESH = """
import sys
import numpy as np
from hetero_tvm.runtime import load
with np.load(sys.argv[2]) as inputs:
    result = load(sys.argv[1])(**inputs)
np.savez(sys.argv[3], *(result if isinstance(result, tuple) else [result]))
"""


def build(plan, tmp_path):
    return build_model(plan, logs=tmp_path / "logs", use_shipped=False)


@pytest.mark.thorough
@pytest.mark.parametrize("name", TINY)
def test_zoo_from_import_to_another_process(name, tmp_path):
    plan = optimize_model(import_model(f"zoo:{name}"))
    built = build(plan, tmp_path)
    accuracy = built.check()
    assert accuracy.ok, str(accuracy)
    assert {row["record"] for row in built.kernels} == {"default"}
    inputs = sample_inputs(plan.model, seed=3)
    here = built.run(inputs)
    path = built.export(tmp_path / "out")
    np.savez(tmp_path / "inputs.npz", **inputs)
    command = [
        sys.executable,
        "-c",
        _FRESH,
        str(path),
        str(tmp_path / "inputs.npz"),
        str(tmp_path / "outputs.npz"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "outputs.npz") as there:
        assert len(there.files) == len(here) == len(plan.model.signature.outputs)
        for one, file in zip(here, there.files, strict=True):
            np.testing.assert_array_equal(one, there[file])


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "sizes"), [("bert-base-tiny", {"sequence": 7}), ("mobilenetv2-tiny", {})])
def test_batch_of_two(name, sizes, tmp_path):
    built = build(optimize_model(import_model(f"zoo:{name}", batch=2, **sizes)), tmp_path)
    assert built.check(seed=1).ok
    assert [a.shape[0] for a in built.run(sample_inputs(built.optimized.model))] == [2] * len(
        built.optimized.model.signature.outputs
    )


@pytest.mark.thorough
def test_without_any_fusion_the_numbers_are_the_same(tmp_path):
    model = import_model("zoo:minilm-l6-tiny")
    names = {rule.name for rule in optimize_model(model).target.fusions}
    built = build(optimize_model(model, disable=names), tmp_path)
    assert all(row["space"] == "generic" for row in built.kernels)
    assert built.check().ok


def test_unknown_fusions_are_refused():
    with pytest.raises(UsageError, match="no fusions called gulu"):
        optimize_model(import_model("zoo:minilm-l6-tiny"), disable=["gulu", "gelu"])


@pytest.mark.thorough
def test_one_import_serves_several_builds(tmp_path):
    model = import_model("zoo:resnet50-tiny")
    before = str(model.module)
    plan = optimize_model(model)
    assert [t.key for t in optimize_model(model).tasks] == [t.key for t in plan.tasks]
    inputs = sample_inputs(model)
    first, second = build(plan, tmp_path), build(plan, tmp_path)
    assert str(model.module) == before
    np.testing.assert_array_equal(first.run(inputs)[0], second.run(inputs)[0])


ODD = {
    "an input is the result": "g (float[2,3] x) => (float[2,3] y) { y = Identity(x) }",
    "a result twice": "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Relu(x)\n z = Identity(y) }",
    "input and result": "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Exp(x)\n z = Identity(x) }",
    "a view": (
        "g (float[2,3] x) => (float[3,2] y) {s = Constant<value = int64[2] {3, 2}>()\n y = Reshape(x, s) }"
    ),
    "a constant result": (
        "g (float[2] x) => (float[2] y, float[2] c) {"
        "c = Constant<value = float[2] {1, 2}>()\n y = Add(x, c) }"
    ),
    "scalars": "g (float x) => (float y) { y = Exp(x) }",
    "integers": "g (int64[5] x) => (int64[5] y) { y = Add(x, x) }",
    "booleans": "g (float[5] x) => (bool[5] y) { z = Constant<value = float {0}>()\n y = Greater(x, z) }",
    "a sort": (
        "g (float[3,9] x) => (float[3,4] y, int64[3,4] i) {"
        "k = Constant<value = int64[1] {4}>()\n y, i = TopK(x, k) }"
    ),
}


@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
def test_odd_models(body, tmp_path):
    built = build(optimize_model(import_model(text_model(body))), tmp_path)
    assert built.check().ok


def test_records_of_a_tuned_plan_are_used(tmp_path):
    plan = optimize_model(import_model("zoo:minilm-l6-tiny"))
    choices = {}
    for task in plan.tasks:
        choices[task.key] = Choice(None, None, "default")
        if task.space is not None:
            last = {knob.name: knob.choices[-1] for knob in task.space.knobs(task.op, plan.machine)}
            choices[task.key] = Choice(last, None, "record today", 1e-6)
    built = build_model(TunedModel(plan, choices, None))
    assert built.check().ok
    for task, row in zip(plan.tasks, built.kernels, strict=True):
        assert row["point"] == choices[task.key].point and row["record"] == choices[task.key].origin


def test_a_recorded_trace_is_used(tmp_path):
    plan = optimize_model(import_model(text_model("g (float[8,32] x) => (float[8,32] y) { y = Sin(x) }")))
    (task,) = plan.tasks
    schedule = tvm.s_tir.Schedule(task.workload)
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    schedule.unroll(schedule.get_loops(block)[0])
    trace = trace_text(schedule.trace)
    built = build_model(TunedModel(plan, {task.key: Choice(None, trace, "record today", 1e-6)}, None))
    assert built.check().ok


def broken(monkeypatch, space, wrong):
    """Make ``space`` emit kernels whose last operation ``wrong`` changes."""
    emit = space.emit

    def spoiled(self, op, point, machine):
        with monkeypatch.context() as patch:
            wrong(patch, op)
            return emit(self, op, point, machine)

    monkeypatch.setattr(space, "emit", spoiled)


@pytest.mark.thorough
def test_a_wrong_kernel_is_named(tmp_path, monkeypatch):
    def wrong(patch, op):
        patch.setattr(ActivationCode, "apply", lambda self, step, value, width: vector_math.relu(value))

    broken(monkeypatch, MatmulSpace, wrong)
    built = build(optimize_model(import_model("zoo:minilm-l6-tiny")), tmp_path)
    with pytest.raises(AccuracyError) as caught:
        built.check()
    problem = caught.value.problems[-1]
    assert "first wrong kernel: matmul_12x48x96_bias_gelu_erf" in problem
    assert "/encoder/layer.0/intermediate" in problem
    assert not built.accuracy.ok


@pytest.mark.thorough
def test_a_wrong_merged_projection_is_named(tmp_path, monkeypatch):
    """No tensor of the source model has its shape: only its contract tells that it is wrong."""
    emit = MatmulSpace.emit

    def clipped(self, op, point, machine):
        wrong = dataclasses.replace(op, epilogue=("bias", "relu")) if op.epilogue == ("bias",) else op
        return emit(self, wrong, point, machine)

    monkeypatch.setattr(MatmulSpace, "emit", clipped)
    built = build(optimize_model(import_model("zoo:minilm-l6-tiny")), tmp_path)
    with pytest.raises(AccuracyError) as caught:
        built.check()
    assert "first wrong kernel: matmul_12x48x144_bias" in caught.value.problems[-1]
    assert "/encoder/layer.0/attention/self/query" in caught.value.problems[-1]


@pytest.mark.thorough
def test_a_wrong_attention_is_named(tmp_path, monkeypatch):
    emit = AttentionSpace.emit

    def unscaled(self, op, point, machine):
        return emit(self, dataclasses.replace(op, scale=op.scale * 1.5), point, machine)

    monkeypatch.setattr(AttentionSpace, "emit", unscaled)
    built = build(optimize_model(import_model("zoo:minilm-l6-tiny")), tmp_path)
    with pytest.raises(AccuracyError) as caught:
        built.check()
    assert "first wrong kernel: attention_" in caught.value.problems[-1]


def test_infinite_masks_do_not_draw_suspicion(tmp_path, monkeypatch):
    """A mask of -inf is right; the wrong kernel comes after it."""
    model = text_model(
        """g (float[4,8] x, float[4,16] m) => (float[4,16] y) {
             big = Constant<value = float {-1e30}>()
             mask = Mul(m, big)
             huge = Mul(mask, big)
             masked = Sub(mask, huge)
             h = MatMul(x, w)
             g = Relu(h)
             y = Max(g, masked)
           }"""
    )
    add_weight(model, "w", np.random.default_rng(0).standard_normal((8, 16)).astype("float32"))

    def wrong(patch, op):
        patch.setitem(vector_math.ACTIVATIONS, "relu", vector_math.tanh)

    broken(monkeypatch, MatmulSpace, wrong)
    built = build(optimize_model(import_model(model)), tmp_path)
    with pytest.raises(AccuracyError) as caught:
        built.check()
    assert "first wrong kernel: matmul" in caught.value.problems[-1]
