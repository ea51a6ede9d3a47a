"""Work of kernels of any size: that of the model at the sizes that are asked for."""

import numpy as np
import pytest

from hetero_tvm import Span
from hetero_tvm.api import import_model, optimize_model
from hetero_tvm.compile.dynamic.work import open_work
from hetero_tvm.runtime.manifest import Manifest
from tests.frontend.onnx.helpers import add_weight, text_model

IMAGES = """g (float[n,3,h,w] x) => (float[n,4,a,b] y) {
    c = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, f) r = Relu(c)
    p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r) s = Softmax<axis = 1>(p) y = Add(s, p) }"""


def images():
    filters = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    return add_weight(text_model(IMAGES), "f", filters), {
        "x": (Span(1, 3), 3, Span(16, 48, 8), Span(16, 40, 8))
    }


def rows():
    text = "g (float[b,s,8] x) => (float[b,s,6] y) { a = MatMul(x, w) y = Softmax(a) }"
    weight = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    return add_weight(text_model(text), "w", weight), {"x": (Span(1, 5), Span(1, 30), 8)}


def strides():
    """Extents that are quotients and a number, as ``(n + 7)//10 - 1``."""
    text = """g (float[b,3,n] x) => (float[b,4,m] y) {
        a = Conv<strides = [5]>(x, w) y = Conv<strides = [2]>(a, v) }"""
    rng = np.random.default_rng(0)
    model = add_weight(text_model(text), "w", rng.standard_normal((4, 3, 3)).astype(np.float32))
    model = add_weight(model, "v", rng.standard_normal((4, 4, 3)).astype(np.float32))
    return model, {"x": (Span(1, 3), 3, Span(60, 400))}


MODELS = [(images, {"n": 2, "h": 24, "w": 32}), (rows, {"b": 3, "s": 17}), (strides, {"b": 2, "n": 77})]


@pytest.mark.parametrize(("make", "sizes"), MODELS)
def test_work_and_names_are_those_of_the_sizes(make, sizes):
    model, shapes = make()
    optimized = optimize_model(import_model(model, shapes=shapes))
    fixed = optimize_model(optimized.model.open.at(sizes))
    entries = open_work(optimized.tasks_at_sizes(), optimized.lengths.sizes)
    names = [entries[task.key]["kernel"] for task in optimized.tasks]
    assert len(set(names)) == len(names)
    assert all("?" not in name and name.count("(") >= (name != "add") for name in names), names
    kernels = [{**entries[task.key], "symbols": []} for task in optimized.tasks]
    found = Manifest("m", optimized.signature, kernels=kernels).kernels_at(sizes)
    assert [(row["flops"], row["bytes"]) for row in found] == [(t.flops, t.nbytes) for t in fixed.tasks]
