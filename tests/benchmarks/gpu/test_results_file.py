"""The results file: entries at once, resumed, whole at any moment."""

import json
import os

import pytest

from benchmarks.gpu.results_file import ResultsFile, summary
from hetero_tvm.errors import UsageError

HEAD = {"device": {"name": "H200"}}


def test_entries_are_written_at_once_and_not_measured_again(tmp_path):
    path, calls = tmp_path / "r.json", []

    def measure(status):
        def go():
            calls.append(status)
            return {"status": status}

        return go

    results = ResultsFile(path, HEAD, 5)
    results.entry("matmul", "a", measure("ok"))
    assert json.loads(path.read_text())["sections"]["matmul"][0]["status"] == "ok"
    results.entry("matmul", "b", measure("timeout"))
    again = ResultsFile(path, HEAD, 5)
    assert again.entry("matmul", "a", measure("ok"))["status"] == "ok"
    again.entry("matmul", "b", measure("ok"))
    assert calls == ["ok", "timeout", "ok"]
    assert [row["status"] for row in json.loads(path.read_text())["sections"]["matmul"]] == ["ok", "ok"]


def test_what_fails_is_tried_twice(tmp_path):
    calls = []
    for _ in range(4):
        row = ResultsFile(tmp_path / "r.json", HEAD, 5).entry(
            "matmul", "a", lambda: calls.append(1) or {"status": "timeout"}
        )
        assert row["status"] == "timeout"
    assert len(calls) == row["tries"] == 2
    mended = ResultsFile(tmp_path / "r.json", HEAD, 5)
    mended.forget_bad()
    assert mended.entry("matmul", "a", lambda: {"status": "ok"})["tries"] == 1


def test_what_fails_is_an_entry(tmp_path):
    def broken():
        raise RuntimeError("first line\nmiddle\nlast line")

    row = ResultsFile(tmp_path / "r.json", HEAD, 5).entry("matmul", "a", broken)
    assert row["status"] == "failed" and "first line ... last line" in row["why"]
    assert "first line" in summary(row)


def test_nothing_is_begun_when_time_is_over(tmp_path):
    results = ResultsFile(tmp_path / "r.json", HEAD, 1)
    assert results.entry("models", "bert", lambda: {"status": "ok"}, reserve=90) is None
    assert results.skipped == ["models: bert"]
    assert results.entry("models", "tiny", lambda: {"status": "ok"}, reserve=10)["status"] == "ok"


def test_results_of_another_gpu_are_refused(tmp_path):
    ResultsFile(tmp_path / "r.json", HEAD, 1).write()
    with pytest.raises(UsageError, match="is of H200, this is A100"):
        ResultsFile(tmp_path / "r.json", {"device": {"name": "A100"}}, 1)


def test_a_kill_while_writing_leaves_the_old_document(tmp_path, monkeypatch):
    results = ResultsFile(tmp_path / "r.json", HEAD, 5)
    results.entry("a", "x", lambda: {"status": "ok"})
    monkeypatch.setattr(os, "replace", lambda *names: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        results.entry("a", "y", lambda: {"status": "ok"})
    assert [row["task"] for row in json.loads((tmp_path / "r.json").read_text())["sections"]["a"]] == ["x"]


def test_summaries_tell_goals():
    row = {
        "status": "ok",
        "seconds": 2e-4,
        "tflops": 687.2,
        "took": 3,
        "speed_of": {"cublas": 0.7},
        "goals": {"cublas": False},
    }
    assert summary(row) == "ok, 200.0 us, 687.2 TFLOP/s, 0.70 x cublas, GOAL MISSED: cublas, 3 s"
