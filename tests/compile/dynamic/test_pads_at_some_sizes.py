"""Networks that pad what they enlarge to the size of what they had, which is by nothing at some sizes."""

import numpy as np
import pytest
from onnx import numpy_helper

import hetero_tvm
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import UsageError
from tests.frontend.onnx.helpers import text_model

BODY = """
agraph (float[1, 2, n] x) => (float[1, 2, m] y) {
   half = MaxPool<kernel_shape=[2], strides=[2]>(x)
   quarter = MaxPool<kernel_shape=[2], strides=[2]>(half)
   large = ConvTranspose<kernel_shape=[2], strides=[2]>(quarter, w)
   was = Shape<start=2>(half)
   is = Shape<start=2>(large)
   more = Sub(was, is)
   pads = Concat<axis=0>(none, more)
   padded = Pad(large, pads)
   sum = Add(padded, half)
   larger = ConvTranspose<kernel_shape=[2], strides=[2]>(sum, w)
   before = Shape<start=2>(x)
   now = Shape<start=2>(larger)
   rest = Sub(before, now)
   ends = Concat<axis=0>(none, rest)
   wide = Pad(larger, ends)
   y = Add(wide, x)
}"""


@pytest.fixture(scope="module")
def model():
    found = text_model(BODY)
    w = np.random.default_rng(0).normal(size=(2, 2, 2)).astype("float32")
    found.graph.initializer.append(numpy_helper.from_array(w, "w"))
    found.graph.initializer.append(numpy_helper.from_array(np.zeros(5, "int64"), "none"))
    return found


def test_a_range_that_ends_where_nothing_is_padded_is_refused_with_its_step(model):
    with pytest.raises(UsageError, match="pads by nothing at its largest sizes") as refused:
        optimize_model(import_model(model, shapes={"x": (1, 2, hetero_tvm.Span(16, 200))}))
    assert "n = 16..200:4" in refused.value.hint and "one less" not in refused.value.hint


def test_a_range_that_ends_where_all_is_padded_is_refused_too(model):
    """All sizes at which the model takes the same steps have the same rest: nothing tells what is padded at
    others, whose numbers were wrong."""
    with pytest.raises(UsageError, match="pads at some sizes") as refused:
        optimize_model(import_model(model, shapes={"x": (1, 2, hetero_tvm.Span(16, 199))}))
    assert "n = 16..196:4" in refused.value.hint


@pytest.mark.thorough
def test_in_steps_it_is_one_library(model, tmp_path):
    from onnxruntime import InferenceSession

    optimized = optimize_model(import_model(model, shapes={"x": (1, 2, hetero_tvm.Span(16, 200, 4))}))
    net = hetero_tvm.load(build_model(optimized).export(tmp_path))
    reference = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for n in (16, 60, 200):
        x = np.random.default_rng(n).normal(size=(1, 2, n)).astype("float32")
        np.testing.assert_allclose(net(x), reference.run(None, {"x": x})[0], rtol=1e-5, atol=1e-5)
