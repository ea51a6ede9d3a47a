"""Linking with the compiler's own files in a folder that goes away."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from hetero_tvm.api import build_model, optimize_model
from hetero_tvm.compile import linking
from hetero_tvm.errors import BuildError
from hetero_tvm.frontend import import_onnx
from hetero_tvm.runtime import load
from tests.frontend.onnx.helpers import add_weight, text_model
from tests.selection import thorough


@pytest.fixture
def built():
    model = import_onnx(text_model("g (float[8] x) => (float[8] y) { y = Exp(x) }"))
    return build_model(optimize_model(model), use_shipped=False)


def _compiler(folder: Path, script: str) -> str:
    command = folder / "compiler"
    command.write_text(f'#!/bin/sh\n{script}\nexec {shutil.which("g++")} "$@"\n')
    command.chmod(0o755)
    return str(command)


def test_the_compiler_has_a_folder_of_its_own(built, tmp_path, monkeypatch):
    said = tmp_path / "said"
    monkeypatch.setenv("CXX", _compiler(tmp_path, f'echo "$TMPDIR" > {said}; touch "$TMPDIR/cc-left-behind"'))
    net = built.export(tmp_path / "out")
    folder = Path(said.read_text().strip())
    assert folder.name.startswith("hetero_tvm-link-") and not folder.exists()
    assert os.path.exists(net)
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    np.testing.assert_allclose(built.run({"x": x})[0], np.exp(x), rtol=1e-6)


def test_what_the_linker_says_is_told(built, tmp_path, monkeypatch):
    script = 'case "$*" in *-shared*) echo "undefined reference to nothing" >&2; exit 1;; esac'
    monkeypatch.setenv("CXX", _compiler(tmp_path, script))
    with pytest.raises(BuildError) as raised:
        built.export(tmp_path / "out")
    assert "undefined reference to nothing" in str(raised.value)


def test_a_file_where_a_folder_is_wanted_is_named(built, tmp_path):
    (tmp_path / "out").write_text("something else")
    with pytest.raises(BuildError, match=r"out is a file, and a folder is wanted there"):
        built.export(tmp_path / "out" / "model.so")


def test_a_linker_that_is_killed_has_a_hint_of_its_own(built, tmp_path, monkeypatch):
    said = 'echo "collect2: fatal error: ld terminated with signal 9 [Killed]" >&2; exit 1'
    monkeypatch.setenv("CXX", _compiler(tmp_path, f'case "$*" in *-shared*) {said};; esac'))
    with pytest.raises(BuildError, match="signal 9") as caught:
        built.export(tmp_path / "out")
    assert "want of memory" in str(caught.value)


def _of_parts():
    """A built model of so many kernels that they are compiled in parts, and its values in float64."""
    rng, widths = np.random.default_rng(1), range(8, 80, 8)
    shapes = zip(widths, widths[1:], strict=False)
    weights = [rng.uniform(-0.3, 0.3, shape).astype("float32") for shape in shapes]
    steps = " ".join(f"h{n + 1} = MatMul(h{n}, w{n})" for n in range(len(weights)))
    model = text_model(f"g (float[2,8] h0) => (float[2,72] h{len(weights)}) {{ {steps} }}")
    for number, weight in enumerate(weights):
        add_weight(model, f"w{number}", weight)
    x = rng.standard_normal((2, 8)).astype("float32")
    built = build_model(optimize_model(import_onnx(model)), use_shipped=False)
    assert len(built.executable.mod.imports) > 1
    return built, x, np.linalg.multi_dot([x.astype("float64"), *weights])


@pytest.mark.parametrize("run_first", [*thorough([True]), False])
def test_machine_code_is_made_once_to_run_and_to_export(run_first, tmp_path, monkeypatch):
    built, x, expected = _of_parts()
    made = []
    monkeypatch.setattr(linking, "_make_machine_code", lambda part: made.append("in this process"))
    together = linking.side_by_side
    monkeypatch.setattr(
        linking, "side_by_side", lambda task, parts: made.append("object files") or together(task, parts)
    )
    results = [built.run({"h0": x})[0]] if run_first else []
    net = load(built.export(tmp_path / "model.so"))
    results += [built.run({"h0": x})[0], np.asarray(net(x))]
    assert made == ["object files"]
    for result in results:
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(result, results[0])
    assert all(part.kind == "llvm" for part in built.executable.mod.imports)  # as they were


def test_parts_run_without_a_compiler(monkeypatch):
    built, x, expected = _of_parts()
    monkeypatch.setenv("CXX", "/no/such/compiler")
    np.testing.assert_allclose(built.run({"h0": x})[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_one_model_at_one_time_gives_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    model = text_model("g (float[2,16] x) => (float[2,8] y) { h = MatMul(x, w) y = Softmax(h) }")
    add_weight(model, "w", np.random.default_rng(0).standard_normal((16, 8)).astype("float32"))
    made = [
        build_model(optimize_model(import_onnx(model), "cpu")).export(tmp_path / name)
        for name in ("a.so", "b.so")
    ]
    assert made[0].read_bytes() == made[1].read_bytes()
