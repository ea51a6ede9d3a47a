"""Our own converters: plain operators instead of kernels, equal to the reference."""

import numpy as np
import onnx
import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend import import_model, import_onnx
from hetero_tvm.reference import compare, run_reference, sample_inputs
from tests.frontend.onnx.helpers import add_weight, bindings, run_tvm, text_model


def test_gather_counts_negative_indices_from_the_end():
    source = text_model("g (int64[2,2] i) => (float[2,2,3] y) { y = Gather(w, i) }")
    add_weight(source, "w", np.arange(12, dtype=np.float32).reshape(4, 3))
    model = import_onnx(source)
    assert len(bindings(model)) == 1
    inputs = {"i": np.array([[0, -1], [3, -4]])}
    assert compare(run_tvm(model, inputs), run_reference(model, inputs)).ok


def test_known_indices_of_a_scatter_stay_known():
    model = text_model(
        """scatter (float[4, 2] x, float[2, 2] u) => (float[4, 2] y) <int64[2, 1] i = {3, -4}> {
            y = ScatterND(x, i, u) }"""
    )
    imported = import_model(model)
    assert len(bindings(imported)) == 1
    inputs = {"x": np.zeros((4, 2), np.float32), "u": np.ones((2, 2), np.float32)}
    (y,) = run_tvm(imported, inputs)
    assert y[:, 0].tolist() == [1, 0, 0, 1]
    onnx_model = text_model(
        """scatter (float[4, 2] x, float[1, 2] u) => (float[4, 2] y) <int64[1, 1] i = {4}> {
            y = ScatterND(x, i, u) }"""
    )
    with pytest.raises(ModelError, match="an index lies outside the tensor"):
        import_model(onnx_model)


def test_clip_is_two_plain_operators():
    model = import_onnx(
        text_model(
            "g (float[8] x) => (float[8] y) { y = Clip(x, lo, hi) }".replace(
                "{", "<float lo = {-1.0}, float hi = {0.5}> {"
            )
        )
    )
    assert [binding.value.op.name for binding in bindings(model)] == ["relax.maximum", "relax.minimum"]
    inputs = {"x": np.linspace(-3, 3, 8, dtype=np.float32)}
    assert compare(run_tvm(model, inputs), run_reference(model, inputs)).ok


@pytest.mark.parametrize("equation", ["bij, bkj -> bik", "bij,bkj", "...ij,...kj->...ik"])
def test_einsum_is_one_operator(equation):
    operator = f'Einsum<equation="{equation}">'
    text = f"g (float[2, 3, 4] a, float[2, 5, 4] b) => (float[N, M, K] y) {{ y = {operator}(a, b) }}"
    model = import_onnx(text_model(text))
    names = [b.value.op.name for b in bindings(model) if hasattr(b.value, "op")]
    assert names == (["relax.einsum"] if "." not in equation else ["relax.call_tir"])
    generator = np.random.default_rng(0)
    inputs = {s.name: generator.standard_normal(s.shape).astype("float32") for s in model.signature.inputs}
    expected = np.einsum(equation.replace(" ", ""), *inputs.values())
    np.testing.assert_allclose(run_tvm(model, inputs)[0], expected, atol=1e-5)


@pytest.mark.parametrize("operator, numpy", [("Max", np.maximum), ("Min", np.minimum)])
def test_extremes_of_tensors_are_plain_operators(operator, numpy):
    text = f"g (float[2, 3] a, float[3] b, float[1, 1] c) => (float[2, 3] y) {{ y = {operator}(a, b, c) }}"
    model = import_onnx(text_model(text))
    names = [b.value.op.name for b in bindings(model) if hasattr(b.value, "op")]
    step = "relax.maximum" if operator == "Max" else "relax.minimum"
    assert names == ["relax.isnan", step, "relax.where"] * 2
    generator = np.random.default_rng(0)
    inputs = {s.name: generator.standard_normal(s.shape).astype("float32") for s in model.signature.inputs}
    a, b, c = inputs.values()
    np.testing.assert_array_equal(run_tvm(model, inputs)[0], numpy(numpy(a, b), c))


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
def test_automatic_padding_of_convolutions(mode):
    """It becomes padding of the convolution, not a kernel of its own."""
    height, width = (4, 6) if mode.startswith("SAME") else (3, 4)
    attributes = f'auto_pad = "{mode}", strides = [2, 1], dilations = [1, 2], kernel_shape = [3, 2]'
    body = (
        f"g (float[1,2,7,6] x, float[3,2,3,2] w) => (float[1,3,{height},{width}] y) "
        f"{{ y = Conv<{attributes}>(x, w) }}"
    )
    model = import_model(text_model(body))
    assert "call_tir" not in str(model.module["main"])
    inputs = sample_inputs(model)
    assert compare(run_tvm(model, inputs), run_reference(model, inputs)).ok


@pytest.mark.parametrize("value", ["0", "-2.5"])
def test_constant_pad(value):
    body = (
        "g (float[2,3,4] x) => (float[2,6,5] y) "
        "{ p = Constant<value = int64[6] {0, 1, 1, 0, 2, 0}>() "
        f"v = Constant<value = float {{{value}}}>() y = Pad(x, p, v) }}"
    )
    model = import_model(text_model(body))
    assert "call_tir" not in str(model.module["main"])
    inputs = sample_inputs(model)
    assert compare(run_tvm(model, inputs), run_reference(model, inputs)).ok


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", ["uint8", "uint32", "int64"])
def test_shifts_by_the_width_or_more_leave_the_sign_alone(direction, dtype):
    opset = 28 if dtype == "int64" else 17
    if opset > onnx.defs.onnx_opset_version():
        pytest.skip("the installed onnx shifts unsigned numbers only")
    text = f'{{ y = BitShift<direction = "{direction}">(x, n) }}'
    source = text_model(f"g ({dtype}[5] x, {dtype}[5] n) => ({dtype}[5] y) {text}", opset=opset, ir=8)
    x, n = np.array([200, 200, 3, 255, 9], dtype), np.array([1, 100, 64, 7, 0], dtype)
    width = np.dtype(dtype).itemsize * 8
    with np.errstate(all="ignore"):
        shifted = x << n % width if direction == "LEFT" else x >> n % width
    expected = np.where(n < width, shifted, 0).astype(dtype)
    np.testing.assert_array_equal(run_tvm(import_onnx(source), {"x": x, "n": n})[0], expected)


@pytest.mark.parametrize("positive, negative", [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_infinities_of_one_sign(positive, negative):
    operator = f"IsInf<detect_positive = {positive}, detect_negative = {negative}>"
    model = import_onnx(text_model(f"g (float[4] x) => (bool[4] y) {{ y = {operator}(x) }}"))
    (y,) = run_tvm(model, {"x": np.array([np.inf, -np.inf, np.nan, 1], np.float32)})
    assert y.tolist() == [bool(positive), bool(negative), False, False]


def test_remainders_of_infinities_and_of_division_by_zero():
    x = np.array([5, -5, 5, -5, 7.5, -7.5, 1e10, np.inf], np.float32)
    n = np.array([np.inf, np.inf, -np.inf, -np.inf, -2, 2, 3, 3], np.float32)
    text = "g (float[8] x, float[8] n) => (float[8] y) { y = Mod<fmod = 1>(x, n) }"
    with np.errstate(invalid="ignore"):
        (y,) = run_tvm(import_onnx(text_model(text)), {"x": x, "n": n})
        np.testing.assert_array_equal(y, np.fmod(x, n))
    text = "g (int64[4] x, int64[4] n) => (int64[4] y) { y = Mod(x, n) }"
    x, n = np.array([5, -5, 5, -5]), np.array([0, 3, -3, 0])
    assert run_tvm(import_onnx(text_model(text)), {"x": x, "n": n})[0].tolist() == [0, 1, -1, 0]


@pytest.mark.parametrize(
    "body",
    [
        "(float[2,3] x, float low) => (float[2,3] y) { y = Clip(x, low) }",
        "(float[2,3] x) => (float[2,3] y) { y = Max(x) }",
        "(float[2,3] x) => (float[2,3,2] y) { p = Constant<value = int64[6] {0, 0, 0, 0, 0, 1}>() "
        'u = Unsqueeze(x, two) y = Pad<mode = "edge">(u, p) }',
    ],
    ids=["clip with computed bounds", "maximum of one", "pad with the edge"],
)
def test_other_forms_go_to_the_converters_of_tvm(body):
    source = text_model(f"g {body}")
    add_weight(source, "two", np.array([2]))
    model = import_onnx(source)
    inputs = sample_inputs(model)
    assert compare(run_tvm(model, inputs), run_reference(model, inputs)).ok


@pytest.mark.parametrize(
    "operator",
    [
        "[1, 2] y) { y = GatherND(x, at)",
        "[1, 1] y) { y = GatherElements(x, at)",
        "[4, 2] y) { y = ScatterElements(x, at, u)",
        "[4, 2] y) { y = ScatterND(x, at, u1)",
        "[1, 1, 2] y) { y = Gather(x, at)",
    ],
)
@pytest.mark.parametrize("index", [4, -5, 2**31 - 1])
def test_known_indices_outside_name_the_node(operator, index):
    operator = operator.replace("{", f"<int64[1, 1] at = {{{index}}}> {{")
    text = f"g (float[4, 2] x, float[1, 1] u, float[1, 2] u1) => (float{operator} }}"
    with pytest.raises(ModelError) as caught:
        import_model(text_model(text, "victim"))
    assert "victim" in str(caught.value) and "an index lies outside" in str(caught.value)


@pytest.mark.parametrize("operator", ["Div", "Mod"])
def test_known_divisors_of_zero_name_the_node(operator):
    text = f"g (int32[2] x) => (int32[2] y) <int32[2] d = {{1, 0}}> {{ y = {operator}(x, d) }}"
    with pytest.raises(ModelError, match="victim"):
        import_model(text_model(text, "victim"))
