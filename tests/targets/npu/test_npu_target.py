import json
import re

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm import api
from hetero_tvm.errors import TargetError, UsageError
from hetero_tvm.reference import sample_inputs
from hetero_tvm.targets.base import parse_target
from hetero_tvm.targets.npu.spec import NPUSpec


def built(name, target):
    plan = api.optimize_model(api.import_model(f"zoo:{name}"), target)
    return api.build_model(plan, use_shipped=False)


@pytest.mark.parametrize("target", ["npu:edge", "npu:mobile", "npu:datacenter"])
def test_a_whole_model_keeps_its_numbers(target):
    model = built("minilm-l6-tiny", target)
    assert model.check().ok
    placement = model.plan.target.placement(model.plan.module, model.plan.tasks)
    assert float(re.search(r"([0-9.]+)% of FLOPs on npu", placement)[1]) >= 98


def test_bfloat16_is_coarser_and_right():
    model = built("minilm-l6-tiny", "npu:mobile,bf16")
    inputs = sample_inputs(model.plan.model)
    exact = built("minilm-l6-tiny", "npu:mobile").run(inputs)[0]
    error = np.abs(model.run(inputs)[0] - exact).max() / np.abs(exact).max()
    assert 1e-3 < error < 5e-2


@pytest.mark.parametrize("name", ["bert-base-tiny", "gpt2-small-tiny", "llama-160m-tiny"])
def test_models_with_host_operators_between_regions(name):
    assert built(name, "npu:edge").check().ok


def test_the_exported_library_gives_the_same_numbers(tmp_path):
    model = built("minilm-l6-tiny", "npu:edge")
    net = hetero_tvm.load(model.export(tmp_path))
    inputs = sample_inputs(model.plan.model)
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
    with pytest.raises(UsageError, match="--precision f64 is not available for target npu"):
        parse_target("npu:edge,f64")
