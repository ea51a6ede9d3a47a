"""Volumes of any number, length, height and width: kernels that read slices, at all sizes."""

import numpy as np
import pytest
from onnx import numpy_helper
from onnxruntime import InferenceSession

import hetero_tvm
from hetero_tvm.api import build_model, import_model, optimize_model
from tests.frontend.onnx.helpers import text_model
from tests.selection import thorough

BODY = """
agraph (float[n, 3, t, h, v] x) => (float[n, 16, t, h, v] y) {
   first = Conv<pads=[1, 1, 1, 1, 1, 1]>(x, w)
   gated = Relu(first)
   deep = Conv<pads=[2, 1, 1, 0, 1, 1], group=32>(gated, d)
   sum = Add(deep, gated)
   y = Conv<pads=[1, 1, 1, 1, 1, 1]>(sum, v)
}"""
WEIGHTS = {"w": (32, 3, 3, 3, 3), "d": (32, 1, 3, 3, 3), "v": (16, 32, 3, 3, 3)}


@pytest.fixture(scope="module")
def model():
    found = text_model(BODY)
    for name, shape in WEIGHTS.items():
        w = np.random.default_rng(len(name)).normal(size=shape).astype("float32")
        found.graph.initializer.append(numpy_helper.from_array(w, name))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(
    "shape, sizes",
    [
        ((hetero_tvm.Span(1, 5), 3, 7, 6, 5), [(1, 7, 6, 5), (2, 7, 6, 5), (5, 7, 6, 5)]),
        *thorough(
            [
                ((2, 3, hetero_tvm.Span(2, 9), 6, 5), [(2, 2, 6, 5), (2, 5, 6, 5), (2, 9, 6, 5)]),
                (
                    (hetero_tvm.Span(1, 3), 3, hetero_tvm.Span(2, 9), *[hetero_tvm.Span(3, 20)] * 2),
                    [(1, 2, 3, 20), (2, 5, 17, 7), (3, 9, 20, 20)],
                ),
            ]
        ),
    ],
)
def test_one_library(model, tmp_path, shape, sizes):
    optimized = optimize_model(import_model(model, shapes={"x": shape}))
    kinds = [task.op.kind for task in optimized.tasks if task.op is not None]
    assert kinds.count("conv3d") >= 2
    assert all(t.space is not None for t in optimized.tasks if t.op is not None and t.op.kind == "conv3d")
    net = hetero_tvm.load(build_model(optimized).export(tmp_path))
    reference = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for n, *extents in sizes:
        x = np.random.default_rng(n).normal(size=(n, 3, *extents)).astype("float32")
        wanted = reference.run(None, {"x": x})[0]
        assert np.abs(net(x) - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_copies_that_pay_at_some_batches_only(tmp_path):
    model = text_model(
        """
        agraph (float[n, 2, 3, 8, 8] x) => (float[n, 4, 3, 8, 8] y) {
           first = Conv<pads=[1, 1, 1, 1, 1, 1]>(x, w)
           y = Relu(first)
        }"""
    )
    w = np.random.default_rng(0).normal(size=(4, 2, 3, 3, 3)).astype("float32")
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    optimized = optimize_model(import_model(model, shapes={"x": (hetero_tvm.Span(1, 4), 2, 3, 8, 8)}))
    net = hetero_tvm.load(build_model(optimized).export(tmp_path))
    reference = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for n in (1, 3, 4):
        x = np.random.default_rng(n).normal(size=(n, 2, 3, 8, 8)).astype("float32")
        wanted = reference.run(None, {"x": x})[0]
        assert np.abs(net(x) - wanted).max() <= 1e-5 * np.abs(wanted).max()
