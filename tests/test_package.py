"""The package itself: its verbs are seen by those who look, and by type checkers."""

import ast
import configparser
import importlib
import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import hetero_tvm
from hetero_tvm.errors import UsageError
from tests.import_graph import ROOT, modules

_ONLY_THE_REQUIRED = """
import importlib, importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

names, absent = (one.split(",") for one in sys.argv[1:])
sys.meta_path.insert(0, Absent())
for name in names:
    importlib.import_module(name)
api = importlib.import_module("hetero_tvm.api")
for name in ("minilm-l6-tiny", "mobilenetv2-tiny"):
    api.optimize_model(api.import_model(f"zoo:{name}"))
"""
"""Imports modules where packages are absent, reads models, and optimizes them."""


def test_dir_shows_the_verbs():
    assert set(hetero_tvm.__all__) <= set(dir(hetero_tvm))
    for name in hetero_tvm.__all__:
        assert getattr(hetero_tvm, name) is not None


def test_the_stub_has_what_the_package_has():
    stub = Path(hetero_tvm.__file__).with_suffix(".pyi")
    names = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(stub.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(hetero_tvm.__all__) <= names
    for name in names - {"torch"}:  # dir() would make tools that look at everything import PyTorch
        assert getattr(hetero_tvm, name) is not None and name in dir(hetero_tvm)
    assert (stub.parent / "py.typed").exists()


def test_the_package_for_pytorch_is_there_without_an_import_of_its_own():
    program = "import hetero_tvm; print(hetero_tvm.torch.compile.__module__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "hetero_tvm.torch.module\n", done.stderr


@pytest.mark.parametrize("name, verb", [("build", "build_model"), ("tune", "tune_model")])
def test_a_part_of_a_verb_leads_to_it(name, verb):
    with pytest.raises(AttributeError, match=f"did you mean .*hetero_tvm.{verb}"):
        hetero_tvm.__getattr__(name)  # the command of this name may have been imported
    with pytest.raises(AttributeError, match="no attribute 'nothing'$"):
        _ = hetero_tvm.nothing


def test_the_door_to_pytorch_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "hetero_tvm.torch", raising=False)
    with pytest.raises(ModuleNotFoundError, match="needs PyTorch: .* -m pip install "):
        importlib.import_module("hetero_tvm.torch")


def test_misuse_says_what_to_do():
    model = hetero_tvm.import_model("zoo:minilm-l6-tiny")
    with pytest.raises(UsageError) as caught:
        hetero_tvm.build_model(model)
    assert "optimize_model(model, target=...)" in str(caught.value)
    with pytest.raises(UsageError, match="trials=-1 is no number of 0 or more") as caught:
        hetero_tvm.tune_model(hetero_tvm.optimize_model(model), trials=-1)
    assert "trials=64 is the default" in str(caught.value)


def test_the_runtime_wheel_says_that_it_holds_no_compiler(monkeypatch):
    monkeypatch.delattr(hetero_tvm, "api", raising=False)
    monkeypatch.setitem(sys.modules, "hetero_tvm.api", None)  # as where the file is not there
    with pytest.raises(UsageError, match="import_model is no part of hetero-tvm-runtime"):
        hetero_tvm.import_model("net.onnx")
    with pytest.raises(AttributeError, match="nothing"):
        hetero_tvm.nothing  # noqa: B018


@pytest.mark.parametrize("version, isolated", [("65.5.0", True), ("70.1.0", False), (None, True)])
def test_the_runtime_wheel_is_built_with_what_makes_wheels(version, isolated, tmp_path, monkeypatch):
    """The setuptools of a new virtual environment of Python 3.10 and 3.11 cannot; with 3.12 there is none."""
    script = runpy.run_path(str(Path(hetero_tvm.__file__).parents[1] / "packaging" / "runtime_wheel.py"))
    for name in [one for one in sys.modules if one.partition(".")[0] == "setuptools"]:
        monkeypatch.delitem(sys.modules, name)
    if version is not None:
        (commands := tmp_path / "setuptools" / "command").mkdir(parents=True)
        for module in (tmp_path / "setuptools", commands):
            (module / "__init__.py").touch()
        if not isolated:
            (commands / "bdist_wheel.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert script["_has_wheels"]() is not isolated


def test_a_default_install_has_what_the_commands_import():
    """Packages that only extras bring are asked for where they are used, not as a command starts."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = "\n".join(setup["options.extras_require"].values())
    wanted = [line for line in extras.split("\n") if line]
    absent = {re.split(r"[<>=;\s]", line)[0].replace("-", "_") for line in wanted} - {"numpy", "onnx"}
    # those that come by other names, and those that extras bring along
    absent |= {"xgboost", "ai_edge_litert", "pandas", "psutil", "safetensors", "huggingface_hub", "yaml"}
    commands = [name for name, path in modules().items() if "\ndef main(" in path.read_text(encoding="utf-8")]
    assert "hetero_tvm.tune" in commands and "scipy" in absent
    command = [sys.executable, "-c", _ONLY_THE_REQUIRED, ",".join(commands), ",".join(absent)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
