"""Static checks of whole models, and that they see what they are for."""

import types

import pytest

from benchmarks.gpu import static_checks
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.targets.cuda import codegen, kernel_facts
from hetero_tvm.zoo import llama

# One layer of llama-160m at its real width, and a narrow one; four of its words.
ONE_LAYER = llama.LlamaConfig(1, 768, 12, 4, 2048, 4)
NARROW = llama.LlamaConfig(1, 128, 2, 1, 256, 4)


def built(layer, target):
    model = import_model(llama.build(layer, "one-layer", batch=1, sequence=128, seed=0))
    with codegen.collect() as modules:
        built = build_model(optimize_model(model, target, precision="f16"), use_shipped=False)
    return built, modules


@pytest.mark.thorough
def test_a_model_at_its_real_width(compiler):
    model, modules = built(ONE_LAYER, "cuda:sm_80,sm_90")
    assert [module.arch for module in modules] == ["sm_80", "sm_90"]
    spaces = {task.space.name for task in model.optimized.tasks if task.space is not None}
    assert {"cuda.matmul", "cuda.gated_matmul", "cuda.attention", "cuda.normalize"} <= spaces
    assert all(task.space is not None for task in model.optimized.tasks)
    assert static_checks.problems(model, modules, compiler) == []


@pytest.mark.thorough
def test_what_is_wrong_is_named(compiler, monkeypatch):
    model, modules = built(NARROW, "cuda:sm_80")
    name = next(name for name in modules[0].launches if name.startswith("attention"))
    known = kernel_facts.of_module(modules[0])
    worse = {**known[name], "stack": 16, "threads": 512, "registers": 200, "shared": 1 << 20}
    monkeypatch.setattr(kernel_facts, "of_module", lambda module: {**known, name: worse})
    ptx = compiler.ptx(modules[0].source, "sm_80").replace("mma.sync", "nothing")
    tools = types.SimpleNamespace(ptx=lambda source, arch: ptx)
    found = static_checks.problems(model, modules, tools)
    assert f"sm_80 {name}: 16 bytes of stack" in found
    assert f"sm_80 {name}: 512 threads of 200 registers" in found
    assert f"sm_80 {name}: {1 << 20} bytes of shared memory" in found
    assert any("matmul" in text and "no mma.sync in its PTX" in text for text in found)
