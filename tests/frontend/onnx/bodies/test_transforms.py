"""DFT, STFT, Col2Im and ReverseSequence in plain operators: equal to ONNX's own evaluator."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend import import_model, import_onnx
from tests.frontend.onnx.helpers import against_reference, run_tvm, text_model
from tests.selection import named


def model_of(kind, x, *constants, opset=20, **attributes):
    weights = [
        numpy_helper.from_array(np.array(c, np.int64), f"c{n}") for n, c in enumerate(constants) if c != ""
    ]
    names = ["x", *(f"c{n}" if c != "" else "" for n, c in enumerate(constants))]
    graph = helper.make_graph(
        [helper.make_node(kind, names, ["y"], "node", **attributes)],
        "transform",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * (x.ndim + (kind == "Col2Im")))],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def noise(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


CASES = {
    "real": ("DFT", noise(2, 7, 1), (), {}),
    "complex, another axis": ("DFT", noise(2, 5, 3, 2), ("", 1), {}),
    "one side": ("DFT", noise(2, 6, 1), ("", 1), {"onesided": 1}),
    "back": ("DFT", noise(2, 6, 2), ("", -2), {"inverse": 1}),
    "cut": ("DFT", noise(2, 6, 1), (4, 1), {}),
    "filled up": ("DFT", noise(2, 6, 2), (9, 1), {}),
    "axis as attribute": ("DFT", noise(2, 6, 3, 1), (), {"axis": 2, "opset": 17}),
    "blocks apart": ("Col2Im", noise(2, 12, 6), ([4, 6], [2, 2]), {"strides": [2, 2]}),
    "blocks that overlap": (
        "Col2Im",
        noise(1, 18, 12),
        ([5, 7], [3, 3]),
        {"strides": [2, 2], "pads": [1, 1, 1, 1]},
    ),
    "blocks with holes": ("Col2Im", noise(1, 8, 12), ([5, 6], [2, 2]), {"dilations": [2, 2]}),
}


@pytest.mark.parametrize(
    "kind, x, constants, options", named(CASES, {"real", "one side", "back", "blocks that overlap", "cut"})
)
def test_numbers(kind, x, constants, options):
    model = model_of(kind, x, *constants, **options)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    (got,) = run_tvm(import_model(model), {"x": x})
    # Sums of up to nine values of order one, in another order.
    np.testing.assert_allclose(got, expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_a_special_value_stays_where_it_lies(special):
    x = noise(1, 8, 8)
    x[0, 3, 2] = special
    model = model_of("Col2Im", x, [3, 5], [2, 2])
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    assert np.count_nonzero(~np.isfinite(expected)) == 1
    (got,) = run_tvm(import_model(model), {"x": x})
    np.testing.assert_allclose(got, expected, rtol=0, atol=5e-6)


def test_refused():
    with pytest.raises(UnsupportedOperatorError, match="transforms 8192 values"):
        import_model(model_of("DFT", noise(1, 8192, 1)))
    with pytest.raises(UnsupportedOperatorError, match="frames of 8 values, and a signal of 7"):
        import_model(model_of("STFT", noise(1, 7, 1), 4, "", 8))


@pytest.mark.parametrize("given", ["window", "length", "both"])
@pytest.mark.parametrize("onesided", [0, 1])
def test_frames_of_a_signal(given, onesided):
    window, length = "w" if given != "length" else '""', "n" if given != "window" else '""'
    source = text_model(
        f"g (float[2,21,1] x) => (float[2,5,k,2] y) "
        f"<int64 s = {{4}}, int64 n = {{5}}, float[5] w = {{0.1, 0.5, 1, 0.5, 0.2}}> "
        f"{{ y = STFT<onesided={onesided}>(x, s, {window}, {length}) }}"
    )
    x = noise(2, 21, 1)
    (expected,) = ReferenceEvaluator(source).run(None, {"x": x})
    (got,) = run_tvm(import_model(source), {"x": x})
    np.testing.assert_allclose(got, expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize("parts", [1, 2])
def test_frames_have_half_of_the_frequencies_by_default(parts):
    """ONNX's inference of shapes counts all; of complex signals ONNX Runtime has half too."""
    source = text_model(
        f"g (float[2,21,{parts}] x) => (float[2,5,2] y) <int64 s = {{4}}, int64 n = {{5}}> "
        "{ z = STFT(x, s, , n) y = ReduceMax<axes = [2], keepdims = 0>(z) }"
    )
    against_reference(source, {"x": noise(2, 21, parts)}, atol=5e-6, judge="onnxruntime")


@pytest.mark.thorough
@pytest.mark.parametrize("time", [0, 1])
@pytest.mark.parametrize("known", [True, False])
def test_the_beginning_of_every_sequence_is_reversed(time, known):
    shape = (4, 3, 2) if time == 0 else (3, 4, 2)
    dims = ",".join(map(str, shape))
    operator = f"ReverseSequence<time_axis={time}, batch_axis={1 - time}>"
    head = f"float[{dims}] x" + ("" if known else ", int64[3] n")
    body = ("<int64[3] n = {1, 4, 3}> " if known else "") + f"{{ y = {operator}(x, n) }}"
    source = text_model(f"g ({head}) => (float[{dims}] y) {body}")
    inputs = {"x": noise(*shape)} | ({} if known else {"n": np.array([1, 4, 3])})
    (expected,) = ReferenceEvaluator(source).run(None, inputs)
    (got,) = run_tvm(import_model(source), inputs)
    np.testing.assert_array_equal(got, expected)


def test_columns_of_other_images_are_refused():
    text = "g (float[1, 5, 9] x) => (float[1, 1, 5, 5] y) <int64[2] i = {5, 5}, int64[2] k = {1, 5}>"
    with pytest.raises(UnsupportedOperatorError, match="its image has 5 blocks"):
        import_onnx(text_model(text + "{ y = Col2Im(x, i, k) }", opset=18))


def test_signals_of_four_dimensions_without_a_frame_are_refused():
    text = "g (float[1, 3, 9, 1] x) => (float[a, b, c, d] y) <int64 s = {1}, int64 l = {4}>"
    source = text_model(text + "{ y = STFT(x, s, , l) }", opset=17)
    source.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedOperatorError, match="a signal of shape"):
        import_onnx(source)
