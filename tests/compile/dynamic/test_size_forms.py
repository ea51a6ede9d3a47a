"""Extents whose form is another at some sizes of a range: right at all of them, or refused by one."""

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import ShapeError
from hetero_tvm.frontend import Span
from tests.frontend.onnx.helpers import text_model
from tests.selection import thorough

TEXT = """
net (float[2, n, 3] x) => (float[2, m, 3] y)
{
    one = Constant<value_ints = [1]>()
    zero = Constant<value_ints = [0]>()
    two = Constant<value_ints = [2]>()
    three = Constant<value_ints = [3]>()
    many = Constant<value_ints = [MANY]>()
    shape = Shape(x)
    n = Gather<axis = 0>(shape, one)
    rest = Mod(n, many)
    BODY
    y = Slice(x, zero, end, one)
}
"""


def imported(body, many, low, high):
    text = TEXT.replace("BODY", body).replace("MANY", str(many))
    return import_model(text_model(text, opset=18), shapes={"x": (2, Span(low, high), 3)})


@pytest.mark.parametrize(("many", "low", "high"), [*thorough([(4, 9, 40), (7, 7, 100)]), (3, 12, 30)])
def test_a_length_that_is_cut_to_a_multiple(many, low, high):
    """At the multiples nothing is cut, and the model is its input, whose length tells the rest."""
    built = build_model(optimize_model(imported("end = Sub(n, rest)", many, low, high)), use_shipped=False)
    for n in range(low, high + 1):
        x = np.random.default_rng(n).standard_normal((2, n, 3)).astype("float32")
        np.testing.assert_array_equal(built.run({"x": x})[0], x[:, : n - n % many])


@pytest.mark.parametrize(
    ("body", "many", "low", "high", "size"),
    [
        # (n + 2)//3 - 1 at all sizes but multiples of six
        ("half = Div(n, two) even = Mul(half, two) end = Div(even, three)", 2, 5, 20, 6),
        # n - 3 at odd sizes, which the model is imported at
        ("more = Mul(rest, three) end = Sub(n, more)", 2, 5, 20, 6),
        ("half = Div(n, two) third = Div(n, three) end = Add(half, third)", 2, 20, 64, 24),
    ],
)
def test_a_form_that_holds_at_most_sizes_is_refused(body, many, low, high, size):
    with pytest.raises(ShapeError, match=f"at n = {size} than"):
        optimize_model(imported(body.replace(") ", ")\n    "), many, low, high))
