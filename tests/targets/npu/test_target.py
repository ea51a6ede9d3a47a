import functools
import json
import re

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm import api
from hetero_tvm.errors import TargetError, UsageError
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.reference import sample_inputs
from hetero_tvm.targets.registry import parse_target


@functools.cache
def built(name, target):
    optimized = api.optimize_model(api.import_model(f"zoo:{name}"), target)
    return api.build_model(optimized, use_shipped=False)


ODD = """
matrix_block = [4, 12, 8]
vector_lanes = 24
clock_ghz = 0.7
l1_kib = 96
l0a_kib = 8
l0b_kib = 12
l0c_kib = 20
ub_kib = 48
l1_to_l0a = 96
l1_to_l0b = 32
l0c_to_ub = 64
dram_bytes_per_cycle = 6.4
dram_latency = 333
issue_cycles = 7
events = 1
alignment = 64
dma_outstanding = 2
"""


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["odd.toml", "mobile", "datacenter"])
def test_a_whole_model_keeps_its_numbers(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd.toml").write_text(ODD)
    model = built("minilm-l6-tiny", f"npu:{name}")
    assert model.check().ok
    placement = model.optimized.target.placement(model.optimized.module, model.optimized.tasks)
    assert float(re.search(r"([0-9.]+)% of FLOPs on npu", placement)[1]) >= 98


@pytest.mark.thorough
def test_bfloat16_is_coarser_and_right():
    model = built("minilm-l6-tiny", "npu:mobile,bf16")
    inputs = sample_inputs(model.optimized.model)
    exact = built("minilm-l6-tiny", "npu:mobile").run(inputs)[0]
    error = np.abs(model.run(inputs)[0] - exact).max() / np.abs(exact).max()
    assert 1e-3 < error < 5e-2


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["bert-base-tiny", "gpt2-small-tiny", "llama-160m-tiny"])
def test_models_with_host_operators_between_regions(name):
    assert built(name, "npu:edge").check().ok


def test_the_exported_library_gives_the_same_numbers(tmp_path):
    model = built("minilm-l6-tiny", "npu:edge")
    net = hetero_tvm.load(model.export(tmp_path))
    inputs = sample_inputs(model.optimized.model)
    assert np.array_equal(net(**inputs), model.run(inputs)[0])
    assert net.manifest.target.kind == "npu"
    assert json.dumps(net.manifest.kernels)


def test_targets_by_name_and_by_file(tmp_path):
    assert parse_target("npu").spec == NPUSpec.preset("mobile")
    assert parse_target("npu:bf16").machine.dtype == "bfloat16"
    path = tmp_path / "mine.toml"
    values = NPUSpec.preset("edge").to_json()
    del values["energy_pj"], values["name"]
    path.write_text("\n".join(f"{k} = {list(v) if isinstance(v, tuple) else v}" for k, v in values.items()))
    assert parse_target(f"npu:{path}").spec.l1_kib == 256
    with pytest.raises(TargetError, match="no NPU 'huge'"):
        parse_target("npu:huge")
    with pytest.raises(TargetError, match="there is no NPU 'f64'"):
        parse_target("npu:edge,f64")


def test_all_that_is_wrong_with_a_target_is_said_at_once(tmp_path):
    with pytest.raises(TargetError) as error:
        parse_target("npu:edge,huge,bf16,f16,")
    assert error.value.problems == (
        "there is no NPU 'huge'",
        "npu:edge,huge,bf16,f16, has an empty part",
        "npu:edge,huge,bf16,f16, names 2 machines: edge, huge",
        "npu:edge,huge,bf16,f16, names 2 precisions: bf16, f16",
    )
    path = tmp_path / "bad.toml"
    path.write_text("matrix_block = [8, 8]\nl1_kib = 0\ncolour = 3\n")
    with pytest.raises(TargetError) as error:
        parse_target(f"npu:{path}")
    text = str(error.value)
    for reason in ("unknown key 'colour'", "missing key 'clock_ghz'", "l1_kib must be", "three integers M"):
        assert reason in text
    with pytest.raises(UsageError, match="the target says bf16, --precision says f16"):
        parse_target("npu:edge,bf16").with_precision("f16")
    assert parse_target("npu:edge").with_precision("bf16").precision == "bf16"


@pytest.mark.thorough
def test_records_of_one_machine_serve_no_other(tmp_path):
    """Machines that differ in anything that costs cycles, or in precision, share no record."""
    path = tmp_path / "mine.toml"
    values = NPUSpec.preset("edge").to_json()
    del values["energy_pj"]
    values["name"] = "edge"  # the same name, so the same file
    values["dram_latency"] += 1
    lines = (f"{k} = {list(v) if isinstance(v, tuple) else json.dumps(v)}" for k, v in values.items())
    path.write_text("\n".join(lines))
    model = api.import_model("zoo:minilm-l6-tiny")
    edge = api.optimize_model(model, "npu:edge")
    assert api.tune_model(edge, trials=6, logs=tmp_path, use_shipped=False).report.trials == 6
    for target in (f"npu:{path}", "npu:edge,bf16", "npu:mobile", "cpu"):
        optimized = api.optimize_model(model, target)
        store = api.record_store(optimized, tmp_path, use_shipped=False)
        assert not any(store.measured(task) for task in optimized.tasks), target
    assert any(api.record_store(edge, tmp_path, False).measured(task) for task in edge.tasks)
