"""Operators inside of branches that are taken at run time, beside ONNX Runtime."""

import numpy as np
import onnxruntime
import pytest

from hetero_tvm.errors import ModelError, UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import add_weight, against_reference, run_tvm, text_model
from tests.selection import thorough


def choice(then: str, opset: int = 17, condition: str = "bool c", shape: str = "2,3,4", kind: str = "float"):
    """Model of ``r`` = what ``then`` makes as ``s`` where ``c`` holds, and else ``x`` turned round."""
    return text_model(
        f"g ({condition}, float[2,3,4] x) => ({kind}[{shape}] r) {{ r = If (c) <"
        f"then_branch = one () => ({kind}[{shape}] s) {{ {then} }}, "
        f"else_branch = two () => ({kind}[{shape}] n) {{ m = Neg(x) {_as(kind, shape)} }}> }}",
        opset=opset,
        ir=8,
    )


def _as(kind: str, shape: str) -> str:
    if kind == "int64":
        return "n = Cast<to = 7>(m)"
    if kind == "bool":
        return "z = Sub(m, m) n = Cast<to = 9>(z)"
    return "n = Identity(m)"


def check(source, **inputs):
    inputs.setdefault("c", np.array(True))
    inputs["x"] = np.random.default_rng(1).standard_normal((2, 3, 4)).astype("float32")
    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    model = import_onnx(source)
    for flag in (True, False):
        inputs["c"] = np.full_like(inputs["c"], flag)
        for ours, theirs in zip(run_tvm(model, inputs), session.run(None, inputs), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("operator", ["Hardmax", "Softmax", "LogSoftmax"])
def test_operators_that_were_flat_before_opset_13_are_so_in_a_branch(operator, axis):
    check(choice(f"s = {operator}<axis = {axis}>(x)", opset=11))


@pytest.mark.parametrize(
    "constant",
    [*thorough(["value_float = 2.5"]), "value_floats = [2.5, 1.0, 3.0, -1.0]", "value = float {2.5}"],
)
def test_constants_of_every_spelling(constant):
    check(choice(f"k = Constant<{constant}>() s = Mul(x, k)"))


def test_a_norm_with_outputs_for_training_gives_its_result_alone():
    ones = "Constant<value_floats = [1.0, 2.0, 3.0]>()"
    check(choice(f"a = {ones} b = {ones} m = {ones} v = {ones} s = BatchNormalization(x, a, b, m, v)"))


def test_a_condition_of_one_element():
    check(choice("s = Exp(x)", condition="bool[1] c"), c=np.array([True]))


def test_what_is_read_twice_is_made_once():
    """Forty doublings: as one expression they would be 2^40 terms."""
    steps = " ".join(f"t{n + 1} = Add(t{n}, t{n})" for n in range(40))
    check(choice(f"t0 = Tanh(x) {steps} k = Constant<value_float = 1e-12>() s = Mul(t40, k)"))


def test_branches_in_branches():
    inner = "s = If (d) <then_branch = a () => (float[2,3,4] p) { p = Exp(x) }, "
    inner += "else_branch = b () => (float[2,3,4] q) { l = Constant<value_float = 2.0>() q = Mul(x, l) }>"
    check(
        choice(f"t = ReduceSum<keepdims = 0>(x) k = Constant<value_float = 0.0>() d = Greater(t, k) {inner}")
    )


def dropout(then, training, **shape):
    source = add_weight(choice(then, **shape), "on", np.array(training))
    return add_weight(source, "rate", np.array(0.5, "float32"))


def test_the_mask_of_a_dropout():
    check(dropout("y, k = Dropout(x, rate, on) s = Not(k)", False, kind="bool"))


def test_dropout_in_training_is_refused():
    with pytest.raises(ModelError, match=r"'Dropout_s' \(Dropout\) has training_mode=1"):
        import_onnx(dropout("s = Dropout(x, rate, on)", True))


@pytest.mark.parametrize(
    "operator, opset",
    [
        *thorough(
            [
                ("z = Unsqueeze(x, last) l = LRN<size = 3>(z) s = Squeeze(l, last)", 17),
                ("s = MeanVarianceNormalization<axes = [0, 2]>(x)", 17),
                ("s = LpNormalization<axis = 1>(x)", 17),
            ]
        ),
        ("v = ReverseSequence<batch_axis = 1, time_axis = 0>(x, lengths) s = Neg(v)", 17),
        *thorough([("s = Attention<q_num_heads = 2, kv_num_heads = 2>(x, x, x)", 23)]),
        ("s, i = MaxPool<kernel_shape = [3], pads = [1, 1]>(x)", 17),
        (
            "z = Unsqueeze(x, last) f = DFT(z) s = ReduceSum<keepdims = 0>(f, last)",
            17,
        ),
        ("s = Swish(x)", 24),
        *thorough(
            [
                ("s = com.microsoft.FastGelu(x)", 17),
                ("s = com.microsoft.SkipLayerNormalization(x, x, scale, scale)", 17),
            ]
        ),
        ("t = com.microsoft.FusedMatMul<transB = 1>(x, x) s = MatMul(t, x)", 17),
    ],
)
def test_operators_that_are_written_out(operator, opset):
    source = add_weight(choice(operator, opset=opset), "lengths", np.array([2, 1, 2], "int64"))
    source = add_weight(source, "last", np.array([-1], "int64"))
    source = add_weight(source, "scale", np.array([1, 2, 3, -1], "float32"))
    source.opset_import.add(domain="com.microsoft", version=1)
    check(source)


@pytest.mark.thorough
def test_results_of_branches_without_declared_types():
    then, other = "o = com.microsoft.BiasGelu(h, scale)", "p = Neg(h)"
    source = text_model(
        "g (bool c, float[2,3,4] x) => (float[24] y) { h = Exp(x) z = If (c) <"
        f"then_branch = one () => (o) {{ {then} }}, else_branch = two () => (p) {{ {other} }}> "
        "m = Constant<value_ints = [-1]>() y = Reshape(z, m) }",
        opset=17,
        ir=8,
    )
    source.opset_import.add(domain="com.microsoft", version=1)
    check(add_weight(source, "scale", np.array([1, 2, 3, -1], "float32")))


@pytest.mark.thorough
def test_a_recurrent_layer():
    rng = np.random.default_rng(0)
    then = "a = Constant<value_ints = [1]>() o, h = GRU<hidden_size = 4>(x, w, v) s = Squeeze(o, a)"
    source = add_weight(choice(then), "w", rng.standard_normal((1, 12, 4)).astype("float32"))
    check(add_weight(source, "v", rng.standard_normal((1, 12, 4)).astype("float32")))


ROUND = "(int64 i, bool d, float[2,3,4] p) => (bool e, float[2,3,4] q)"


def loop(rounds: int, body: str) -> str:
    return (
        f"rounds = Constant<value_int = {rounds}>() t = Constant<value = bool {{1}}>() "
        f"s = Loop(rounds, t, x) <body = round {ROUND} {{ e = Identity(d) {body} }}>"
    )


@pytest.mark.thorough
def test_a_loop_of_few_rounds():
    check(choice(loop(3, "q = LpNormalization(p)")))


def test_a_loop_of_many_rounds_begins_where_its_branch_is_taken():
    """It needs what is before it in the branch, a number among it, and gives what is behind it."""
    many = loop(700, "k = Constant<value_float = 0.999>() o = Mul(p, k) q = Add(o, low)")
    many = many.replace("(rounds, t, x)", "(rounds, begins, a)").replace("s = Loop", "last = Loop")
    source = choice(
        f"a = Exp(x) low = ReduceMin<keepdims = 0>(a) zero = Constant<value_float = 0.0>() "
        f"begins = Greater(low, zero) {many} s = Sub(last, a)"
    )
    x = np.random.default_rng(1).standard_normal((2, 3, 4)).astype("float32")
    for taken in (True, False):
        against_reference(source, {"c": np.array(taken), "x": x}, judge="onnxruntime")


@pytest.mark.thorough
def test_loops_that_values_end_in_both_branches_and_in_a_branch_of_a_branch():
    once = "one = Constant<value = bool {1}>() %s = Loop(n, one, %s) <body = round (int64 i, bool d, "
    once += "float[2,3] p) => (bool e, float[2,3] q) { two = Constant<value_float = 2.0>() q = Mul(p, two) "
    once += "m = ReduceMax<keepdims = 0>(q) l = Constant<value_float = 100.0>() e = Less(m, l) }>"
    inner = f"s = If(d) <then_branch = c () => (float[2,3] u) {{ {once % ('u', 'x')} }}, "
    inner += "else_branch = f () => (float[2,3] v) { v = Sin(x) }>"
    source = text_model(
        "g (bool c, bool d, int64 n, float[2,3] x) => (float[2,3] r) { r = If(c) <"
        f"then_branch = a () => (float[2,3] s) {{ {inner} }}, "
        f"else_branch = b () => (float[2,3] w) {{ y = Exp(x) {once % ('z', 'y')} w = Tanh(z) }}> }}",
        opset=17,
        ir=8,
    )
    x = np.random.default_rng(1).random((2, 3), np.float32)
    for case in range(12):
        flags = {"c": np.array(case % 2 == 0), "d": np.array(case // 2 % 2 == 0)}
        against_reference(source, {**flags, "n": np.array(case // 4 * 2), "x": x}, judge="onnxruntime")


def test_a_loop_of_many_rounds_that_gives_rows_is_refused_in_a_branch():
    rows = loop(5000, "q = Tanh(p) row = Sin(q)").replace("q) {", "q, float[2,3,4] row) {")
    with pytest.raises(UnsupportedOperatorError, match=r"'Loop_s' \(Loop\) in then_branch"):
        import_onnx(choice(rows.replace("s = Loop", "s, all = Loop")))


@pytest.mark.thorough
@pytest.mark.parametrize("runs", [True, False])
def test_branches_in_a_loop_that_stays_one(runs):
    inner = "k = Constant<value_int = 7>() l = Less(i, k) q = If (l) <"
    inner += "then_branch = a () => (float[2,3,4] u) { u = LpNormalization(p) }, "
    inner += "else_branch = b () => (float[2,3,4] v) { v = Tanh(p) }>"
    body = loop(500, inner).replace("Loop(rounds, t, x)", "Loop(rounds, c, x)")
    source = text_model(f"g (bool c, float[2,3,4] x) => (float[2,3,4] s) {{ {body} }}", opset=17, ir=8)
    x = np.random.default_rng(1).standard_normal((2, 3, 4)).astype("float32")
    against_reference(source, {"c": np.array(runs), "x": x}, judge="onnxruntime")


@pytest.mark.parametrize("value", [2**53 + 1, -(2**40)])
def test_integers_of_64_bits(value):
    check(choice(f"k = Constant<value_int = {value}>() w = Cast<to = 7>(x) s = Add(w, k)", kind="int64"))


UNLIKE = """
g (float[2, 4] x, bool c) => (float y) {
  z = If (c) <
    then_branch = one () => (o) { s = Constant <value_ints = [8]> () o = Reshape (x, s) },
    else_branch = two () => (p) { p = Transpose (x) }>
  y = ReduceSum <keepdims = 0> (z)
}
"""


def test_branches_of_different_shapes_are_named_with_a_way_out():
    with pytest.raises(
        ModelError, match=r"else_branch gives \[4, 2\].*Transpose.*then_branch gives \[8\]"
    ) as told:
        import_onnx(text_model(UNLIKE))
    assert "--value c=1" in told.value.hint
    x = np.random.default_rng(0).standard_normal((2, 4)).astype("float32")
    model = import_onnx(text_model(UNLIKE), values={"c": 0})
    np.testing.assert_allclose(run_tvm(model, {"x": x})[0], x.sum(), rtol=1e-5)
