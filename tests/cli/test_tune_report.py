"""What ``tune`` says before and after its trials."""

from pathlib import Path

import pytest

from hetero_tvm.cli.tune_report import _ranges, expected_seconds, next_commands, plan_lines, print_tasks

pytest.importorskip("tvm")


def test_the_plan_names_model_target_kernels_records_and_budget(tmp_path, monkeypatch):
    from hetero_tvm import api

    load = [0.0]
    monkeypatch.setattr("os.getloadavg", lambda: (load[0], 0.0, 0.0))

    optimized = api.optimize_model(api.import_model("zoo:minilm-l6-tiny"), "cpu")
    lines = plan_lines(optimized, 64, 5.0, tmp_path, use_shipped=False)
    text = "\n".join(lines)
    assert [line.split()[0] for line in lines] == ["model", "target", "kernels", "spaces", "records", "plan"]
    assert "minilm-l6-tiny(input_ids: int64[1, 12]" in text and "cpu.matmul" in text
    assert f"0 of {len(optimized.tasks)} kernels have one; new ones go to {tmp_path}" in text
    assert "64 trials, 5 minutes at most, about" in text
    short = plan_lines(optimized, 2, None, tmp_path, use_shipped=False)[-1]
    assert f"fewer trials than kernels: --trials {len(optimized.tasks)} measures" in short
    load[0] = 1000.0
    busy = plan_lines(optimized, 64, None, tmp_path, use_shipped=False)[-1]
    assert "load 1000.0 now: trials wait for idle cores" in busy


def test_estimates():
    assert expected_seconds(10, None, None) is None
    assert expected_seconds(10, 100, None) == pytest.approx(17)
    assert expected_seconds(10, 10**6, 1) == 60 == expected_seconds(10, None, 1)


def test_cores_as_ranges():
    assert _ranges((0, 1, 2, 3, 8)) == "0-3,8" and _ranges((5,)) == "5"


def test_tasks_and_next_commands(capsys):
    print_tasks([{"name": "m" * 90, "calls": 3, "flops": 12e6, "nbytes": 1, "space": "cpu.matmul"}])
    said = capsys.readouterr().out
    assert " 12 " in said and " 1e-06 " in said
    told = next_commands(Path("out/model.so"))
    assert "python -m hetero_tvm.bench out/model.so" in told and max(map(len, told.splitlines())) <= 80
    assert "hetero_tvm.bench 'my models/a.so'" in next_commands(Path("my models/a.so"))
    assert "hetero_tvm.bench ./-out/model.so" in next_commands(Path("-out/model.so"))


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ({"source": None}, ["generate out --prompt TEXT", "serve_text out", "bench out --decode"]),
        ({"source": {"mels": 0}}, ["generate out --source TEXT"]),
        ({"source": {"mels": 80}}, ["generate out --audio FILE.wav"]),
        ({"embedding": {}}, ["serve_text out"]),
    ],
)
def test_next_commands_of_language_models(language, expected):
    _, *lines = next_commands(Path("out/model.so"), language).splitlines()
    assert lines == [f"  python -m hetero_tvm.{line}" for line in expected]
