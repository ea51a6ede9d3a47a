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
    done = run("--only", "matmul", "--out", out)
    assert done.returncode == 0 and "complete" in done.stderr, done.stderr
    document = json.loads(out.read_text())
    assert document["emulated"] and document["device"]["name"] == "CPU emulation of sm_80"
    (row,) = document["matmul"]
    assert row["status"] == "ok" and row["error"] <= 1e-3 and row["trials"] == 2
    assert row["seconds"] is None  # the emulation's times mean nothing
    assert list((tmp_path / "logs").glob("cuda-emulated-*.jsonl"))
    row["kept"] = True
    out.write_text(json.dumps(document))
    done = run("--only", "matmul", "rows", "--out", out, "--minutes", 0)
    assert done.returncode == 3 and "run it again" in done.stderr and "softmax" in done.stderr
    assert json.loads(out.read_text())["matmul"][0]["kept"]


def test_without_a_gpu():
    pytest.importorskip("torch")
    if cuda_runtime.missing_driver() is None:
        pytest.skip("this machine has an NVIDIA driver")
    done = run(emulate="0")
    assert done.returncode == 1 and "PyTorch sees no NVIDIA GPU" in done.stdout
