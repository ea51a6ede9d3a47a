"""Functions that code generators lack, in terms of others."""

import pytest

from hetero_tvm.relax_passes.canonical.functions import EqualityOfTruth, ExpandHyperbolic
from tests.relax_passes.canonical.simplified import simplified
from tests.relax_passes.graphs import constant, op


@pytest.mark.parametrize("function", [op.cosh, op.sinh])
def test_hyperbolic_functions(function):
    found = simplified(lambda e, x: e(function(x)), ExpandHyperbolic())
    assert found["exp"] == 2 and not {"cosh", "sinh"} & set(found)


@pytest.mark.parametrize("function, expected", [(op.equal, {"logical_xor": 1, "logical_not": 1}),
                                                (op.not_equal, {"logical_xor": 1})])  # fmt: skip
def test_equality_of_truth(function, expected):
    def body(e, x):
        compared = e(function(e(op.greater(x, constant(0.0))), e(op.less(x, constant(0.5)))))
        return e(op.astype(compared, "float32"))

    found = simplified(body, EqualityOfTruth())
    assert found.items() >= expected.items() and not {"equal", "not_equal"} & set(found)
