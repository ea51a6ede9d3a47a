"""Kernels of a model that are compiled in parts."""

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.api import build_model, optimize_model
from hetero_tvm.frontend import import_onnx
from hetero_tvm.targets.cpu import parts
from tests.frontend.onnx.helpers import text_model
from tests.selection import thorough

DEPTHS = (8, 16, 24, 12, 20, 28)
"""Widths of products that follow one another: each is a kernel of its own."""


def source():
    steps, inputs, width = [], ["float[3,8] x0"], 8
    for n, depth in enumerate(DEPTHS):
        inputs.append(f"float[{width},{depth}] w{n}")
        steps.append(f"y{n} = MatMul(x{n}, w{n}) x{n + 1} = Softmax(y{n})")
        width = depth
    last = len(DEPTHS)
    return text_model(f"g ({', '.join(inputs)}) => (float[3,{width}] x{last}) {{ {' '.join(steps)} }}")


def numbers(feeds):
    x = feeds["x0"].astype(np.float64)
    for number in range(len(DEPTHS)):
        x = x @ feeds[f"w{number}"]
        x = np.exp(x - x.max(-1, keepdims=True))
        x = x / x.sum(-1, keepdims=True)
    return x


@pytest.mark.parametrize("most", [*thorough([1]), 3])
def test_a_model_in_parts(monkeypatch, tmp_path, most):
    """All of them run, in this process and from the exported file; six products of 28 terms at most."""
    monkeypatch.setattr(parts, "_PARTS", most)
    monkeypatch.setattr(parts, "_LEAST", 2)
    built = build_model(optimize_model(import_onnx(source())), use_shipped=False)
    generator = np.random.default_rng(0)
    shapes = {spec.name: spec.shape for spec in built.optimized.signature.inputs}
    feeds = {name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    found = [part for part in built.executable.mod.imports if part.kind == "llvm"]
    assert len(found) == most
    (result,) = built.run(feeds)
    np.testing.assert_allclose(result, numbers(feeds), rtol=1e-5, atol=1e-6)
    net = hetero_tvm.load(built.export(tmp_path / "out"))
    again = net(**feeds)
    np.testing.assert_array_equal(again, result)
