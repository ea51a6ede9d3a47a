"""Triangles of matrices as selections: the same numbers."""

import pytest

from hetero_tvm.relax_passes.forms.triangle import TriangleAsMask
from tests.relax_passes.compiled import check_results, floats, places
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite

CASES = {
    "a triangle": (lambda x: op.tril(x, 1), [floats(2, 3, 4)]),
    "a triangle of integers": (lambda x: op.triu(x, -1), [places(9, 4, 3)]),
}


@pytest.mark.parametrize("build, arrays", CASES.values(), ids=CASES.keys())
def test_the_results_stay(build, arrays):
    check_results(build, arrays, TriangleAsMask(), gone="tril triu")


class TestTriangleAsMask(Rewrite):
    rule = TriangleAsMask()
    inputs = {"x": (2, 2, 3)}

    def before(self, x):
        return op.tril(x, 1)

    def expected(self, x):
        return op.where(constant([[True, True, False], [True, True, True]], "bool"), x, constant(0.0))
