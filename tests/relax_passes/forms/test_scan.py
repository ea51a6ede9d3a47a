"""Sums and products along an axis in shifted steps: the same numbers."""

import pytest

from hetero_tvm.relax_passes.forms.scan import ScanAsKernel, ScanAsShifts
from tests.relax_passes.compiled import RNG, check_results, floats
from tests.relax_passes.graphs import op
from tests.relax_passes.rewrite import Rewrite, any_kernel

CASES = {
    "sums along": (lambda x: op.cumsum(x, 1), [floats(2, 7)]),
    "sums of integers": (lambda x: op.cumsum(x, 0, "int64"), [RNG.integers(-9, 9, (13, 2))]),
    "sums of truth values": (lambda x: op.cumsum(x, 1, "int64"), [RNG.integers(0, 2, (2, 9)) > 0]),
    "sums before": (lambda x: op.cumsum(x, 1, exclusive=True), [floats(2, 5, 3)]),
    "sums of one": (lambda x: op.cumsum(x, 1), [floats(3, 1)]),
    "products along": (lambda x: op.cumprod(x, -1), [floats(2, 6)]),
}


@pytest.mark.parametrize("build, arrays", CASES.values(), ids=CASES.keys())
def test_the_results_stay(build, arrays):
    check_results(build, arrays, ScanAsShifts(), gone="cumsum cumprod")


class TestScanAsShifts(Rewrite):
    rule = ScanAsShifts()
    inputs = {"x": (2, 7)}

    def before(self, x):
        return op.cumsum(x, 1)

    def expected(self, x):
        return any_kernel("cumsum", (2, 7), "float32", x)


class TestScanAsKernel(TestScanAsShifts):
    rule = ScanAsKernel(ScanAsShifts().function)
