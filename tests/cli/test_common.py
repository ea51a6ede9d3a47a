"""What the commands share: argument types, the exit code of each kind of error, JSON values."""

import argparse
import dataclasses
import errno
import importlib
import json
import warnings

import numpy as np
import pytest

from hetero_tvm import api
from hetero_tvm.cli import common
from hetero_tvm.errors import AccuracyError, BuildError, ModelError, TuningError, UsageError


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", ""])
def test_positive_takes_whole_numbers_from_one(text):
    with pytest.raises(argparse.ArgumentTypeError, match="positive whole number"):
        common.positive(text)
    assert common.positive("7") == 7 and common.count("0") == 0


@pytest.mark.parametrize("text", ["0", "-2", "nan", "inf", "soon"])
def test_minutes_are_positive_and_finite(text):
    with pytest.raises(argparse.ArgumentTypeError, match="positive number of minutes"):
        common.minutes(text)
    assert common.minutes("0.5") == 0.5


@pytest.mark.parametrize(
    "command, option, wrong",
    [
        ("bench", "--seconds", ("nan", "inf", "-1")),
        ("bench", "--tolerance", ("nan", "inf", "-1")),
        ("quantize", "--least-cosine", ("nan", "1.5", "-2", "high")),
    ],
)
def test_numbers_that_no_measurement_can_meet_are_refused(command, option, wrong, capsys):
    """With NaN every comparison is false: a bar of it is none, and a time of it ends at once."""
    parser = importlib.import_module(f"hetero_tvm.{command}").make_parser()
    for text in wrong:
        with pytest.raises(SystemExit):
            parser.parse_args(["zoo:bert-base-tiny", f"{option}={text}"])
        assert f"argument {option}: '{text}' is not a" in capsys.readouterr().err
    assert parser.parse_args([option, "1"]) is not None


def test_shapes_by_name():
    assert common.shape("ids=1x128") == ("ids", (1, 128))
    with pytest.raises(argparse.ArgumentTypeError):
        common.shape("ids=1xq")


def run(raised, options=(), capsys=None):
    def command(parsed):
        if raised is not None:
            raise raised
        return 0

    return common.run(command, common.parser("build", "text"), list(options))


@pytest.mark.parametrize(
    "error, code",
    [
        (None, 0),
        (UsageError("wrong option"), 2),
        (ModelError("broken file"), 2),
        (TuningError("no process"), 1),
        (BuildError("no code"), 1),
        (AccuracyError("wrong numbers"), 1),
        (KeyboardInterrupt(), 130),
        (ValueError("a defect"), 1),
        (OSError(errno.ENOSPC, "No space left on device", "x"), 1),
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"), 1),
        (PermissionError(errno.EACCES, "Permission denied", "chat/config.json"), 2),
    ],
)
def test_exit_codes(error, code, capsys):
    assert run(error) == code
    said = capsys.readouterr().err
    assert "Traceback" not in said
    if isinstance(error, ValueError):
        assert "a defect of hetero_tvm" in said and "HETERO_TVM_DEBUG=1" in said
    if isinstance(error, PermissionError):
        assert said.startswith("error: chat/config.json: Permission denied") and "chmod" in said
    elif isinstance(error, OSError):
        assert "defect" not in said and "name another folder with TMPDIR" in said


@pytest.mark.parametrize(
    "raised", [ModelError("broken file", hint="ask", problems=["a", "b"]), ValueError("x")]
)
def test_an_error_is_a_document_for_programs(raised, capsys):
    assert run(raised, ["--json"]) == (1 if isinstance(raised, ValueError) else 2)
    told = json.loads(capsys.readouterr().out)["error"]
    assert told["type"] == type(raised).__name__ and told["message"] in str(raised) and told["hint"]
    assert told["problems"] == list(getattr(raised, "problems", ()))


def test_a_command_line_that_cannot_be_is_a_document_too(capsys):
    with pytest.raises(SystemExit) as end:
        run(None, ["--json", "--bogus"])
    said = capsys.readouterr()
    assert (
        end.value.code == 2
        and "--bogus" in json.loads(said.out)["error"]["message"]
        and "--bogus" in said.err
    )


def test_a_warning_is_shown_once(capsys):
    def command(options):
        warnings.warn("a line is no record", stacklevel=1)
        warnings.warn("a line is no record", stacklevel=1)
        return 0

    assert common.run(command, common.parser("build", "text"), ["model.onnx"]) == 0
    assert capsys.readouterr().err == "warning: a line is no record\n"


def test_options_that_cannot_be_are_all_named(capsys):
    options = ["--precision", "f7", "--shape", "x=1", "--shape", "x=2", "--target", "tpu"]
    assert run(None, options) == 2
    said = capsys.readouterr().err
    assert "--precision f7 is unknown" in said
    assert "--shape gives x twice" in said
    assert "there is no target 'tpu'" in said


def test_options_may_not_be_abbreviated(capsys):
    with pytest.raises(SystemExit):
        run(None, ["--prec", "f32"])


@dataclasses.dataclass
class Point:
    at: tuple[int, ...]
    value: np.float32


def test_results_become_json_values():
    made = common.plain({"p": Point((1, 2), np.float32(0.5)), 3: [np.int64(4), None, True]})
    assert json.loads(json.dumps(made)) == {"p": {"at": [1, 2], "value": 0.5}, "3": [4, None, True]}


@pytest.mark.parametrize("columns, lines", [("40", 2), (None, 1)])
def test_a_terminal_gets_folded_lines_and_a_pipe_whole_ones(monkeypatch, capsys, columns, lines):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    options = argparse.Namespace(quiet=False, json=False)
    common.say(options, "output 0: max error 4.24e-06 (relative 1.36e-06), tolerance 3.11e-05: ok")
    said = capsys.readouterr().out.splitlines()
    assert len(said) == lines and all(len(line) <= int(columns or 200) for line in said)
    common.say(options, "python -m hetero_tvm.bench out/model.so --streams 2", whole=True)
    assert capsys.readouterr().out == "python -m hetero_tvm.bench out/model.so --streams 2\n"


@pytest.mark.parametrize("command", ["build", "quantize", "tune"])
def test_without_a_compiler_nothing_is_begun(command, monkeypatch, capsys):
    """It links at the end: after a minute, or a search of hours."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("HETERO_TVM_DEBUG", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(api, "import_model", None)
    assert importlib.import_module(f"hetero_tvm.{command}").main(["zoo:mobilenetv2-tiny"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: no C++ compiler") and "apt-get install -y g++" in said
