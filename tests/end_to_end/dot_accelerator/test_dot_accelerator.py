"""A third-party target, found through its entry point only: the guide "add your own accelerator" runs."""

import dataclasses
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm import api, inspect
from hetero_tvm.errors import TargetError
from hetero_tvm.reference import sample_inputs
from hetero_tvm.targets.registry import parse_target

FILES = [Path(__file__).with_name(name) for name in ("dot_accelerator.py", "dot_driver.cc")]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The package as pip would lay it out."""
    for file in FILES:
        shutil.copy(file, tmp_path)
    info = tmp_path / "dot_accelerator-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dot-accelerator\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hetero_tvm.targets]\ndot = dot_accelerator:from_variant\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("dot_accelerator", None)


@pytest.mark.thorough
def test_a_model_runs_on_it(installed, tmp_path):
    plan = api.optimize_model(api.import_model("zoo:minilm-l6-tiny"), "dot")
    served = {task.name: task.space.name for task in plan.tasks if task.space is not None}
    assert served["matmul_12x48x144_bias"] == "dot.matmul"
    assert served["matmul_12x48x96_bias_gelu_erf"] != "dot.matmul"  # no unit for it: the CPU's
    kernels = {kernel["kernel"]: kernel for kernel in inspect.describe(plan)["kernels"]}
    assert "dot.matmul: no unit for bias, gelu_erf" in kernels["matmul_12x48x96_bias_gelu_erf"]["refused"]
    model = api.build_model(plan, use_shipped=False)
    assert model.check().ok
    net = hetero_tvm.load(model.export(tmp_path / "out"))
    inputs = sample_inputs(plan.model)
    assert np.array_equal(net(**inputs), model.run(inputs)[0])
    assert net.manifest.target.kind == "dot"


def test_variants_that_it_does_not_know_are_refused(installed):
    with pytest.raises(TargetError, match="LLVM knows no CPU 'bogus'"):
        parse_target("dot:bogus")
    assert parse_target("dot:znver3").kind == "dot"


def test_it_is_less_than_two_hundred_lines():
    assert sum(len(file.read_text().splitlines()) for file in FILES) < 200


@pytest.mark.thorough
def test_it_is_tuned_with_its_driver(installed, tmp_path):
    """Candidates that call the driver are timed, in processes of their own, and win or lose by it."""
    plan = api.optimize_model(api.import_model("zoo:minilm-l6-tiny"), "dot")
    mine = [task for task in plan.tasks if task.space is not None and task.space.name == "dot.matmul"]
    api.tune_model(
        dataclasses.replace(plan, tasks=tuple(mine)), trials=3, logs=tmp_path, use_shipped=False, patience=0
    )
    store = api.record_store(plan, tmp_path, use_shipped=False)
    records = [record for task in mine for record in store.measured(task).values()]
    assert len(records) == 3 and all(record.ok for record in records), records
    assert (tmp_path / f"dot-{plan.machine.mcpu}.jsonl").is_file()
