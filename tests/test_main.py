"""The command ``hetero-tvm`` itself: its pages, and what it says to a name that is none."""

import json
import subprocess
import sys

import pytest

from hetero_tvm.__main__ import COMMANDS, main
from tests.import_graph import ROOT


@pytest.mark.parametrize(
    "arguments", [[], ["help"], ["--help"], ["-h"], ["help", "help"], ["help", "completion"]]
)
def test_the_overview_names_every_command(arguments, capsys):
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert all(f"\n  {name}" in said for name in COMMANDS) and "exit status" in said
    assert max(map(len, said.splitlines())) <= 100


def test_commands_start_before_tvm_does():
    """Ctrl-C while TVM is imported, which takes a second, ends a command in a word; help is there at once."""
    commands = sorted(COMMANDS)
    code = "import importlib, sys; [importlib.import_module(f'hetero_tvm.{name}') for name in sys.argv[1:]]; "
    code += "print([name for name in ('tvm', 'onnx', 'torch') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code, *commands], capture_output=True, text=True, cwd=ROOT)
    assert found.stdout.strip() == "[]", found.stderr


def test_help_of_a_command(capsys):
    with pytest.raises(SystemExit):
        main(["help", "bench"])
    assert "usage: python -m hetero_tvm.bench" in capsys.readouterr().out


def test_version(capsys):
    import hetero_tvm

    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"hetero-tvm {hetero_tvm.__version__}"


@pytest.mark.parametrize("arguments", [["tnue"], ["help", "tnue"]])
def test_a_command_that_is_none(arguments, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert "there is no command 'tnue'" in said and "did you mean 'tune'?" in said
    assert main(["hlp"]) == 2 and "did you mean 'help'" in capsys.readouterr().err


def test_a_command_that_is_none_is_a_document_too(capsys):
    assert main(["tnue", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["type"] == "UsageError" and "tnue" in error["message"] and "tune" in error["hint"]


@pytest.mark.parametrize(
    "arguments", [["help", "tnue", "--json"], ["completion", "--json"], ["completion", "tcsh", "--json"]]
)
def test_help_and_completion_fail_with_a_document(arguments, capsys):
    assert main(arguments) == 2
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "UsageError"


@pytest.mark.parametrize(
    "arguments, key",
    [
        (["help", "--json"], "commands"),
        (["--help", "--json"], "commands"),
        (["help", "tune", "--json"], "help"),
        (["completion", "bash", "--json"], "script"),
    ],
)
def test_help_and_completion_are_documents_when_asked(arguments, key, capsys):
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)[key]


def test_whoever_reads_may_stop():
    command = f"{sys.executable} -m hetero_tvm help --json | true"
    found = subprocess.run(["bash", "-c", f"{command}; {command}"], capture_output=True, text=True, cwd=ROOT)
    assert found.stderr == ""


@pytest.mark.parametrize(
    "word, ours",
    [("compile", "build"), ("benchmark_app", "bench"), ("chat", "generate"), ("explain", "inspect")],
)
def test_words_of_other_tools_lead_to_ours(word, ours, capsys):
    assert main([word]) == 2
    assert f"What to do: hetero-tvm {ours} " in capsys.readouterr().err


def test_an_option_that_is_none(capsys):
    assert main(["--halp"]) == 2
    said = capsys.readouterr().err
    assert "there is no option '--halp'" in said and "did you mean '--help'?" in said


def test_completion_wants_a_shell(capsys):
    assert main(["completion", "tcsh"]) == 2 and "bash, zsh, fish" in capsys.readouterr().err
    assert main(["completion", "bash"]) == 0 and "complete -o default" in capsys.readouterr().out
