"""Steps of a command: named, counted, never silent for long."""

import io
import sys
import threading

import pytest

from hetero_tvm.cli import steps
from hetero_tvm.cli.steps import Steps


def test_steps_are_counted_and_a_long_one_says_that_it_still_runs(monkeypatch):
    stream, spoken = io.StringIO(), threading.Event()
    write = stream.write

    def noticed(text):
        if "..." in text:
            spoken.set()
        return write(text)

    stream.write = noticed
    monkeypatch.setattr(steps, "_LONGEST_SILENCE", 0.01)
    told = Steps(2, stream=stream)
    with told.step("compile", expected=60.0):
        assert spoken.wait(30)
    with told.step("export"):
        pass
    lines = stream.getvalue().splitlines()
    assert lines[0] == "[1/2] compile: about 60 s"
    assert any(line.startswith("[1/2] compile ... ") and line.endswith("s left") for line in lines)
    assert "[2/2] export" in lines


def test_a_step_that_holds_the_lock_of_python_is_not_silent(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "_LONGEST_SILENCE", 0.01)
    with (tmp_path / "said").open("w") as stream:
        told = Steps(2, stream=stream)
        held = sys.getswitchinterval()
        sys.setswitchinterval(1000)  # no other thread of this process may run
        try:
            with told.step("compile", expected=60.0):
                while "... " not in (tmp_path / "said").read_text():
                    pass
            with told.step("export"):
                pass
        finally:
            sys.setswitchinterval(held)
        teller = told._teller
        del told
    assert teller.returncode == 0
    lines = (tmp_path / "said").read_text().splitlines()
    assert lines[0] == "[1/2] compile: about 60 s" and "[2/2] export" in lines
    assert lines[1].startswith("[1/2] compile ... 0 s, about ") and lines[1].endswith("s left")


def test_an_ended_teller_is_no_error(tmp_path):
    with (tmp_path / "said").open("w") as stream:
        told = Steps(2, stream=stream)
        with told.step("compile"):
            told._teller.kill()
            told._teller.wait()
        with told.step("export"):
            pass
    assert "[2/2] export" in (tmp_path / "said").read_text()


def test_quiet():
    stream = io.StringIO()
    with Steps(1, quiet=True, stream=stream).step("compile"):
        pass
    assert stream.getvalue() == ""


def test_errors_pass_through():
    with pytest.raises(ValueError), Steps(1, stream=io.StringIO()).step("compile"):
        raise ValueError
