"""Commands for pip that a user can type as they stand."""

import importlib.metadata
import sys
from pathlib import Path

import pytest

from hetero_tvm.host.install import as_typed, extra_command, pip_command, requirements
from tests.import_graph import ROOT


def test_commands_are_for_this_interpreter(monkeypatch):
    monkeypatch.chdir("/")
    command = pip_command("onnxruntime", "torchvision", "a[b]>=1")
    assert command.split()[0] in (sys.executable, sys.executable.lstrip("/"))
    assert command.endswith("-m pip install onnxruntime torchvision 'a[b]>=1'")


def test_an_extra_comes_from_the_checkout(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert extra_command("rpc").endswith("-m pip install '.[rpc]'")


@pytest.mark.parametrize("package", ["torch", "torch==2.13.0", ".[torch]", "../here[bench]", ".[test]"])
def test_pytorch_comes_without_cuda_where_there_is_no_gpu(package, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Path, "exists", lambda path: False)
    assert pip_command("numpy", package).endswith(" --extra-index-url https://download.pytorch.org/whl/cpu")
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == "/dev/nvidiactl")
    assert "index" not in pip_command("numpy", package)
    assert "index" not in pip_command("torchvision", ".[rpc]")


@pytest.mark.parametrize(
    "argv, orig_argv, expected",
    [
        (
            ["x/tune.py"],
            [".venv/bin/python", "-P", "-m", "hetero_tvm.tune"],
            ".venv/bin/python -m hetero_tvm.db",
        ),
        (["x/tune.py"], ["/a b/python3", "-m", "hetero_tvm.tune"], "'/a b/python3' -m hetero_tvm.db"),
        (
            ["./bin/hetero-tvm", "tune"],
            ["/usr/bin/python3", "./bin/hetero-tvm", "tune"],
            "./bin/hetero-tvm db",
        ),
        (["x/pytest.py"], ["/usr/bin/python3", "-m", "pytest"], "python -m hetero_tvm.db"),
        (["-c"], ["python3", "-c", "import hetero_tvm"], "python -m hetero_tvm.db"),
    ],
)
def test_our_commands_are_told_as_they_were_typed(argv, orig_argv, expected, monkeypatch):
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", orig_argv)
    assert as_typed("do: python -m hetero_tvm.db list") == f"do: {expected} list"
    zygote = as_typed("python -m hetero_tvm.search.measure.zygote 0")  # no command of hetero-tvm
    assert zygote.endswith(" -m hetero_tvm.search.measure.zygote 0")


def test_a_command_on_the_path_is_told_by_its_name(monkeypatch, tmp_path):
    (command := tmp_path / "hetero-tvm").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(command), "tune"])
    assert as_typed("python -m hetero_tvm.bench out/model.so") == "hetero-tvm bench out/model.so"


def test_requirements_are_those_of_this_platform(monkeypatch):
    declared = [
        'numpy>=1; extra == "x"',
        'one>=2; platform_system == "Linux" and extra == "x"',
        'two>=2; platform_system != "Linux" and extra == "x"',
        'other; extra == "y"',
        "always",
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: declared)
    pytest.importorskip("packaging")
    assert requirements("x") == ["numpy>=1", "one>=2"]
    pytest.importorskip("pip")
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)  # a default install does not have it
    assert requirements("x") == ["numpy>=1", "one>=2"]
