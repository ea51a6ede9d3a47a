"""Running products, determinants, blocked quantisers, caches and dropout: equal to ONNX's own evaluator."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from hetero_tvm import Span, load
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import HeteroTVMError, UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import against_reference, run_onnxruntime, text_model
from tests.selection import thorough


def test_products_and_determinants():
    model = text_model(
        """g (float[2,3,3] x, float[2,5] y) => (float[2] d, float[2,5] p, float[2,5] q) {
          d = Det (x)
          axis = Constant <value = int64 {-1}> ()
          first = Constant <value = int64 {0}> ()
          p = CumProd (y, axis)
          q = CumProd <exclusive = 1, reverse = 1> (y, first)
        }""",
        opset=26,
        ir=10,
    )
    random = np.random.default_rng(0)
    x, y = random.standard_normal((2, 3, 3), np.float32), random.standard_normal((2, 5), np.float32)
    against_reference(model, {"x": x, "y": y}, atol=1e-5)


@pytest.mark.parametrize("exclusive, reverse", [(0, 0), *thorough([(1, 0), (0, 1)]), (1, 1)])
def test_products_along_an_open_axis(exclusive, reverse, tmp_path):
    model = text_model(
        f"""g (float[2,n,3] x) => (float[2,n,3] y) {{
          axis = Constant <value = int64 {{1}}> ()
          y = CumProd <exclusive = {exclusive}, reverse = {reverse}> (x, axis)
        }}""",
        opset=26,
        ir=10,
    )
    opened = import_model(model, shapes={"x": (2, Span(1, 40), 3)})
    net = load(build_model(optimize_model(opened)).export(tmp_path / "products.so"))
    for extent in (1, 2, 7, 40):
        x = np.random.default_rng(0).standard_normal((2, extent, 3), np.float32)
        rows = np.flip(x, 1) if reverse else x
        rows = np.concatenate([np.ones_like(rows[:, :1]), rows[:, :-1]], 1) if exclusive else rows
        wanted = np.cumprod(rows, 1, dtype=np.float64)
        found = net(x)
        found = found[0] if isinstance(found, (list, tuple)) else found
        np.testing.assert_allclose(found, np.flip(wanted, 1) if reverse else wanted, rtol=1e-4, atol=1e-6)


def test_extrema_of_flags():
    model = text_model(
        """g (bool[3,4] x) => (bool[3,1] a, bool[4] b, bool[1,1] c, bool[3,4] d) {
          one = Constant <value = int64[1] {1}> ()
          zero = Constant <value = int64[1] {0}> ()
          a = ReduceMax (x, one)
          b = ReduceMin <keepdims = 0> (x, zero)
          c = ReduceMin (x)
          d = ReduceMax <noop_with_empty_axes = 1> (x)
        }""",
        opset=20,
        ir=10,
    )
    x = np.array([[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 1]], bool)
    against_reference(model, {"x": x}, atol=0)
    against_reference(model, {"x": ~x}, atol=0)


def test_larger_determinants_are_refused():
    with pytest.raises(UnsupportedOperatorError, match="matrices of 5 rows"):
        import_onnx(text_model("g (float[5,5] x) => (float y) { y = Det (x) }"))


def test_a_scale_per_block():
    model = text_model(
        """g (float[3,4] x, float[3,2] s, uint8[3,2] z) => (uint8[3,4] q, float[3,4] y) {
          q = QuantizeLinear <axis = 1, block_size = 2> (x, s, z)
          y = DequantizeLinear <axis = 1, block_size = 2> (q, s, z)
        }""",
        opset=21,
        ir=10,
    )
    random = np.random.default_rng(0)
    inputs = {
        "x": random.standard_normal((3, 4), np.float32) * 40,
        "s": random.random((3, 2), np.float32) + 0.1,
    }
    against_reference(model, {**inputs, "z": random.integers(0, 255, (3, 2), np.uint8)})


@pytest.mark.parametrize("mode, start", [("linear", [1, 0]), ("circular", [3, 2])])
def test_rows_of_a_cache(mode, start):
    model = text_model(
        f"""g (float[2,1,4,5] cache, float[2,1,2,5] rows, int64[2] at) => (float[2,1,4,5] y) {{
          y = TensorScatter <mode = "{mode}"> (cache, rows, at)
        }}""",
        opset=24,
        ir=10,
    )
    random = np.random.default_rng(0)
    cache, rows = random.random((2, 1, 4, 5), np.float32), random.random((2, 1, 2, 5), np.float32)
    expected = cache.copy()
    for sequence, first in enumerate(start):
        expected[sequence, :, [(first + n) % 4 for n in range(2)]] = rows[sequence].transpose(1, 0, 2)
    inputs = {"cache": cache, "rows": rows, "at": np.array(start)}
    (got,) = run_onnxruntime(import_onnx(model).onnx_model, inputs)
    np.testing.assert_array_equal(got, expected)


def test_places_of_new_rows_do_not_count_from_the_end():
    model = text_model(
        """g (float[1,4,2] cache, float[1,1,2] rows, int64[1] at) => (float[1,4,2] y) {
          y = TensorScatter (cache, rows, at)
        }""",
        opset=24,
        ir=10,
    )
    inputs = {"cache": np.zeros((1, 4, 2), np.float32), "rows": np.ones((1, 1, 2), np.float32)}
    cleaned = import_onnx(model).onnx_model
    with pytest.raises(Exception, match="the places of new rows must be 0 or more"):
        run_onnxruntime(cleaned, {**inputs, "at": np.array([-1])})


def test_dropout_outside_of_training():
    model = text_model(
        """g (float[3] x, float r) => (float[3] y, bool[3] m) { y, m = Dropout (x, r) }""",
    )
    x = np.array([1, 2, 3], np.float32)
    against_reference(model, {"x": x, "r": np.float32(0.5)})
    training = helper.make_node("Dropout", ["x", "r", "t"], ["y", "m"], "drop")
    model.graph.node[0].CopyFrom(training)
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "t"))
    with pytest.raises(UnsupportedOperatorError, match="training_mode=1"):
        import_onnx(model)


def test_dropout_that_is_told_to_train_when_it_runs():
    """The error says what is not supported, not that a shape is another one."""
    model = text_model("g (float[3] x, bool t) => (float[3] y) <float r = {0.5}> { y = Dropout (x, r, t) }")
    x = np.array([1, 2, 3], np.float32)
    against_reference(model, {"x": x, "t": np.array(False)})
    built = build_model(optimize_model(import_onnx(model)), use_shipped=False)
    with pytest.raises(HeteroTVMError, match="training_mode must be false, or the ratio 0"):
        built.run({"x": x, "t": np.array(True)})


@pytest.mark.parametrize("values", [[0, 0, 0], [0.5, 3, 1], [-2, -1, -3], [-1.5, 0, 2.25]])
def test_dynamic_quantisation_of_zeros_has_a_scale(values):
    """A scale of 1, as in ONNX Runtime; by the definition it would be 0, and its quotients not a number."""
    source = text_model(
        """g (float[1,3] x) => (uint8[1,3] q, float[] s, uint8[] z) {
          q, s, z = DynamicQuantizeLinear (x)
        }""",
        opset=13,
    )
    x = np.array([values], np.float32)
    expected = run_onnxruntime(source, {"x": x})
    results = build_model(optimize_model(import_onnx(source)), use_shipped=False).run({"x": x})
    assert [r.dtype for r in results] == [e.dtype for e in expected]
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "scales, reason",
    [
        ("2, 3", "3 scales for 8 elements in blocks of 4"),
        ("2, 8", "8 scales for 8 elements in blocks of 4"),
        ("1, 2", "scales of shape"),
    ],
)
def test_scales_of_other_blocks_are_refused(scales, reason):
    source = text_model(
        f"g (int8[2, 8] x, float[{scales}] s) => (float[2, 8] y)"
        "{ y = DequantizeLinear<axis = 1, block_size = 4>(x, s) }",
        opset=21,
        ir=10,
    )
    with pytest.raises(UnsupportedOperatorError, match=reason):
        import_onnx(source)
