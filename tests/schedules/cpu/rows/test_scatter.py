"""Scatters of rows as the CPU's kernel: places of one and several axes, repeated ones, odd rows, types."""

import functools

import numpy as np
import pytest

from hetero_tvm.relax_passes.forms.scatter import REDUCTIONS, ScatterAsKernel
from hetero_tvm.schedules.cpu.rows.scatter import emit_scatter_rows
from tests.relax_passes.compiled import RNG, floats, result, rewritten
from tests.relax_passes.graphs import op
from tests.schedules.cpu.running import MACHINES

CASES = {
    "rows": (floats(9, 37), RNG.permutation(9)[:4].reshape(4, 1), floats(4, 37)),
    "long rows": (floats(5, 1024), np.array([[4], [0]]), floats(2, 1024)),
    "repeated": (floats(6, 5), np.array([[2], [2], [1], [2]]), floats(4, 5)),
    "elements": (floats(4, 6), np.array([[1, 2], [3, 5], [0, 0]]), floats(3)),
    "several axes of places": (floats(4, 3, 7), np.array([[[0, 1]], [[3, 2]]]), floats(2, 1, 7)),
    "whole numbers": (RNG.integers(0, 9, (8, 3)), np.array([[7], [1]], np.int32), RNG.integers(0, 9, (2, 3))),
    "large": (floats(700, 33), RNG.permutation(700)[:200].reshape(-1, 1), floats(200, 33)),
}


@pytest.mark.parametrize("data, places, updates", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_results_stay(data, places, updates, reduction):
    rule = ScatterAsKernel(functools.partial(emit_scatter_rows, MACHINES["avx2"]))
    arrays = [data, places, updates]
    after, _ = rewritten(lambda x, i, u: op.scatter_nd(x, i, u, reduction), arrays, [rule])
    assert "R.scatter_nd" not in after.script(show_meta=False)
    wanted = data.copy()
    index = tuple(places.reshape(-1, places.shape[-1]).T)
    updates = updates.reshape(len(index[0]), *data.shape[places.shape[-1] :])
    if reduction != "update":
        combine = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[reduction]
        combine.at(wanted, index, updates)
    else:
        for at, update in zip(zip(*index, strict=True), updates, strict=True):
            wanted[at] = update
    np.testing.assert_allclose(result(after, arrays), wanted, rtol=1e-6)


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_extrema_keep_nan(reduction):
    rule = ScatterAsKernel(functools.partial(emit_scatter_rows, MACHINES["avx2"]))
    data, updates = np.ones((3, 9), np.float32), np.full((3, 9), 2, np.float32)
    data[0, 2] = updates[1, 3] = updates[2, 8] = np.nan
    arrays = [data, np.array([[0], [0], [2]]), updates]
    after, _ = rewritten(lambda x, i, u: op.scatter_nd(x, i, u, reduction), arrays, [rule])
    wanted = data.copy()
    {"max": np.maximum, "min": np.minimum}[reduction].at(wanted, [0, 0, 2], updates)
    np.testing.assert_array_equal(result(after, arrays), wanted)
