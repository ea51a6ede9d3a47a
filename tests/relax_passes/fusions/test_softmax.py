"""Softmax over the last axis as one operator."""

import pytest

from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.relax_passes.fusions.softmax import FuseSoftmax
from tests.relax_passes.graphs import calls, contracts, fuse, module, op, same_numbers
from tests.relax_passes.rewrite import Rewrite, kernel


@pytest.mark.parametrize(("axis", "claimed"), [(-1, True), (2, True), (1, False)])
def test_softmax_over_the_last_axis_only(axis, claimed):
    before = module({"x": (2, 3, 4)}, lambda e, x: e(op.nn.softmax(x, axis=axis)))
    after, _, report = fuse(before, FuseSoftmax())
    assert calls(after) == {"softmax": 1}
    assert bool(contracts(after, "softmax")) == claimed
    assert [m["reason"] for m in report.misses] == ([] if claimed else ["axis 1 of 3, expected the last"])
    same_numbers(before, after)


def test_the_logarithm_where_the_target_has_a_kernel():
    before = module({"x": (2, 3, 4)}, lambda e, x: e(op.nn.log_softmax(x, axis=-1)))
    after, _, _ = fuse(before, FuseSoftmax(lambda op: True))
    assert contracts(after, "softmax") == [Softmax((2, 3), 4, log=True)]
    assert not contracts(fuse(before, FuseSoftmax())[0], "softmax")


class TestFuseSoftmax(Rewrite):
    rule = FuseSoftmax()

    def before(self, x):
        return op.nn.softmax(x, axis=-1)

    def expected(self, x):
        return kernel(Softmax((2, 3), 4), x)
