"""benchmarks/gpu.py on the emulated GPU: it runs, keeps what it has, and goes on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.main import main
from hetero_tvm.runtime.cuda import devices as cuda_runtime

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "gpu.py"


def run(*arguments):
    environment = {**os.environ, cuda_runtime.EMULATE_VARIABLE: "1"}
    command = [sys.executable, str(SCRIPT), "--quick", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.exhaustive
def test_it_goes_on_where_it_was(tmp_path, emulated, capsys):
    pytest.importorskip("torch")
    out = tmp_path / "results.json"
    done = run("--only", "group_norm", "--out", out)
    assert done.returncode == 0 and "complete" in done.stderr, done.stderr
    document = json.loads(out.read_text())
    assert document["emulated"] and document["device"]["name"] == "CPU emulation of sm_80"
    rows = document["sections"]["group_norm"]
    assert len(rows) == 2 and all(row["status"] == "ok" and row["search"]["trials"] == 2 for row in rows)
    assert all(0 < row["error"] <= row["points"][row["best"]]["tolerance"] for row in rows)
    assert rows[0]["seconds"] is None and not rows[0]["speed_of"]  # the emulation's times mean nothing
    assert len(list((tmp_path / "logs").glob("cuda-emulated-*.jsonl"))) == 1
    rows[0]["kept"] = True
    out.write_text(json.dumps(document))
    assert main(["--quick", "--only", "group_norm", "softmax", "--out", str(out), "--minutes", "0"]) == 3
    told = capsys.readouterr().err
    assert "run it again" in told and "softmax: softmax_5x100" in told
    assert json.loads(out.read_text())["sections"]["group_norm"][0]["kept"]
    assert main(["--out", str(out), "--report"]) == 0
    told = capsys.readouterr().out
    assert f"  {rows[0]['task']}: ok" in told and f"  cuda.group_norm {rows[0]['task']}: " in told


@pytest.mark.exhaustive
def test_a_killed_command_loses_nothing(tmp_path, emulated):
    """Killed after its first entry; the next command begins in an empty folder, as on a lent machine."""
    pytest.importorskip("torch")
    first, kept = tmp_path / "first" / "results.json", tmp_path / "kept"
    arguments = ("--only", "group_norm", "--keep", kept, "--out")
    command = [sys.executable, str(SCRIPT), "--quick", *map(str, arguments), str(first)]
    environment = {**os.environ, cuda_runtime.EMULATE_VARIABLE: "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    for line in process.stderr:
        if ": ok" in line:
            os.kill(process.pid, signal.SIGKILL)
            break
    process.stderr.close()
    assert process.wait() == -signal.SIGKILL
    (before,) = json.loads(first.read_text())["sections"]["group_norm"]
    second = tmp_path / "second" / "results.json"
    done = run(*arguments, second)
    assert done.returncode == 0 and "complete" in done.stderr, done.stderr
    entries = json.loads(second.read_text())["sections"]["group_norm"]
    assert entries[0] == before and len(entries) == 2
    (records,) = (tmp_path / "second" / "logs").iterdir()
    earlier = (tmp_path / "first" / "logs" / records.name).read_text().splitlines()
    assert records.read_text().splitlines()[0] == earlier[0]
    assert json.loads((kept / "results.json").read_text())["sections"]["group_norm"] == entries


def test_keeping_needs_a_file(capsys):
    pytest.importorskip("torch")
    assert main(["--quick", "--keep", "somewhere"]) == 1
    assert "--keep is for results in a file" in capsys.readouterr().out


def test_without_a_gpu(monkeypatch, capsys, tmp_path):
    pytest.importorskip("torch")
    if cuda_runtime.missing_driver() is None:
        pytest.skip("this machine has an NVIDIA driver")
    monkeypatch.delenv(cuda_runtime.EMULATE_VARIABLE, raising=False)
    assert main(["--quick"]) == 1 and "PyTorch sees no NVIDIA GPU" in capsys.readouterr().out
    assert main(["--report", "--out", str(tmp_path / "none.json")]) == 1
    assert "must name the results of an earlier run" in capsys.readouterr().out
