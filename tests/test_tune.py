import dataclasses
import json
from types import SimpleNamespace

import pytest

from hetero_tvm import api, tune
from hetero_tvm.cli import tune_report
from hetero_tvm.compile import report_page
from hetero_tvm.compile.truth import EndToEnd
from hetero_tvm.errors import AccuracyError, ModelError, TuningError
from hetero_tvm.search.outcome import TaskReport, TuneReport
from hetero_tvm.targets.cpu.tuner import CpuTuner


class FakeBuilt:
    unrunnable = None
    step, no_step = None, ""

    kernels = [{"kernel": "matmul", "calls": 2, "record": "default"}]

    def __init__(self, calls):
        self.calls = calls

    def check(self, **options):
        self.calls.append(("check", options))
        return SimpleAccuracy(1e-6)

    def export(self, path):
        self.calls.append(("export", path))
        return path / "model.so"


@dataclasses.dataclass(frozen=True)
class SimpleAccuracy:
    error: float

    def __str__(self):
        return f"output 0: max error {self.error}"


@pytest.fixture
def calls(monkeypatch):
    """The API replaced by recorders: what the command asks for is what is tested here."""
    seen = []
    space = SimpleNamespace(name="cpu.matmul", version=1)
    task = SimpleNamespace(name="matmul", count=2, flops=2 * 10**8, nbytes=10**6, space=space)
    report = TuneReport([TaskReport("matmul", 2, 2 * 10**8, 10**6, 2e-3, 1e-3)], trials=3, elapsed=1.0)

    def import_model(source, **options):
        seen.append(("import", source, options))
        return SimpleNamespace(open=None)

    def optimize_model(model, target, **options):
        seen.append(("optimize", target, options["disable"]))
        return SimpleNamespace(tasks=(task, task), lengths=None)

    def tune_model(plan, on_event, **options):
        seen.append(("tune", options))
        on_event({"event": "start", "trials": 0, "of": options["trials"], "elapsed": 0.0})
        return SimpleNamespace(report=report)

    def build_model(plan, **options):
        seen.append(("build", options))
        return FakeBuilt(seen)

    def settle(tuned, built):
        seen.append(("settle",))
        found = EndToEnd(2e-3, 1e-3, 0.5, 0.48, 0.51, 40, "tuned")
        return built, found

    for function in (import_model, optimize_model, tune_model, build_model, settle):
        monkeypatch.setattr(api, function.__name__, function)
    monkeypatch.setattr(tune_report, "plan_lines", lambda *arguments: ["plan     64 trials"])
    monkeypatch.setattr(report_page, "report_html", lambda *arguments: "page")
    monkeypatch.setattr(report_page, "write_report", lambda library, text: library.with_name("report.html"))
    monkeypatch.setattr(tune, "start_early", lambda kind: None)
    monkeypatch.setattr(CpuTuner, "start_early", lambda self: None)
    monkeypatch.delenv("HETERO_TVM_DEBUG", raising=False)
    return seen


def named(calls, name):
    return [call[1:] for call in calls if call[0] == name]


def test_defaults(calls, capsys, tmp_path):
    assert tune.main(["--out", str(tmp_path)]) == 0
    assert named(calls, "import") == [
        ("zoo:minilm-l6", {"shapes": {}, "batch": None, "sequence": None, "values": {}, "trust": False})
    ]
    ((options,),) = named(calls, "tune")
    assert options == {
        "trials": 64,
        "minutes": None,
        "logs": None,
        "seed": 0,
        "use_shipped": True,
        "rpc": None,
        "fresh": False,
        "patience": None,
    }
    assert [call[0] for call in calls] == ["import", "optimize", "tune", "build", "settle", "check", "export"]
    out = capsys.readouterr().out
    assert "2.000 ms by default, 1.000 ms tuned (2.000 x, quartiles 1.961 to 2.083, 40 pairs)" in out
    assert "2.00 x" in out and "max error 1e-06" in out and "model.so" in out


def test_it_says_why_whole_models_were_not_compared(calls, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(api, "settle", lambda tuned, built: (built, "other processes took the cores"))
    command = ["--out", str(tmp_path)]
    said = "the whole model was not compared with its default: {}\n"
    assert tune.main(command) == 0
    assert said.format("other processes took the cores") in capsys.readouterr().out
    assert tune.main([*command, "--trials", "0"]) == 0
    assert said.format("nothing was searched") in capsys.readouterr().out
    assert tune.main([*command, "--trials", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["search"]["end_to_end"] is None


def test_options_reach_the_api(calls, tmp_path):
    command = [
        "m.onnx",
        "--target",
        "cpu:znver4",
        "--disable",
        "gelu",
        "--shape",
        "x=1x128",
        "--shape",
        "a:0=2x3x4",
        "--batch",
        "2",
        "--sequence",
        "64",
        "--trials",
        "7",
        "--minutes",
        "0.5",
        "--logs",
        str(tmp_path),
        "--seed",
        "3",
        "--no-shipped-records",
        "--fresh",
        "--patience",
        "0",
        "--no-check",
        "-q",
        "--out",
        str(tmp_path),
    ]
    assert tune.main(command) == 0
    shapes = {"x": (1, 128), "a:0": (2, 3, 4)}
    assert named(calls, "import") == [
        ("m.onnx", {"shapes": shapes, "batch": 2, "sequence": 64, "values": {}, "trust": False})
    ]
    assert named(calls, "optimize") == [("cpu:znver4", ["gelu"])]
    ((options,),) = named(calls, "tune")
    assert options == {
        "trials": 7,
        "minutes": 0.5,
        "logs": tmp_path,
        "seed": 3,
        "use_shipped": False,
        "rpc": None,
        "fresh": True,
        "patience": 0.0,
    }
    assert named(calls, "build") == [({"logs": tmp_path, "use_shipped": False},)]
    assert not named(calls, "check")


def test_minutes_alone_lift_the_limit_of_trials(calls):
    tune.main(["--minutes", "2", "-q"])
    assert named(calls, "tune")[0][0]["trials"] is None


def test_json_is_one_document(calls, capsys, tmp_path):
    assert tune.main(["--json", "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["search"]["trials"] == 3 and document["accuracy"] == {"error": 1e-6}
    assert document["library"].endswith("model.so") and document["kernels"][0]["calls"] == 2
    assert "trials" in captured.err


def test_dry_run(calls, capsys):
    assert tune.main(["--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "2 kernels, 0.8 GFLOP" in out and "64 trials" in out and "cpu.matmul" in out
    assert tune.main(["--dry-run", "--json", "--minutes", "0.01"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["expected_seconds"] == pytest.approx(0.6) and len(document["tasks"]) == 2
    assert {call[0] for call in calls} == {"import", "optimize"}


@pytest.mark.parametrize(
    "command",
    [
        ["--no-such-option"],
        ["--trial", "3"],
        ["--trials", "-1"],
        ["--trials", "x"],
        ["--minutes", "0"],
        ["--minutes", "inf"],
        ["--shape", "1x128"],
        ["--shape", "x=1x"],
        ["--shape", "x=0x2"],
        ["a", "b"],
        ["--batch", "0"],
        ["--seed", "1.5"],
    ],
)
def test_wrong_options(calls, command, capsys):
    with pytest.raises(SystemExit) as stopped:
        tune.main(command)
    assert stopped.value.code == 2 and not calls
    assert command[0].lstrip("-").split()[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    "command, text",
    [
        (["--precision", "f8"], "--precision f8 is unknown"),
        (["--shape", "x=1", "--shape", "x=2"], "--shape gives x twice"),
    ],
)
def test_refused_options(calls, command, text, capsys):
    assert tune.main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and text in error and not calls


@pytest.mark.parametrize(
    "error, status",
    [
        (ModelError("broken file", hint="another one"), 2),
        (TuningError("no process"), 1),
        (AccuracyError("wrong numbers"), 1),
        (ZeroDivisionError("a defect"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_are_messages(calls, monkeypatch, capsys, error, status):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(api, "import_model", fail)
    assert tune.main([]) == status
    captured = capsys.readouterr()
    assert captured.out == "" and "Traceback" not in captured.err
    assert str(error) in captured.err


def test_debug_shows_the_traceback(calls, monkeypatch):
    def fail(*args, **kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr(api, "import_model", fail)
    monkeypatch.setenv("HETERO_TVM_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        tune.main([])


def test_an_interrupted_search_writes_the_best_so_far(calls, monkeypatch, capsys, tmp_path):
    report = TuneReport([], stopped="interrupted")
    monkeypatch.setattr(api, "tune_model", lambda optimized, **options: SimpleNamespace(report=report))
    assert tune.main(["--json", "-q", "--out", str(tmp_path)]) == 130
    document = json.loads(capsys.readouterr().out)
    assert document["search"]["stopped"] == "interrupted" and document["library"].endswith("model.so")
    assert len(named(calls, "export")) == 1


def test_an_out_that_cannot_be_written_is_refused_before_anything_else(calls, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "lib.so").mkdir()
    (tmp_path / "taken" / "model.so").mkdir(parents=True)
    (tmp_path / "link").symlink_to("nowhere")
    refused = {
        "file": "is a file",
        "file/deeper": "is a file",
        "lib.so": "is a folder",
        "taken": "model.so is a folder",
        "link": "is a link to nothing",
        "/proc/none": "/proc cannot be written to",  # its superuser may write there, and cannot
        f"{'n' * 246}.so": "a name of more than 200 bytes",  # that of its manifest would be too long
        f"{'n' * 300}/lib.so": "a name of more than 200 bytes",
    }
    for out, reason in refused.items():
        assert tune.main(["--out", str(tmp_path / out)]) == 2
        assert reason in capsys.readouterr().err
    assert calls == []
