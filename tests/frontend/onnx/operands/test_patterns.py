"""Patterns of shapes: letters, products, sums, alternatives, unknown extents."""

import pytest
from onnx import helper

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend.onnx.operands.patterns import refuse_unfit

NODE = helper.make_node("Op", ["a", "b", "c"], ["y"], name="one")


def refuse(patterns, *shapes, **known):
    refuse_unfit(NODE, dict(enumerate(patterns)), dict(zip("abc", shapes, strict=False)).get, known)


@pytest.mark.parametrize(
    "patterns, shapes, known",
    [
        (("B S", "S"), ((2, 3), (3,)), {}),
        (("B S", "B S | 1 S"), ((2, 3), (1, 3)), {}),
        (("B n*D", "D"), ((2, 12), (4,)), {"n": 3}),
        (("B T", "P+S", "P S"), ((2, 3), (7,), (3, 4)), {}),  # the sum is known at the end
        (("... H", "H"), ((5, 2, 8), (8,)), {}),
        (("...", "C"), ((5, 8), (8,)), {}),
        (("N C ...", "C"), ((5, 8, 2, 2), (8,)), {}),
        (("B S", "S"), ((2, None), (3,)), {}),
        (("B S", "S"), ((2, 3), None), {}),
        (("a*b", "a"), ((12,), (5,)), {}),  # two letters are unknown
    ],
)
def test_fit(patterns, shapes, known):
    refuse(patterns, *shapes, **known)


@pytest.mark.parametrize(
    "patterns, shapes, known",
    [
        (("B S", "S"), ((2, 3), (1,)), {}),
        (("B S", "B S | 1 S"), ((2, 3), (2, 1)), {}),
        (("B n*D", "D"), ((2, 12), (3,)), {"n": 3}),
        (("B n*D",), ((2, 10),), {"n": 3}),
        (("B T", "P+S", "P S"), ((2, 3), (8,), (3, 4)), {}),
        (("... H", "H"), ((5, 2, 1), (8,)), {}),
        (("B 4",), ((2, 5),), {}),
        (("B 4",), ((2, 4, 1),), {}),
    ],
)
def test_unfit_names_node_and_shapes(patterns, shapes, known):
    with pytest.raises(ModelError, match=r"'one' \(Op\).*do not go together: a \["):
        refuse(patterns, *shapes, **known)
