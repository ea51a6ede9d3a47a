"""Positions of extrema by comparison: the same, also among equals."""

import pytest

from hetero_tvm.relax_passes.forms.arg_extremum import ArgAsExtremum
from tests.relax_passes.compiled import RNG, check_results, floats
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite, bind

CASES = {
    "argmax": (lambda x: op.argmax(x, 1), [floats(3, 11, 2)]),
    "argmax of integers, first of several": (lambda x: op.argmax(x, 1), [RNG.integers(0, 3, (4, 9))]),
    "argmin kept": (lambda x: op.argmin(x, 0, keepdims=True), [floats(5, 3)]),
    "argmax of everything": (lambda x: op.argmax(x, None), [floats(5, 3)]),
}


@pytest.mark.parametrize("build, arrays", CASES.values(), ids=CASES.keys())
def test_the_results_stay(build, arrays):
    check_results(build, arrays, ArgAsExtremum(), gone="argmax argmin")


class TestArgAsExtremum(Rewrite):
    rule = ArgAsExtremum()
    inputs = {"x": (2, 3)}

    def before(self, x):
        return op.argmax(x, 1)

    def expected(self, x):
        hits = bind(op.equal(x, op.max(x, [1], keepdims=True)))
        hits = op.logical_or(hits, op.isnan(x))
        positions = op.where(hits, constant([[0, 1, 2]], "int32"), constant(2, "int32"))
        first = op.min(positions, [1], keepdims=True)
        return op.reshape(op.astype(first, "int64"), (2,))
