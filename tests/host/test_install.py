"""Commands for pip that a user can type as they stand."""

import importlib.metadata
import sys

import pytest

from hetero_tvm.host.install import extra_command, pip_command, requirements
from tests.import_graph import ROOT


def test_commands_are_for_this_interpreter(monkeypatch):
    monkeypatch.chdir("/")
    command = pip_command("onnxruntime", "torch==2.13.0", "a[b]>=1")
    assert command.split()[0] in (sys.executable, sys.executable.lstrip("/"))
    assert command.endswith("-m pip install onnxruntime torch==2.13.0 'a[b]>=1'")


def test_an_extra_comes_from_the_checkout(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert extra_command("bench").endswith("-m pip install '.[bench]'")


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
