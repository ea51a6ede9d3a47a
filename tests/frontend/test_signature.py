"""Shape options."""

import pytest

from hetero_tvm.errors import UsageError
from hetero_tvm.frontend import Span, parse_shape_option
from hetero_tvm.runtime.signature import Signature, Symbol, TensorSpec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x=1x128", ("x", (1, 128))),
        ("a=b=3", ("a=b", (3,))),
        (" x = 2X3 ", ("x", (2, 3))),
        ("x=3x32..128:8", ("x", (3, Span(32, 128, 8)))),
        ("x=33..130:32x0..9:4", ("x", (Span(64, 128, 32), Span(0, 8, 4)))),
        ("x=[60..70:64,2]", ("x", (64, 2))),
    ],
)
def test_shape_options(text, expected):
    assert parse_shape_option(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "x", "x=", "=1x2", "x=1x", "x=0x2", "x=-1", "x=1.5", "x=axb", "x=1,2", "x=²"]
    + ["x=4:2", "x=9..15:8", "x=1..8:0", "x=1..8:", "x=0..3:4", "x=1..8:²"],
)
def test_bad_shape_options(text):
    with pytest.raises(UsageError, match="--shape"):
        parse_shape_option(text)


@pytest.mark.parametrize("span", [(9, 15, 8), (1, 8, 0), (1, 8, True), (1, None, -2)])
def test_ranges_without_sizes_are_refused(span):
    with pytest.raises(UsageError, match="no range of sizes"):
        Span(*span)


def test_sizes_between_multiples_are_refused_by_name():
    symbol = Symbol("h", 32, 128, 8)
    signature = Signature((TensorSpec("x", (1, "h"), "float32"),), (), symbols=(symbol,))
    assert not signature.misfits({"x": (1, 40)})
    assert signature.misfits({"x": (1, 44)}) == ["x: dimension 1 (h) is 44, not a multiple of 8"]
    assert signature.misfits({"x": (1, 136)}) == ["x: dimension 1 (h) is 136, outside 32..128:8"]
    assert Symbol.from_json(symbol.to_json()) == symbol
    assert [symbol.nearest(size) for size in (1, 39, 41, 999)] == [32, 32, 40, 128]
