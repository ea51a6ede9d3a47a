"""Completion: the bash script completes in a real bash; zsh and fish name the same words."""

import importlib
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


def test_other_shells():
    assert script("zsh", PARSERS, COMMANDS).startswith("autoload -U +X bashcompinit")
    fish = script("fish", PARSERS, COMMANDS)
    assert "-a tune" in fish and "-l trials" in fish and "npu:mobile" in fish and "zoo:bert-base" in fish
