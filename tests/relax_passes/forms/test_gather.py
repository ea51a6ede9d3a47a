"""Lookups by several indices as lookups by one: the same elements."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.forms.gather import GatherAsTake
from tests.relax_passes.forms.models import check_results, floats, op, places

GRID = np.stack(np.meshgrid([0, 1], np.arange(5), indexing="ij"), -1).reshape(2, 1, 5, 2)
CASES = {
    "elements": (lambda x, i: op.gather_elements(x, i, 1), [floats(2, 5, 3), places(5, 2, 7, 3)]),
    "elements of the first axis": (lambda x, i: op.gather_elements(x, i, 0), [floats(4, 3), places(4, 2, 3)]),
    "pairs of indices": (lambda x, i: op.gather_nd(x, i), [floats(4, 5, 3), places(4, 6, 2)]),
    "single elements": (lambda x, i: op.gather_nd(x, i), [floats(4, 5), places(4, 2, 3, 2)]),
    "a constant grid": (lambda x: op.gather_nd(x, relax.const(GRID, "int64")), [floats(2, 5)]),
}


@pytest.mark.parametrize("build, arrays", CASES.values(), ids=CASES.keys())
def test_the_results_stay(build, arrays):
    check_results(build, arrays, GatherAsTake(), gone="gather_elements gather_nd")
