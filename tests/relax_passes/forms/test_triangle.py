"""Triangles of matrices as selections: the same numbers."""

import pytest

from hetero_tvm.relax_passes.forms.triangle import TriangleAsMask
from tests.relax_passes.forms.models import check_results, floats, op, places

CASES = {
    "a triangle": (lambda x: op.tril(x, 1), [floats(2, 3, 4)]),
    "a triangle of integers": (lambda x: op.triu(x, -1), [places(9, 4, 3)]),
}


@pytest.mark.parametrize("build, arrays", CASES.values(), ids=CASES.keys())
def test_the_results_stay(build, arrays):
    check_results(build, arrays, TriangleAsMask(), gone="tril triu")
