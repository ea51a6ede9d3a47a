"""Our own converters: plain operators instead of kernels, equal to the reference."""

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator

import hetero_tvm
from hetero_tvm.errors import HeteroTVMError, ModelError
from hetero_tvm.frontend import import_model, import_onnx
from hetero_tvm.reference import compare, run_reference, sample_inputs
from tests.frontend.onnx.helpers import add_weight, against_original, bindings, run_tvm, text_model
from tests.selection import thorough


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
    assert names == [step] * 2
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


@pytest.mark.parametrize("given", ["float v", "uint8 q"])
def test_pad_with_a_value_known_at_run_time(given):
    # Quantisers write the value as a byte, which stays one as quantised weights do.
    body = (
        f"g (float[2,3,4] x, {given}) => (float[2,6,5] y) "
        "{ p = Constant<value = int64[6] {0, 1, 1, 0, 2, 0}>() s = Constant<value = float {0.5}>() "
        + ("v = DequantizeLinear(q, s) " if "q" in given else "")
        + "y = Pad(x, p, v) }"
    )
    model = import_model(text_model(body))
    inputs = sample_inputs(model)
    inputs[given.split()[1]] = np.array(-7.5, np.float32) if "v" in given else np.array(7, np.uint8)
    assert compare(run_tvm(model, inputs), run_reference(model, inputs)).ok


@pytest.mark.parametrize("value", [2**53 + 1, np.iinfo(np.int64).max, np.iinfo(np.int64).min, -7])
def test_pad_with_an_integer_that_no_float64_is(value):
    source = text_model(
        "g (int64[2,3] x) => (int64[3,5] y) "
        "{ p = Constant<value = int64[4] {0, 2, 1, 0}>() y = Pad(x, p, v) }"
    )
    add_weight(source, "v", np.int64(value))
    x = np.arange(6).reshape(2, 3)
    (y,) = run_tvm(import_onnx(source), {"x": x})
    np.testing.assert_array_equal(y, np.pad(x, [(0, 1), (2, 0)], constant_values=value))


@pytest.mark.parametrize("pads", ["1, 0, 1, 2", "2, 0, 0, 0", "0, 3, 1, 3", "0, 0, 0, 0"])
def test_wrapped_pad_joins_ends(pads):
    before, left, after, right = map(int, pads.split(","))
    body = (
        f"g (float[2,3] x) => (float[{2 + before + after},{3 + left + right}] y) "
        f'{{ p = Constant<value = int64[4] {{{pads}}}>() y = Pad<mode = "wrap">(x, p) }}'
    )
    model = import_model(text_model(body, opset=19, ir=9))
    assert "call_tir" not in str(model.module["main"])
    x = sample_inputs(model)["x"]
    (y,) = run_tvm(model, {"x": x})
    np.testing.assert_array_equal(y, np.pad(x, [(before, after), (left, right)], mode="wrap"))


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


@pytest.mark.parametrize("index", [-1, 16, -(2**40)])
def test_places_of_unpooling_are_not_counted_from_the_end(index):
    """ONNX Runtime refuses a place below 0."""
    model = text_model(
        """g (float[1,1,2,2] x, int64[1,1,2,2] i) => (float[1,1,4,4] y) {
          y = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>(x, i)
        }""",
        "victim",
    )
    built = hetero_tvm.build_model(hetero_tvm.optimize_model(import_model(model)), use_shipped=False)
    x, places = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2), np.array([[[[0, 3], [9, 15]]]])
    inputs = {"x": x, "i": places}
    wanted = np.zeros(16, np.float32)
    wanted[places.ravel()] = x.ravel()
    np.testing.assert_array_equal(built.run(inputs)[0].ravel(), wanted)
    with pytest.raises(HeteroTVMError, match=r"victim.*an index lies outside \[0, 16\)"):
        built.run({**inputs, "i": np.full_like(places, index)})


@pytest.mark.parametrize("index", [-1, *thorough([11])])
def test_positions_of_rotary_embeddings_are_not_counted_from_the_end(index):
    """ONNX Runtime refuses a position below 0; a lookup of ONNX's own takes it for a row at the end."""
    model = text_model(
        """g (float[1,2,3,8] x, float[11,4] c, float[11,4] s, int64[1,3] i) => (float[1,2,3,8] y) {
          y = RotaryEmbedding(x, c, s, i)
        }""",
        "victim",
        opset=23,
        ir=11,
    )
    built = hetero_tvm.build_model(hetero_tvm.optimize_model(import_model(model)), use_shipped=False)
    generator = np.random.default_rng(0)
    inputs = {n: generator.random(shape, np.float32) for n, shape in (("x", (1, 2, 3, 8)), ("c", (11, 4)))}
    inputs |= {"s": generator.random((11, 4), np.float32), "i": np.array([[0, 1, 10]])}
    (wanted,) = ReferenceEvaluator(model).run(None, inputs)
    np.testing.assert_allclose(built.run(inputs)[0], wanted, rtol=1e-6, atol=1e-6)  # two products, one sum
    with pytest.raises(HeteroTVMError, match=r"victim.*an index lies outside \[0, 11\)"):
        built.run({**inputs, "i": np.full_like(inputs["i"], index)})


@pytest.mark.parametrize("opset", [13, 23])
@pytest.mark.parametrize("zero, dtype", [("uint8", np.uint8), ("int8", np.int8)])
def test_whole_numbers_are_quantized(zero, dtype, opset):
    model = text_model(
        f"g (int32[2,5] x, float s, {zero} z) => ({zero}[2,5] y) {{ y = QuantizeLinear(x, s, z) }}",
        opset=opset,
    )
    x = np.array([[-(2**31), -100, -3, 0, 1], [2, 3, 77, 2**24 + 1, 2**31 - 1]], np.int32)
    inputs = {"x": x, "s": np.float32(0.5), "z": dtype(3)}
    limits = np.iinfo(dtype)  # ONNX Runtime has no such kernel
    wanted = np.clip(np.rint(x.astype(np.float32) / np.float32(0.5)) + 3, limits.min, limits.max)
    built = hetero_tvm.build_model(hetero_tvm.optimize_model(import_model(model)), use_shipped=False)
    np.testing.assert_array_equal(built.run(inputs)[0], wanted)


@pytest.mark.parametrize("opset", [18, *thorough([21])])
def test_group_normalization_in_float64(opset):
    model = text_model(
        """g (double[2,6,5] x, double[n] g, double[n] b) => (double[2,6,5] y) {
          y = GroupNormalization<num_groups = 3, epsilon = 0.001>(x, g, b)
        }""".replace("[n]", f"[{3 if opset == 18 else 6}]"),
        opset=opset,
    )
    built = hetero_tvm.build_model(hetero_tvm.optimize_model(import_model(model)), use_shipped=False)
    generator = np.random.default_rng(0)
    inputs = {spec.name: generator.standard_normal(spec.shape) for spec in built.optimized.signature.inputs}
    groups = inputs["x"].reshape(2, 3, -1)
    normal = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + 0.001)
    scale, shift = (np.repeat(inputs[n], 6 // len(inputs[n]))[:, None] for n in "gb")
    wanted = normal.reshape(2, 6, 5) * scale + shift
    np.testing.assert_allclose(built.run(inputs)[0], wanted, rtol=1e-9, atol=1e-9)  # sums of ten, a root


@pytest.mark.parametrize("index", [-1, 2, *thorough([-(2**40)])])
@pytest.mark.parametrize("operator", ["RoiAlign", "MaxRoiPool"])
def test_images_are_not_counted_from_the_end(operator, index):
    boxes = np.array([[0, 0, 4, 4]], np.float32)
    if operator == "RoiAlign":
        text = "float[1, 4] r, int64[1] i) => (float[1, 1, 1, 1] y) { y = RoiAlign(x, r, i) }"
        inputs = {"r": boxes, "i": np.array([index])}
    else:
        text = "float[1, 5] r) => (float[1, 1, 1, 1] y) { y = MaxRoiPool<pooled_shape = [1, 1]>(x, r) }"
        inputs = {"r": np.concatenate([[[index]], boxes], axis=1).astype(np.float32)}
    model = import_model(text_model(f"g (float[2, 1, 5, 5] x, {text}", "victim"))
    built = hetero_tvm.build_model(hetero_tvm.optimize_model(model), use_shipped=False)
    with pytest.raises(HeteroTVMError, match="victim.*an index lies outside"):
        built.run({"x": np.zeros((2, 1, 5, 5), np.float32), **inputs})


@pytest.mark.parametrize(
    "quotient",
    ["Div(x, zero)", "Div(x, minus)", "Div(zero, x)", "Mod<fmod = 1>(x, zero)"],
)
@pytest.mark.parametrize("kind", ["float", "double"])
def test_quotients_with_a_constant_zero(quotient, kind):
    source = text_model(
        f"""g ({kind}[6] x) => ({kind}[6] y) <{kind} zero = {{0}}, {kind} minus = {{-0.0}}> {{
            y = {quotient} }}"""
    )
    x = np.array([1, -2, 0, np.nan, np.inf, -np.inf], {"float": np.float32, "double": np.float64}[kind])
    divide = np.fmod if "Mod" in quotient else np.divide
    pair = (0, x) if "(zero" in quotient else (x, -0.0 if "minus" in quotient else 0)
    with np.errstate(all="ignore"):
        expected = divide(*pair)
    built = hetero_tvm.build_model(hetero_tvm.optimize_model(import_model(source)), use_shipped=False)
    np.testing.assert_array_equal(built.run({"x": x})[0], expected)


@pytest.mark.parametrize("operator", ["Div", "Mod"])
def test_known_divisors_of_zero_name_the_node(operator):
    text = f"g (int32[2] x) => (int32[2] y) <int32[2] d = {{1, 0}}> {{ y = {operator}(x, d) }}"
    with pytest.raises(ModelError, match="victim"):
        import_model(text_model(text, "victim"))


BASES, EXPONENTS = np.repeat(np.arange(-3, 4), 8), np.tile([0, 1, 2, 3, 5, 19, 63, 64], 7)


@pytest.mark.parametrize(
    ("kind", "other"), [*thorough([("int32", "int32")]), ("int64", "int64"), *thorough([("int64", "int32")])]
)
def test_powers_of_whole_numbers(kind, other):
    """They wrap around; negative exponents leave 1 and -1 alone."""
    model = import_onnx(text_model(f"g ({kind}[64] a, {other}[64] b) => ({kind}[64] y) {{ y = Pow(a, b) }}"))
    a = np.concatenate([BASES, [1, -1, -1, 2, -3, 1, -1, 2]]).astype(kind)
    b = np.concatenate([EXPONENTS, [-1, -1, -2, -1, -3, -9, -63, -64]]).astype(other)
    bits = np.iinfo(kind).bits

    def power(x, n):
        if n < 0:
            return x**-n if abs(x) == 1 else 0
        return (x**n + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)

    small = (np.abs(a) < 2) | (b < 63)  # beyond that nothing fits, and the exponent is cut
    (result,) = run_tvm(model, {"a": a, "b": b})
    expected = [power(int(x), int(n)) for x, n in zip(a, b, strict=True)]
    np.testing.assert_array_equal(result[small], np.array(expected)[small])


def test_powers_of_two_types():
    source = text_model("""g (float[4] a, int64[4] b, int32[4] c, float[4] d) => (float[4] y, int32[4] z) {
        y = Pow(a, b)
        z = Pow(c, d) }""")
    inputs = {"a": np.array([2, -2, 0.5, 0], np.float32), "b": np.array([3, 3, -1, 0])}
    inputs |= {"c": np.array([4, 9, -2, 7], np.int32), "d": np.array([0.5, 1.5, 3, 0], np.float32)}
    y, z = run_tvm(import_onnx(source), inputs)
    np.testing.assert_allclose(y, [8, -8, 2, 1])
    assert z.tolist() == [2, 27, -8, 1]


@pytest.mark.parametrize("operator", [*thorough(["Sinh"]), "Cosh"])
def test_hyperbolic_functions_near_zero_and_near_their_overflow(operator):
    x = np.array([0, 1e-20, 1e-8, -1e-3, 0.3, -0.99, 1.01, 20, -88, 89.4, -90, np.inf, np.nan], np.float32)
    model = import_onnx(text_model(f"g (float[13] x) => (float[13] y) {{ y = {operator}(x) }}"))
    with np.errstate(over="ignore"):
        expected = getattr(np, operator.lower())(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(run_tvm(model, {"x": x})[0], expected, rtol=2e-6)


def test_sinh_of_doubles_keeps_small_numbers():
    x = np.array([1e-200, -1e-12, 1e-7, -0.03, 0.5, 0.99, 0.0])
    model = import_onnx(text_model("g (double[7] x) => (double[7] y) { y = Sinh(x) }"))
    np.testing.assert_allclose(run_tvm(model, {"x": x})[0], np.sinh(x), rtol=1e-14)


def test_casts_to_integers_are_one_operator():
    model = import_onnx(text_model("g (float[3] x) => (int64[3] y) { y = Cast<to = 7>(x) }"))
    assert len(bindings(model)) == 1


def against_evaluator(source: onnx.ModelProto, inputs: dict[str, np.ndarray], rtol: float) -> None:
    from onnx.reference import ReferenceEvaluator

    with np.errstate(all="ignore"):
        expected = ReferenceEvaluator(source).run(None, inputs)
    for ours, theirs in zip(run_tvm(import_onnx(source), inputs), expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol)


def against_onnxruntime(source: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    for ours, theirs in zip(run_tvm(import_onnx(source), inputs), session.run(None, inputs), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("operator", ["Elu<alpha=0.5>", "Selu", "ThresholdedRelu<alpha=0.3>"])
def test_activations_of_float64_keep_nan_and_infinity(operator):
    source = text_model(f"g (double[7] x) => (double[7] y) {{ y = {operator}(x) }}", opset=22)
    x = np.array([-np.inf, -1.5, -0.0, 0.2, 2.0, np.inf, np.nan])
    if operator.startswith("Thresholded"):
        x[-1] = 0.3  # the evaluator's own NaN is a comparison too
    against_evaluator(source, {"x": x}, 1e-7)  # the evaluator's attributes are float32


@pytest.mark.parametrize("depth", ["int64[1] d = {3}", "float d = {3.0}", "int32 d = {3}"])
@pytest.mark.parametrize("values", ["float[2] v = {0.5, 2}", "int64[2] v = {-1, 4}"])
@pytest.mark.parametrize("axis", [-1, *thorough([0]), 1])
def test_one_hot_of_any_types(depth, values, axis):
    dtype = values.split("[")[0]
    source = text_model(
        f"g (int32[2,3] i) => ({dtype}[a,b,c] y) <{depth}, {values}> {{ y = OneHot<axis={axis}>(i, d, v) }}"
    )
    off, on = (0.5, 2) if dtype == "float" else (-1, 4)
    indices = np.array([[0, 1, 2], [-1, -3, 2]], np.int32)
    hot = np.moveaxis(indices[..., None] % 3 == np.arange(3), -1, axis)
    (y,) = run_tvm(import_onnx(source), {"i": indices})
    assert y.dtype == {"float": np.float32, "int64": np.int64}[dtype]
    np.testing.assert_array_equal(y, np.where(hot, on, off))


def test_one_hot_of_values_at_run_time():
    source = text_model(
        "g (int64[4] i, float[2] v) => (float[4,3] y) <int64 d = {3}> { y = OneHot(i, d, v) }"
    )
    against_evaluator(source, {"i": np.array([0, 2, -1, 1]), "v": np.array([7, 8], np.float32)}, 0)


@pytest.mark.parametrize("axis, shape", [("", "n"), ("<axis=1>", "2,n,2"), ("<axis=-2>", "2,n,2")])
def test_compress_by_a_constant(axis, shape):
    source = text_model(
        f"g (float[2,3,2] x) => (float[{shape}] y) <bool[3] c = {{1, 0, 1}}> {{ y = Compress{axis}(x, c) }}"
    )
    against_evaluator(source, {"x": np.arange(12, dtype=np.float32).reshape(2, 3, 2)}, 0)


@pytest.mark.parametrize("axis, shape, length", [("", "n", 15), ("<axis=1>", "2,n,2", 5)])
def test_compress_by_a_constant_longer_than_the_axis(axis, shape, length):
    held = ", ".join(str(1 - n % 2) for n in range(length))
    source = text_model(
        f"g (float[2,3,2] x) => (float[{shape}] y) <bool[{length}] c = {{{held}}}> "
        f"{{ y = Compress{axis}(x, c) }}"
    )
    against_onnxruntime(source, {"x": np.arange(12, dtype=np.float32).reshape(2, 3, 2)})


@pytest.mark.parametrize(
    "dtype, kind", [("uint8", np.uint8), ("uint32", np.uint32), ("uint64", np.uint64), ("int16", np.int16)]
)
def test_sign_of_whole_numbers(dtype, kind):
    source = text_model(f"g ({dtype}[3] x) => ({dtype}[3] y) {{ y = Sign(x) }}")
    against_evaluator(source, {"x": np.array([0, 1, 200]).astype(kind)}, 0)


@pytest.mark.parametrize(
    "node",
    ["LeakyRelu<alpha=0.0>(x)", "PRelu(x, s)", "Selu<gamma=0.0>(x)", "HardSigmoid<alpha=0.0, beta=1.5>(x)"],
)
def test_slopes_of_zero_keep_nan(node):
    source = text_model(f"g (float[6] x) => (float[6] y) <float[1] s = {{0}}> {{ y = {node} }}")
    against_evaluator(source, {"x": np.float32([np.inf, -np.inf, np.nan, 0, 1, -1])}, 0)


def test_slopes_that_are_not_finite_leave_what_lies_above():
    source = text_model("g (float[3,4] x) => (float[3,4] y) { y = PRelu(x, s) }")
    add_weight(source, "s", np.float32([np.inf, -np.inf, np.nan, 2]))
    against_evaluator(source, {"x": np.float32([[1] * 4, [-1] * 4, [0, np.inf, 5, np.nan]])}, 0)


@pytest.mark.parametrize("axes", ["axes=[1]", "axes=[0, 1], keepdims=0"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_means_of_whole_numbers_are_cut_and_keep_their_type(dtype, axes):
    source = text_model(f"g ({dtype}[2,3] x) => ({dtype}[N,M] y) {{ y = ReduceMean<{axes}>(x) }}", opset=13)
    source.graph.output[0].type.tensor_type.ClearField("shape")
    x = np.array([[7, 1, 3], [-5, -2, -1] if dtype[0] == "i" else [9, 9, 2]], dtype)
    model = import_onnx(source)
    (y,) = run_tvm(model, {"x": x})
    (expected,) = ReferenceEvaluator(source).run(None, {"x": x})
    assert y.dtype == dtype and np.array_equal(y, expected)


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "uint64"])
def test_negation_without_a_sign_wraps_around(dtype):
    imported = import_onnx(text_model(f"g ({dtype}[3] x) => ({dtype}[3] y) {{ y = Neg(x) }}"))
    x = np.array([0, 1, 200], dtype)
    (y,) = hetero_tvm.build_model(hetero_tvm.optimize_model(imported)).run({"x": x})
    assert y.dtype == dtype and np.array_equal(y, -x)


def test_rows_whose_norm_underflows_are_zero():
    source = text_model("g (float[2,3] x) => (float[2,3] y) { y = LpNormalization(x) }")
    (y,) = run_tvm(import_onnx(source), {"x": np.float32([[1e-30, 0, -1e-30], [3, 0, 4]])})
    assert y.tolist() == np.float32([[0, 0, 0], [0.6, 0, 0.8]]).tolist()


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
@pytest.mark.parametrize("largest", [0, 1])
def test_order_of_unsigned_numbers(dtype, largest):
    source = text_model(
        f"g ({dtype}[6] x) => ({dtype}[4] v, int64[4] i) <int64[1] k = {{4}}> "
        f"{{ v, i = TopK<largest={largest}>(x, k) }}"
    )
    most = np.iinfo(dtype).max
    against_evaluator(source, {"x": np.array([3, most, 0, most // 2 + 1, most // 2, 7], dtype)}, 0)


@pytest.mark.parametrize(
    ("dtype", "threshold", "bias"),
    [
        ("uint8", 0.5, 1.0),
        ("int32", 1.5, 1.0),
        ("float", 0.5, 1.0),
        ("float", -1.0, 1.0),
        *thorough([("int32", 0.5, 1.5), ("uint8", 0.5, 0.5), ("int32", -2.5, 1.0), ("uint8", 1.0, -0.7)]),
    ],
)
def test_shrinking_of_any_type(dtype, threshold, bias):
    """Biases between whole numbers were cut before they were taken away, of thresholds below 0 likewise."""
    source = text_model(
        f"g ({dtype}[7] x) => ({dtype}[7] y) {{ y = Shrink<lambd={threshold}, bias={bias}>(x) }}"
    )
    kind = {"float": "float32"}.get(dtype, dtype)
    x = np.array([0, 1, 2, 0, 1, 2, 7] if dtype == "uint8" else [-3, -2, -1, 0, 1, 2, 3]).astype(kind)
    (wanted,) = ReferenceEvaluator(source).run(None, {"x": x})
    np.testing.assert_array_equal(run_tvm(import_onnx(source), {"x": x})[0], wanted)


@pytest.mark.parametrize(
    "source",
    [
        "g (uint32[3,5] a, uint32[5,4] b, uint32[1,4] c) => (uint32[3,4] y) { y = Gemm<alpha=0.5>(a, b, c) }",
        *thorough(
            [
                "g (int64[5,3] a, int64[5,4] b, int64[4] c) => (int64[3,4] y)"
                " { y = Gemm<alpha=2.0, beta=-1.5, transA=1>(a, b, c) }"
            ]
        ),
        "g (int32[3,5] a, int32[4,5] b) => (int32[3,4] y) { y = Gemm<alpha=0.25, transB=1>(a, b) }",
        "g (int32[3,5] a, int32[5,4] b) => (int32[3,4] y) { y = Gemm<alpha=2.0>(a, b) }",
    ],
)
def test_factors_between_whole_numbers(source):
    """They were cut to whole ones: half of a product was 0."""
    model, rng = text_model(source), np.random.default_rng(0)
    feeds = {}
    for one in model.graph.input:
        kind = onnx.helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type)
        shape = [dim.dim_value for dim in one.type.tensor_type.shape.dim]
        feeds[one.name] = rng.integers(0 if kind.kind == "u" else -9, 9, shape).astype(kind)
    (wanted,) = ReferenceEvaluator(model).run(None, feeds)
    np.testing.assert_array_equal(run_tvm(import_onnx(model), feeds)[0], wanted)


@pytest.mark.parametrize(
    ("kind", "positions"), [("float", "double"), *thorough([("double", "float")]), ("int32", "float")]
)
def test_images_read_at_positions_of_another_type(kind, positions):
    """The result had the wider type of the two, and not the image's."""
    source = text_model(
        f"g ({kind}[1,1,3,4] x, {positions}[1,2,2,2] p) => ({kind}[1,1,2,2] y) {{ y = GridSample(x, p) }}",
        opset=22,
    )
    if kind == "int32":
        with pytest.raises(ModelError, match="images of int32"):
            import_onnx(source)
        return
    names = {"float": np.float32, "double": np.float64}
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((1, 1, 3, 4)).astype(names[kind]),
        "p": rng.uniform(-1, 1, (1, 2, 2, 2)).astype(names[positions]),
    }
    (y,) = run_tvm(import_onnx(source), feeds)
    assert y.dtype == names[kind]
    np.testing.assert_allclose(y, ReferenceEvaluator(source).run(None, feeds)[0], rtol=1e-5, atol=1e-6)


def test_a_convolution_may_leave_its_kernel_shape_to_the_weight():
    source = text_model(
        'g (float[1,2,6] x) => (float[1,4,3] y) { y = Conv<auto_pad="SAME_UPPER", strides=[2]>(x, w) }'
    )
    add_weight(source, "w", np.random.default_rng(0).standard_normal((4, 2, 3)).astype(np.float32))
    against_original(source)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("reduction", ["none", "add", "max"])
def test_a_scatter_to_a_part_of_the_rows(axis, reduction):
    source = text_model(
        "g (float[4,3,5] x, int64[2,1,3] i, float[2,1,3] u) => (float[4,3,5] y) "
        f'{{ y = ScatterElements<axis={axis}, reduction="{reduction}">(x, i, u) }}',
        opset=18,
    )
    generator = np.random.default_rng(0)
    inputs = {
        "x": generator.standard_normal((4, 3, 5)).astype(np.float32),
        "i": np.array([2, 0, 1, -1, 1, 0]).reshape(2, 1, 3),
        "u": generator.standard_normal((2, 1, 3)).astype(np.float32),
    }
    against_onnxruntime(source, inputs)


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("kernel", [*thorough([1]), 2, 3])
def test_windows_of_a_pool_that_is_padded_by_name(operator, mode, kernel):
    attributes = f'auto_pad="{mode}", kernel_shape=[{kernel}, {kernel}], strides=[2, 3]'
    source = text_model(f"g (float[1,2,4,7] x) => (float[1,2,2,3] y) {{ y = {operator}<{attributes}>(x) }}")
    if kernel > 1:
        against_original(source)
        return
    x = np.random.default_rng(0).random((1, 2, 4, 7), np.float32)  # ONNX Runtime refuses windows with gaps
    (y,) = run_tvm(import_onnx(source), {"x": x})
    np.testing.assert_allclose(y, x[:, :, ::2, ::3], rtol=1e-6)


def test_greatest_values_in_any_order():
    source = text_model(
        "g (float[2,5] x) => (float[2,3] v, int64[2,3] i) <int64[1] k = {3}> "
        "{ v, i = TopK<axis=1, sorted=0, largest=0>(x, k) }"
    )
    x = np.array([[3, 1, 4, 1.5, 5], [9, 2, 6, 5.5, 3.5]], np.float32)
    values, places = run_tvm(import_onnx(source), {"x": x})
    np.testing.assert_array_equal(np.sort(values, 1), np.sort(x, 1)[:, :3])
    np.testing.assert_array_equal(np.take_along_axis(x, places, 1), values)


@pytest.mark.parametrize("kind", ["int16", "uint16", "uint32"])
def test_least_values_of_whole_types_that_no_sort_knows(kind):
    source = text_model(
        f"g ({kind}[2,4] x) => ({kind}[2,3] v, int64[2,3] i) <int64[1] k = {{3}}> "
        "{ v, i = TopK<axis=1, largest=0>(x, k) }"
    )
    x = np.array([[3, -1, 4, 0], [9, 2, -7, 5]]).astype(kind)
    values, places = run_tvm(import_onnx(source), {"x": x})
    np.testing.assert_array_equal(values, np.sort(x, 1)[:, :3])
    np.testing.assert_array_equal(np.take_along_axis(x, places, 1), values)


@pytest.mark.parametrize("base", ["float", "double", "int32"])
@pytest.mark.parametrize("exponent", ["int64", "float"])
def test_powers_of_other_types(base, exponent):
    source = text_model(f"g ({base}[3] x, {exponent}[3] e) => ({base}[3] y) {{ y = Pow(x, e) }}")
    kinds = {"float": np.float32, "double": np.float64, "int32": np.int32, "int64": np.int64}
    inputs = {"x": np.array([1, 2, 3], kinds[base]), "e": np.array([2, 3, 0], kinds[exponent])}
    (y,) = run_tvm(import_onnx(source), inputs)
    assert y.dtype == kinds[base]
    np.testing.assert_allclose(y, [1, 8, 1], rtol=1e-6)


def test_whole_powers_with_exponents_of_floats_are_exact():
    """Truncation would take what is computed just below a whole number one too low."""
    pairs = [(n, k) for n in range(2, 41) for k in range(1, 31) if n**k < 2**31]
    x, e = (np.array(column) for column in zip(*pairs, strict=True))
    source = text_model(
        f"g (int32[{len(x)}] x, float[{len(x)}] e) => (int32[{len(x)}] y) {{ y = Pow(x, e) }}"
    )
    built = hetero_tvm.build_model(
        hetero_tvm.optimize_model(hetero_tvm.import_model(source)), use_shipped=False
    )
    (y,) = built.run({"x": x.astype(np.int32), "e": e.astype(np.float32)})
    np.testing.assert_array_equal(y, x.astype(np.int64) ** e)


BEYOND = [
    *((mode, padding) for mode in ("linear", "nearest") for padding in ("zeros", "border", "reflection")),
    *(("cubic", padding) for padding in ("zeros", "border")),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("mode", "padding"), BEYOND)
def test_positions_that_are_nowhere_are_those_of_pytorch(mode, padding):
    """ONNX Runtime converts such positions to integers as they come."""
    method = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    source = text_model(
        f"""g (float[1,1,4,5] x, float[1,1,9,2] grid) => (float[1,1,1,9] y) {{
            y = GridSample <mode = "{mode}", padding_mode = "{padding}"> (x, grid) }}""",
        opset=20,
    )
    x = np.arange(1, 21, dtype=np.float32).reshape(1, 1, 4, 5)
    nan, inf = np.nan, np.inf
    places = [
        [nan, 0],
        [0, nan],
        [nan, nan],
        [inf, 0],
        [0, -inf],
        [1e30, 0],
        [0, -1e30],
        [inf, nan],
        [0.1, 0.2],
    ]
    grid = np.array(places, np.float32).reshape(1, 1, 9, 2)
    (y,) = run_tvm(import_onnx(source), {"x": x, "grid": grid})
    expected = torch.nn.functional.grid_sample(
        torch.from_numpy(x), torch.from_numpy(grid), method, padding, align_corners=False
    )
    np.testing.assert_allclose(y, expected.numpy(), rtol=0, atol=1e-4)  # twenty times 5e-6 of a pixel


@pytest.mark.parametrize(
    ("height", "width", "grid", "padding"),
    [
        (1, 5, "float", "reflection"),
        (4, 5, "double", "zeros"),
        *thorough([(1, 1, "float", "reflection"), (4, 1, "float", "reflection"), (4, 5, "float16", "zeros")]),
    ],
)
def test_grid_sample_is_that_of_pytorch(height, width, grid, padding):
    """Reflected in a single pixel; at positions in float64, as PyTorch's older exporter has them."""
    aligned = int(padding == "reflection")
    source = text_model(
        f"""g (float[1,2,{height},{width}] x, {grid}[1,3,4,2] grid) => (float[1,2,3,4] y) {{
            y = GridSample <padding_mode = "{padding}", align_corners = {aligned}> (x, grid) }}""",
        opset=20,
    )
    random = np.random.default_rng(0)
    x = random.standard_normal((1, 2, height, width)).astype("float32")
    dtype = {"float": "float32", "double": "float64"}.get(grid, grid)
    places = random.uniform(-1.5, 1.5, (1, 3, 4, 2)).astype(dtype)
    (y,) = run_tvm(import_onnx(source), {"x": x, "grid": places})
    expected = torch.nn.functional.grid_sample(
        torch.from_numpy(x),
        torch.from_numpy(places).float(),
        "bilinear",
        padding,
        align_corners=bool(aligned),
    )
    np.testing.assert_allclose(y, expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("slope", ["float", "float[1]"])
def test_prelu_of_a_scalar_is_a_scalar(slope):
    model = import_onnx(text_model(f"g (float x, {slope} s) => (float y) {{ y = PRelu(x, s) }}"))
    slopes = np.full(() if slope == "float" else (1,), 0.5, np.float32)
    for value, expected in ((-2.0, -1.0), (2.0, 2.0)):
        (result,) = run_tvm(model, {"x": np.float32(value), "s": slopes})
        assert result.shape == () and result == expected


def test_celu_of_a_scalar_is_a_scalar():
    source = text_model("g (float x) => (float y) { y = Celu <alpha = 1.5> (x) }")
    for x in (-0.7, 2.0):
        (y,) = run_tvm(import_onnx(source), {"x": np.float32(x)})
        assert y.shape == ()
        np.testing.assert_allclose(y, x if x > 0 else 1.5 * np.expm1(x / 1.5), rtol=1e-6)


@pytest.mark.parametrize("operator", ["Sum", "Mean"])
@pytest.mark.parametrize("operands", ["x", "x, z", "x, z, s, x"])
def test_sums_of_several(operator, operands):
    model = against_original(
        text_model(
            "g (float[2,3] x, float[3] z, float s) => (float[2,3] y) "
            f"{{ n = Neg(x) o = Mul(z, s) y = {operator}(n, {operands}, o) }}"
        )
    )
    assert "relax.stack" not in {getattr(b.value.op, "name", "") for b in bindings(model)}


def test_a_sum_of_one_without_elements():
    source = text_model("g (float[2,0,3] x) => (float[2,0,3] y) { y = Sum(x) }")
    assert import_onnx(source).signature.outputs[0].shape == (2, 0, 3)


def test_slopes_that_do_not_fit():
    source = text_model("g (float[2,4] x, float[3] s) => (float[2,4] y) { y = PRelu(x, s) }", "slope")
    with pytest.raises(ModelError, match="'slope'.*do not fit"):
        import_onnx(source)


def test_extrema_at_places_before_opset_18():
    """As PyTorch's tracing exporter writes them, and ONNX Runtime runs them."""
    text = """
    most (float[4, 2] x, int64[4, 2] at, float[4, 2] y) => (float[4, 2] z)
    { z = ScatterElements<axis = 0, reduction = "max">(x, at, y) }
    """
    x, y = (np.random.default_rng(seed).random((4, 2), np.float32) for seed in range(2))
    at = np.array([[0, 3], [0, 1], [2, 1], [0, 1]])
    optimized = hetero_tvm.optimize_model(import_model(text_model(text, opset=17)))
    built = hetero_tvm.build_model(optimized, use_shipped=False)
    expected = x.copy()
    np.maximum.at(expected, (at, np.array([0, 1])), y)
    np.testing.assert_array_equal(built.run({"x": x, "at": at, "y": y})[0], expected)


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("rows", [3, 2])
def test_truths_are_scattered(reduction, rows):
    """Sums of truth values are "or", products "and"; they did not compile."""
    source = text_model(
        f"g (bool[3,4] x, int64[{rows},4] i, bool[{rows},4] u) => (bool[3,4] y)"
        f' {{ y = ScatterElements<axis=1, reduction="{reduction}">(x, i, u) }}',
        opset=18,
    )
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.random((3, 4)) > 0.5,
        "i": rng.integers(0, 4, (rows, 4)),
        "u": rng.random((rows, 4)) > 0.5,
    }
    (wanted,) = ReferenceEvaluator(source).run(None, feeds)
    (y,) = run_tvm(import_onnx(source), feeds)
    np.testing.assert_array_equal(y, wanted)


def test_batches_that_contradict_each_other():
    source = text_model(
        "g (float[1,3,4] x, int64[2,5,1] i) => (float[2,5,4] y) { y = GatherND<batch_dims=1>(x, i) }",
        opset=17,
    )
    with pytest.raises(ModelError, match="batches of"):
        import_onnx(source)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2,6] x, int64[4,3] i) => (float[4,3] y) { y = GatherElements<axis=1>(x, i) }",
        "g (float[2,6] x, int64[4,3] i, float[4,3] u) => (float[2,6] y)"
        "{ y = ScatterElements<axis=-1>(x, i, u) }",
    ],
    ids=["read", "written"],
)
def test_indices_of_more_rows_than_the_data(text):
    """Their elements would lie in foreign memory."""
    with pytest.raises(ModelError, match="reach beyond data"):
        import_onnx(text_model(text, opset=18))
