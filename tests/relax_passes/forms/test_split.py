"""Parts of a split as slices."""

from hetero_tvm.relax_passes.forms.split import SplitAsSlices
from tests.relax_passes.compiled import check_results, floats
from tests.relax_passes.graphs import op, relax
from tests.relax_passes.rewrite import Rewrite


def test_parts_are_slices():
    def build(x):
        parts = op.split(x, [2, 5], 1)
        return op.concat([relax.TupleGetItem(parts, n) for n in (2, 0)], 1)

    check_results(build, [floats(3, 7)], SplitAsSlices(), gone="split")


class TestSplitAsSlices(Rewrite):
    rule = SplitAsSlices()
    inputs = {"x": (3, 7)}

    def before(self, x):
        parts = op.split(x, [2, 5], 1)
        return relax.TupleGetItem(parts, 2), relax.TupleGetItem(parts, 0)

    def expected(self, x):
        return op.strided_slice(x, [1], [5], [7]), op.strided_slice(x, [1], [0], [2])
