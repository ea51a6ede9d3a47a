"""The commands as a user types them, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from hetero_tvm import zoo
from hetero_tvm.runtime import load

ROOT = Path(__file__).parents[2]


def command(*arguments: str, cwd: Path, status: int = 0) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HETERO_TVM_LOGS": str(cwd / "logs")}
    result = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert result.returncode == status, result.stderr
    assert "Traceback" not in result.stderr
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a model whose weights lie in a file of their own."""
    path = tmp_path_factory.mktemp("commands")
    model = zoo.build("minilm-l6-tiny")
    onnx.save(
        model, path / "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=0
    )
    return path


@pytest.mark.thorough
def test_tune_writes_a_checked_library_and_resumes(folder):
    budget = ("--trials", "6", "--patience", "0")
    arguments = ("hetero_tvm.tune", "model.onnx", *budget, "--out", "tuned", "--json")
    first = json.loads(command(*arguments, cwd=folder).stdout)
    assert first["search"]["trials"] == 6 and first["accuracy"]
    net = load(folder / "tuned")
    y = net(*(np.zeros(spec.shape, spec.dtype) for spec in net.signature.inputs))
    assert y.shape == net.signature.outputs[0].shape
    sidecar = json.loads((folder / "tuned" / "model.manifest.json").read_text())
    assert len(sidecar["sha256"]) == 64 and sidecar["kernels"] == json.loads(json.dumps(net.manifest.kernels))
    again = json.loads(command(*arguments, cwd=folder).stdout)
    assert again["search"]["trials"] == 0 and again["search"]["reused"] >= 6


@pytest.mark.thorough
def test_build_uses_no_search(folder):
    result = command("hetero_tvm.build", "model.onnx", "--out", "built", "--logs", "empty", cwd=folder)
    assert "agree with the reference" in result.stdout
    assert (folder / "built" / "model.so").exists() and not (folder / "empty").exists()


@pytest.mark.thorough
def test_dry_run_measures_nothing(folder):
    result = command("hetero_tvm.tune", "model.onnx", "--dry-run", "--json", "--logs", "none", cwd=folder)
    document = json.loads(result.stdout)
    names = [task["name"] for task in document["tasks"]]
    assert any(name.startswith("attention") for name in names) and not (folder / "none").exists()


@pytest.mark.thorough
def test_bench_compares_with_onnxruntime(folder):
    pytest.importorskip("onnxruntime")
    result = command(
        "hetero_tvm.bench",
        "model.onnx",
        "--vs",
        "onnxruntime",
        "--rounds",
        "2",
        "--seconds",
        "0.05",
        "--json",
        "--out",
        "benched",
        cwd=folder,
    )
    ours, theirs = json.loads(result.stdout)["runtimes"]
    assert ours["status"] == theirs["status"] == "ok"
    assert theirs["max_abs_difference"] < 1e-4


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments, message",
    [
        (("hetero_tvm.tune", "absent.onnx"), "absent.onnx"),
        (("hetero_tvm.build", "zoo:minilm"), "minilm-l6"),
        (("hetero_tvm.build", "model.onnx", "--target", "cpu:znver33"), "znver3"),
        (("hetero_tvm.build", "model.onnx", "--precision", "tf32"), "it has f32, int8"),
        (("hetero_tvm", "tine"), "tune"),
    ],
)
def test_mistakes_end_in_one_message(folder, arguments, message):
    result = command(*arguments, cwd=folder, status=2)
    lines = [line for line in result.stderr.splitlines(keepends=True) if not line.startswith("[1/")]  # a step
    assert lines[0].startswith("error: ") and message in result.stderr
