"""Completion: the scripts complete in a real bash, zsh and fish, where these are installed."""

import importlib
import os
import shutil
import subprocess

import pytest

from hetero_tvm.__main__ import COMMANDS
from hetero_tvm.cli.completion import script

PARSERS = {name: importlib.import_module(f"hetero_tvm.{name}").make_parser() for name in COMMANDS}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    "line, expected",
    [
        ("hetero-tvm prof", {"profile"}),
        ("hetero-tvm ", {*COMMANDS, "help", "completion"}),
        ("hetero-tvm help db", {"db"}),
        ("hetero-tvm tune --min", {"--minutes"}),
        ("hetero-tvm tune --target cpu:zn", {"znver4"}),  # bash replaces what follows the colon
        ("hetero-tvm tune zoo:vit-b16-", {"vit-b16-tiny"}),
        ("hetero-tvm bench x --vs onnx", {"onnxruntime"}),
        ("hetero-tvm db pru", {"prune"}),
        ("hetero-tvm build --precision zzz", set()),
    ],
)
def test_bash(line, expected):
    program = f"""{script("bash", PARSERS, COMMANDS)}
COMP_LINE=$1; COMP_POINT=${{#1}}; _hetero_tvm; printf '%s\\n' "${{COMPREPLY[@]}}" """
    result = subprocess.run(["bash", "-c", program, "bash", line], capture_output=True, text=True)
    assert result.stderr == ""
    assert set(result.stdout.split()) == expected


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
@pytest.mark.parametrize(
    "words, among, files",
    [
        (["prof"], {"profile", "help", "completion"}, False),
        (["completion", ""], {"bash", "zsh", "fish"}, True),
        (["tune", "--min"], {"--minutes", "zoo:vit-b16-tiny"}, True),
        (["tune", "--target", "cpu:zn"], {"cpu:znver4"}, False),
        (["bench", "x", "--vs", ""], {"onnxruntime"}, False),
        (["db", ""], {"prune"}, True),
    ],
)
def test_zsh(words, among, files):
    """The words that are offered, by the names that zsh's completion gives them."""
    program = f"""compdef() {{ :; }}; _files() {{ print FILES; }}; compadd() {{ shift; print -l -- "$@"; }}
{script("zsh", PARSERS, COMMANDS)}
words=(hetero-tvm "$@"); CURRENT=$#words; _hetero_tvm"""
    result = subprocess.run(["zsh", "-fc", program, "zsh", *words], capture_output=True, text=True)
    assert result.stderr == ""
    offered = set(result.stdout.split())
    assert among <= offered and ("FILES" in offered) == files


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
@pytest.mark.parametrize(
    "line, among",
    [
        ("hetero-tvm prof", {"profile"}),
        ("hetero-tvm comp", {"completion"}),
        ("hetero-tvm completion ", {"bash", "zsh", "fish"}),
        ("hetero-tvm tune --min", {"--minutes"}),
        ("hetero-tvm tune --target cpu:zn", {"cpu:znver4"}),
        ("hetero-tvm tune zoo:vit-b16-", {"zoo:vit-b16-tiny"}),
        ("hetero-tvm db pru", {"prune"}),
    ],
)
def test_fish(line, among, tmp_path):
    (tmp_path / "hetero-tvm.fish").write_text(script("fish", PARSERS, COMMANDS))
    program = "source $argv[1]; complete -C $argv[2]"
    command = ["fish", "--no-config", "-c", program, str(tmp_path / "hetero-tvm.fish"), line]
    result = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "HOME": str(tmp_path)}
    )
    assert result.stderr == ""
    assert among <= {one.partition("\t")[0] for one in result.stdout.splitlines()}


def test_the_words_of_scripts():
    """Where no such shell is installed."""
    zsh, fish = (script(shell, PARSERS, COMMANDS) for shell in ("zsh", "fish"))
    assert "compdef _hetero_tvm hetero-tvm" in zsh and "--target) found=(" in zsh
    assert "-a tune" in fish and "-l trials" in fish and "npu:mobile" in fish and "zoo:bert-base" in fish
