"""A third-party target, found through its entry point only: the guide "add your own accelerator" runs."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm import api
from hetero_tvm.reference import sample_inputs

SOURCE = Path(__file__).with_name("dot_accelerator.py")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The package as pip would lay it out."""
    shutil.copy(SOURCE, tmp_path)
    info = tmp_path / "dot_accelerator-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dot-accelerator\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hetero_tvm.targets]\ndot = dot_accelerator:from_variant\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("dot_accelerator", None)


def test_a_model_runs_on_it(installed, tmp_path):
    plan = api.optimize_model(api.import_model("zoo:minilm-l6-tiny"), "dot")
    served = {task.name: task.space.name for task in plan.tasks if task.space is not None}
    assert served["matmul_12x48x144_bias"] == "dot.matmul"
    assert served["matmul_12x48x96_bias_gelu_erf"] != "dot.matmul"  # no unit for it: the CPU's
    _, reasons = plan.target.space_for(next(t.op for t in plan.tasks if "gelu" in t.name))
    assert "dot.matmul: no unit for bias, gelu_erf" in reasons
    model = api.build_model(plan, use_shipped=False)
    assert model.check().ok
    net = hetero_tvm.load(model.export(tmp_path / "out"))
    inputs = sample_inputs(plan.model)
    assert np.array_equal(net(**inputs), model.run(inputs)[0])


def test_it_is_less_than_two_hundred_lines():
    assert len(SOURCE.read_text().splitlines()) < 200
