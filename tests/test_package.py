"""The package itself: its verbs are seen by those who look, and by type checkers."""

import ast
import sys
from pathlib import Path

import pytest

import hetero_tvm
from hetero_tvm.errors import UsageError


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
    assert (stub.parent / "py.typed").exists()


def test_misuse_says_what_to_do():
    model = hetero_tvm.import_model("zoo:minilm-l6-tiny")
    with pytest.raises(UsageError) as caught:
        hetero_tvm.build_model(model)
    assert "optimize_model(model, target=...)" in str(caught.value)
    with pytest.raises(UsageError, match="trials=-1 is negative") as caught:
        hetero_tvm.tune_model(hetero_tvm.optimize_model(model), trials=-1)
    assert "trials=64 is the default" in str(caught.value)


def test_the_runtime_wheel_says_that_it_holds_no_compiler(monkeypatch):
    monkeypatch.delattr(hetero_tvm, "api", raising=False)
    monkeypatch.setitem(sys.modules, "hetero_tvm.api", None)  # as where the file is not there
    with pytest.raises(UsageError, match="import_model is no part of hetero-tvm-runtime"):
        hetero_tvm.import_model("net.onnx")
    with pytest.raises(AttributeError, match="nothing"):
        hetero_tvm.nothing  # noqa: B018
