"""Numbers that follow from the sizes, beside layers whose weights passes would multiply them into."""

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper

import hetero_tvm
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.compile.dynamic.held import with_held_numbers
from hetero_tvm.frontend import Span
from tests.frontend.onnx.helpers import text_model
from tests.selection import thorough

COUNT = """
net (float[n, 6] x) => (float[n, 5] y) {{
    zero = Constant<value_int = 0>()
    first = Constant<value_ints = [0]>()
    shape = Shape(x)
    whole = {gather}
    rows = Cast<to = 1>(whole)
    {body}
}}
"""
NUMBER, LIST = "Gather(shape, zero)", "Gather(shape, first)"
BODIES = {
    "divided by the rows": (NUMBER, "d = Div(x, rows)\n m = MatMul(d, w)\n y = Add(m, b)"),
    "divided behind the layer": (NUMBER, "m = MatMul(x, w)\n a = Add(m, b)\n y = Div(a, rows)"),
    "by a root": (NUMBER, "s = Sqrt(rows)\n d = Div(x, s)\n y = MatMul(d, w)"),
    "by a part of a root": (NUMBER, "s = Sqrt(rows)\n r = Reciprocal(s)\n d = Mul(x, r)\n y = MatMul(d, w)"),
    "by a logarithm": (NUMBER, "s = Log(rows)\n d = Mul(x, s)\n y = MatMul(d, w)"),
    "by a list of one": (LIST, "s = Sqrt(rows)\n r = Reciprocal(s)\n d = Mul(x, r)\n y = MatMul(d, w)"),
    "added to a bias": (NUMBER, "m = MatMul(x, w)\n a = Add(m, b)\n y = Add(a, rows)"),
    "attention": (
        NUMBER,
        "t = Transpose<perm = [1, 0]>(x)\n s = Sqrt(rows)\n k = MatMul(x, t)\n d = Div(k, s)\n "
        "p = Softmax<axis = -1>(d)\n v = MatMul(p, x)\n y = MatMul(v, w)",
    ),
}


def model_of(name):
    gather, body = BODIES[name]
    model = text_model(COUNT.format(gather=gather, body=body))
    rng = np.random.default_rng(0)
    for tensor, shape in {"w": (6, 5), "b": (5,)}.items():
        array = rng.standard_normal(shape).astype("float32")
        model.graph.initializer.append(numpy_helper.from_array(array, tensor))
    return model


@pytest.mark.parametrize("name", [*list(BODIES)[:2], *thorough(list(BODIES)[2:])])
def test_they_are_those_of_the_call(tmp_path, name):
    model = model_of(name)
    imported = import_model(model, shapes={"x": (Span(2, 24), 6)})
    net = hetero_tvm.load(build_model(optimize_model(imported)).export(tmp_path / "net.so"))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for rows in (2, 3, 13, 24):
        x = np.random.default_rng(rows).standard_normal((rows, 6)).astype("float32")
        np.testing.assert_allclose(net(x), session.run(None, {"x": x})[0], rtol=2e-5, atol=2e-5)


def test_a_number_in_every_place(tmp_path):
    """Of a power of two a division becomes a product, which it is at no other size."""
    body = "e = Expand(rows, shape)\n d = Div(x, e)\n y = MatMul(d, w)"
    model = text_model(COUNT.format(gather=NUMBER, body=body))
    weight = np.random.default_rng(0).standard_normal((6, 5)).astype("float32")
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    imported = import_model(model, shapes={"x": (Span(1, 32), 6)})
    net = hetero_tvm.load(build_model(optimize_model(imported)).export(tmp_path / "net.so"))
    for rows in (1, 3, 8, 32):
        x = np.random.default_rng(rows).standard_normal((rows, 6)).astype("float32")
        np.testing.assert_allclose(net(x), x / rows @ weight, rtol=2e-5, atol=2e-5)


def test_others_stay():
    imported = import_model(
        text_model(
            "net (float[n, 6] x) => (float[n, 6] y) { c = Constant<value_float = 2.0>()\n y = Mul(x, c) }"
        ),
        shapes={"x": (Span(2, 24), 6)},
    )
    assert with_held_numbers(imported) is imported
