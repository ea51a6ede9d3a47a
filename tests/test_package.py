"""The package itself: its verbs are seen by those who look, and by type checkers."""

import ast
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
