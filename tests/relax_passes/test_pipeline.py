"""The whole optimize pipeline on the small zoo models: what fires, and that no node gets lost."""

import pytest

from hetero_tvm import zoo
from hetero_tvm.api import import_model, optimize_model
from hetero_tvm.relax_passes.pipeline import FUSIONS, lower
from hetero_tvm.relax_passes.rewriting.fused import is_call_tir, is_check
from tests.relax_passes.graphs import bindings, relax, tvm

TINY = [name for name in zoo.names() if name.endswith("-tiny")]

FIRED = {
    "minilm-l6-tiny": {"attention": 2, "qkv": 2, "gelu": 2, "matmul_epilogue": 8, "embedding_norm": 1},
    "bert-base-tiny": {"attention": 1, "qkv": 1, "gelu": 1, "layer_norm": 3},
    "gpt2-small-tiny": {"attention": 2, "gelu": 2, "matmul_epilogue": 9},
    "vit-b16-tiny": {"attention": 1, "qkv": 1, "gelu": 1, "conv_epilogue": 1},
    "llama-160m-tiny": {"rms_norm": 5, "silu": 2, "gated_mlp": 2},
    "resnet50-tiny": {"conv_bn": 12, "conv_epilogue": 12},
    "mobilenetv2-tiny": {"conv_bn": 10, "conv_epilogue": 10},
}
"""Fusions that each model must show, and how often."""

VIEWS = {"Reshape", "Unsqueeze", "Squeeze", "Flatten"}
"""Operators that may need no kernel, because they move nothing."""


@pytest.fixture(scope="module", params=TINY)
def optimized(request):
    return optimize_model(import_model(f"zoo:{request.param}"))


def test_every_node_is_in_some_kernel_or_view(optimized):
    kinds = {node.name: node.op_type for node in optimized.model.onnx_model.graph.node}
    covered = {node for names in optimized.sources.values() for node in names}
    assert set(kinds) - covered == set()
    in_kernels = {node for task in optimized.tasks for call in task.calls for node in call}
    assert {kinds[node] for node in set(kinds) - in_kernels} <= VIEWS


def test_every_binding_has_sources_and_every_kernel_its_own_node(optimized):
    assert set(optimized.sources) == {binding.var.name for binding in bindings(optimized.module)}
    last = [call[-1] for task in optimized.tasks for call in task.calls]
    assert len(set(last)) == len(last)


def test_main_calls_kernels_and_views_only(optimized):
    relax.analysis.well_formed(optimized.module)
    for binding in bindings(optimized.module):
        value = binding.value
        if isinstance(value, tvm.ir.Call) and not is_call_tir(value):
            assert value.op.name == "relax.reshape", value
    called = [binding.value.args[0] for binding in bindings(optimized.module) if is_call_tir(binding.value)]
    kernels = sum(not is_check(optimized.module[function]) for function in called)
    assert sum(task.count for task in optimized.tasks) == kernels


def test_tasks_are_named_and_costed(optimized):
    names = [task.name for task in optimized.tasks]
    assert len(set(names)) == len(names) and len({task.key for task in optimized.tasks}) == len(names)
    assert all(task.flops >= 0 and task.nbytes > 0 and task.count > 0 for task in optimized.tasks)
    assert all((task.op is None) <= (task.space is None) for task in optimized.tasks)


def test_fusions_fire(optimized):
    wanted = FIRED[optimized.model.name]
    assert {name: optimized.report.fusions.get(name, 0) for name in wanted} == wanted
    assert set(optimized.report.seconds) >= {rule.name for rule in FUSIONS}
    assert all(miss["reason"] and miss["node"] and miss["rule"] for miss in optimized.report.misses)


def test_memory_is_reused(optimized):
    _, memory = lower(optimized.module)
    assert 0 < memory.peak <= memory.naive


def test_equal_layers_keep_their_own_nodes():
    """Groups of equal layers share one function; the second must not be reported as the first."""
    optimized = optimize_model(import_model("zoo:llama-160m-tiny"), disable=["rope"])
    repeated = [task for task in optimized.tasks if task.space is None and task.count == 2]
    assert repeated
    for task in repeated:
        first, second = task.calls
        assert any("layers.0" in node for node in first) and not any("layers.1" in node for node in first)
        assert any("layers.1" in node for node in second) and not any("layers.0" in node for node in second)


def test_rules_have_names_anchors_and_a_line_of_documentation():
    names = [rule.name for rule in FUSIONS]
    assert len(set(names)) == len(names) and all(names)
    for rule in FUSIONS:
        assert all(anchor.startswith("relax.") for anchor in rule.anchors) and rule.anchors
        assert type(rule).__doc__
