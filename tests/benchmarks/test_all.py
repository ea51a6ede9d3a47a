"""The command that runs all suites: what is known is kept, what broke is said."""

import json

import pytest

from benchmarks import all as command
from benchmarks import operators
from benchmarks.measured import Figure, Others, ResultsFile, Row, failed, noise_of, read
from benchmarks.suites import SUITES, Setup
from benchmarks.suites.models import peers_of

HEAD = {
    "format": 1,
    "date": "2026-01-01T00:00:00+00:00",
    "machine": {"model_name": "a", "microarchitecture": "b", "cores": [0, 1], "simd_bits": 256},
    "versions": {"numpy": "2"},
    "threads": 2,
    "quick": True,
}


def test_noise_is_half_the_distance_between_the_quartiles():
    assert noise_of([1.0, 1.0]) is None
    assert noise_of([10.0, 10.0, 10.0]) == 0.0
    assert noise_of([9.0, 10.0, 11.0, 10.0, 10.0, 9.0, 11.0]) == pytest.approx(0.05)


def test_a_row_has_the_noise_of_every_figure():
    row = Row(
        "a", "latency", "ms", Figure(2.0, (2.0, 2.1, 2.2)), peers={"other": Figure(4.0, (4.0,) * 3, "1.2")}
    )
    found = row.to_json()
    assert found["noise"] > 0 and found["peers"]["other"] == {
        "value": 4.0,
        "noise": 0.0,
        "rounds": [4.0, 4.0, 4.0],
        "version": "1.2",
    }
    assert Row("a", "", failed="why").to_json()["failed"] == "why"


def test_a_quick_run_waits_for_the_compiler_of_pytorch_once(tmp_path):
    def peers(name, quick, *given):
        return peers_of(name, Setup(quick, tmp_path, given))

    given = ("onnxruntime", "torch")
    assert peers("minilm-l6", True, *given) == peers("mobilenetv2", False, *given) == given
    assert peers("mobilenetv2", True, *given) == ("onnxruntime",)
    assert peers("mobilenetv2", True, "torch") == ("torch",)  # all that was asked for


def test_the_file_is_whole_after_every_row_and_goes_on_where_it_was_cut_off(tmp_path):
    path = tmp_path / "results.json"
    first = ResultsFile(path, HEAD, keep=False)
    first.add([{"suite": "s", "case": "a", "figure": "f", "value": 1.0, "last": True}])
    first.add([{"suite": "s", "case": "b", "figure": "f", "value": 1.0}])  # cut off before its last row
    first.add([{"suite": "s", "case": "c", "figure": "", "failed": "why", "last": True}])
    again = ResultsFile(path, HEAD, keep=True)
    assert [again.has("s", case) for case in "abcd"] == [True, False, False, False]
    again.forget("s", "b")
    assert {row["case"] for row in again.rows} == {"a", "c"} and failed(again.rows[1])
    assert read(path)["continued"] == HEAD["date"]
    assert ResultsFile(path, HEAD, keep=False).rows == []


def test_single_operators_are_built_and_measured(tmp_path, monkeypatch):
    """Also all that a quick run names are cases."""
    suite = SUITES["operators"]
    assert set(suite.cases(True)) <= set(suite.cases(False)) == set(operators.CASES)
    times = {"p10_ms": 2.0, "rounds_p10_ms": [2.0, 2.1]}
    monkeypatch.setattr(operators, "measure", lambda *_: {"hetero_tvm": times, "onnxruntime": times})
    setup = Setup(True, tmp_path, ())
    setup.shared("operators", list)
    [row] = suite.run("erf gelu", setup)
    assert row.ours.value == 2.0 and (tmp_path / "operators" / "erf_gelu" / "model.so").is_file()


@pytest.mark.parametrize("change", [{"quick": False}, {"versions": {}}, {"machine": {"model_name": "c"}}])
def test_rows_of_different_runs_do_not_mix(tmp_path, change):
    path = tmp_path / "results.json"
    ResultsFile(path, HEAD, keep=False)
    with pytest.raises(ValueError, match=f"another {next(iter(change))}"):
        ResultsFile(path, {**HEAD, **change}, keep=True)


def test_others_are_those_outside_of_this_process():
    others = Others()
    sum(range(100_000))
    assert others.cores() >= 0.0


@pytest.mark.thorough
def test_every_suite_lists_its_cases():
    for suite in SUITES.values():
        assert set(suite.cases(True)) <= set(suite.cases(False)) and suite.cases(False)


def test_a_run_of_one_suite(tmp_path, capsys):
    """The planner's: the rows of a file are those of the suite, and a second run measures nothing again."""
    out = tmp_path / "results.json"
    arguments = ["--quick", "--only", "planner", "--out", str(out), "--folder", str(tmp_path / "built")]
    suite = SUITES["planner"]
    asked = json.dumps(["random lives 100", "no such problem"])
    options = ["--suite", "planner", "--cases", asked]
    assert command.main([*arguments, "--minutes", "0"]) == 1  # no case is begun
    assert "5 cases left" in capsys.readouterr().out
    results = ResultsFile(out, read(out), keep=True)
    parsed = command.parsed([*arguments, *options])
    for answer in command.answers(suite, parsed.cases, tmp_path, float("inf"), parsed):
        results.add(command.complete(suite, answer))
    peak, time, broken = results.rows
    assert (
        peak["value"] >= 1.0 and peak["counted"] and peak["peers"]["greedy by size"]["value"] >= peak["value"]
    )
    assert time["unit"] == "s" and "others" in time and time["last"]
    assert failed(broken) and "StopIteration" in broken["failed"]
    assert results.has("planner", "random lives 100") and not results.has("planner", "no such problem")
