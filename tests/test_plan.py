"""``python -m hetero_tvm.plan``: files, numbers, exit status."""

from __future__ import annotations

import json
import threading

import pytest

from benchmarks import planner_problems
from hetero_tvm import plan as command
from hetero_tvm.memory import check_plan, read_csv, write_csv

TEXT = "id,lower,upper,size\na,0,3,4\nb,3,9,4\nc,0,9,4\nd,2,7,4\n"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.csv"
    path.write_text(TEXT)
    return path


def test_a_plan_that_fits(source, tmp_path, capsys):
    out = tmp_path / "out.csv"
    assert command.main([str(source), "--capacity", "12", "--out", str(out), "--verify"]) == 0
    printed = capsys.readouterr().out
    for text in (
        "peak         12 bytes (optimal)",
        "lower bound  12 bytes",
        "12 bytes: fits",
        "verified",
        "time",
    ):
        assert text in printed
    problem, offsets = read_csv(out)
    check_plan(problem, offsets, capacity=12)
    assert out.read_text().startswith("id,lower,upper,size,offset\n")


def test_no_plan_can_fit(source, tmp_path, capsys):
    out = tmp_path / "out.csv"
    assert command.main([str(source), "--capacity", "11", "--out", str(out)]) == 1
    assert "proven impossible" in capsys.readouterr().out
    assert not out.exists()


def test_why_no_plan_can_fit(tmp_path, capsys):
    source = tmp_path / "in.csv"
    source.write_text(TEXT)
    assert command.main([str(source), "--capacity", "11"]) == 1
    assert "at time 2, 3 live buffers take 12 bytes" in capsys.readouterr().out


def test_ctrl_c_writes_the_best_plan_until_then(tmp_path, capsys, monkeypatch):
    source, out = tmp_path / "hard.csv", tmp_path / "out.csv"
    write_csv(source, planner_problems.perfect(600, 1))
    join, calls = threading.Thread.join, []

    def interrupted(thread, timeout=None):
        calls.append(timeout)
        if len(calls) == 2:
            raise KeyboardInterrupt
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    options = ["--capacity", str(1 << 20), "--seconds", "600", "--out", str(out)]
    assert command.main([str(source), *options]) == 130
    assert "interrupted: the best plan until then" in capsys.readouterr().out
    problem, offsets = read_csv(out)
    check_plan(problem, offsets)


def test_windows_line_ends_and_buffers_without_memory(tmp_path, capsys):
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_bytes(b"\xef\xbb\xbfid,lower,upper,size\r\na,0,3,4\r\nb,1,2,0\r\nc,2,2,9\r\n")
    assert command.main([str(source), "--capacity", "4", "--out", str(out), "--verify"]) == 0
    assert out.read_text() == "id,lower,upper,size,offset\na,0,3,4,0\nb,1,2,0,0\nc,2,2,9,0\n"


def test_no_plan_found_in_time(tmp_path, capsys):
    source = tmp_path / "hard.csv"
    write_csv(source, planner_problems.perfect(600, 1))
    assert command.main([str(source), "--capacity", str(1 << 20), "--seconds", "0.001"]) == 1
    assert "one may exist" in capsys.readouterr().out


def test_json_is_one_document(source, capsys):
    assert command.main([str(source), "--capacity", "11", "--json"]) == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["fits"] is False and document["proven_impossible"] is True
    assert document["lower_bound"] == 12 and document["capacity"] == 11 and document["buffers"] == 4
    assert "peak" in captured.err


def test_lowest_peak_without_a_capacity(source, capsys):
    assert command.main([str(source), "--alignment", "64", "--json", "-q"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["peak"] == 132 and captured.err == ""


def test_plot(source, tmp_path):
    picture = tmp_path / "arena.png"
    assert command.main([str(source), "--plot", str(picture), "-q", "--capacity", "12"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "text, options, message",
    [
        ("id,lower\n", [], "no column upper, size"),
        ("id,lower,upper,size\na,0,3,x\n", [], "line 2: size 'x'"),
        ("", [], "is empty"),
        ("id,lower,upper,size,Size\na,0,3,4,4\n", [], "two columns size"),
        ("id,lower,upper,size\na,0,3,4,9\n", [], "line 2: 5 cells"),
        ("id,lower,upper,size\na,0,3,4\na,4,5,4\n", [], "id 'a' was used in line 2"),
        (f"id,lower,upper,size\na,0,3,{2**62}\n", [], "beyond 2**62"),
        (TEXT, ["--seconds", "0"], "seconds must be"),
        (TEXT, ["--alignment", "3"], "power of two"),
        (TEXT, ["--plot", "x.txt"], "cannot plot"),
        ("no buffers at all", ["--plot", "/nowhere/at/all.png"], "there is no folder /nowhere/at"),
        (TEXT, ["--out", "/nowhere/at/all.csv"], "cannot write"),
        (TEXT, ["--out", "/"], "is a folder"),
    ],
)
def test_usage_errors(source, capsys, text, options, message):
    source.write_text(text)
    assert command.main([str(source), *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and "Traceback" not in error


@pytest.mark.parametrize("options", [["--capacity", "-1"], ["--capacity", "x"], ["--cap", "5"], ["--nope"]])
def test_options_that_do_not_parse(source, options):
    with pytest.raises(SystemExit) as caught:
        command.main([str(source), *options])
    assert caught.value.code == 2


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert command.main([str(tmp_path / "absent.csv")]) == 2
    assert "cannot read" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, model", [("zoo:minilm-l6",) * 2, ("a/bert.onnx",) * 2, ("out/model.so", "MODEL")]
)
def test_the_plan_of_a_model_is_shown_by_inspect(name, model, capsys):
    assert command.main([name]) == 2
    assert f"inspect {model} --memory" in capsys.readouterr().err
