"""Operators inside of branches that are taken at run time, beside ONNX Runtime."""

import numpy as np
import onnxruntime
import pytest

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend import import_onnx
from tests.frontend.onnx.helpers import add_weight, run_tvm, text_model


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
    "constant", ["value_float = 2.5", "value_floats = [2.5, 1.0, 3.0, -1.0]", "value = float {2.5}"]
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
    with pytest.raises(ModelError, match=r"'s' \(Dropout\).*training_mode must be known to be false"):
        import_onnx(dropout("s = Dropout(x, rate, on)", True))
