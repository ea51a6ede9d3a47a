"""benchmarks/gpu.py on the emulated GPU: it runs, keeps what it has, and goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hetero_tvm.runtime import cuda_runtime

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"


def run(*arguments, emulate="1"):
    environment = {**os.environ, cuda_runtime.EMULATE_VARIABLE: emulate}
    command = [sys.executable, str(SCRIPT), "--quick", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_it_goes_on_where_it_was(tmp_path):
    pytest.importorskip("torch")
    if cuda_runtime.missing_driver() is None:
        pytest.skip("this machine has an NVIDIA driver: the stand-in for it is not used")
    out = tmp_path / "results.json"
    done = run("--only", "group_norm", "--out", out)
    assert done.returncode == 0 and "complete" in done.stderr, done.stderr
    document = json.loads(out.read_text())
    assert document["emulated"] and document["device"]["name"] == "CPU emulation of sm_80"
    rows = document["sections"]["group_norm"]
    assert len(rows) == 2 and all(row["status"] == "ok" and row["search"]["trials"] == 2 for row in rows)
    assert all(0 < row["error"] <= row["points"][row["best"]]["tolerance"] for row in rows)
    assert rows[0]["seconds"] is None and not rows[0]["speed_of"]  # the emulation's times mean nothing
    (records,) = (tmp_path / "logs").glob("cuda-emulated-*.jsonl")
    rows[0]["kept"] = True
    out.write_text(json.dumps(document))
    done = run("--only", "group_norm", "softmax", "--out", out, "--minutes", 0)
    assert done.returncode == 3 and "run it again" in done.stderr and "softmax: softmax_5x100" in done.stderr
    assert json.loads(out.read_text())["sections"]["group_norm"][0]["kept"]
    done = run("--out", out, "--report", emulate="0")  # as on a machine without a GPU
    assert done.returncode == 0 and rows[0]["task"] in done.stdout and "defaults" in done.stdout


def test_without_a_gpu():
    pytest.importorskip("torch")
    if cuda_runtime.missing_driver() is None:
        pytest.skip("this machine has an NVIDIA driver")
    done = run(emulate="0")
    assert done.returncode == 1 and "PyTorch sees no NVIDIA GPU" in done.stdout
