"""Lookups by several indices as lookups by one: the same elements."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.forms.gather import GatherAsTake, TakeOfKnownPlaces
from tests.relax_passes.compiled import check_results, floats, places, rewritten
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite, bind
from tests.selection import named

GRID = np.stack(np.meshgrid([0, 1], np.arange(5), indexing="ij"), -1).reshape(2, 1, 5, 2)
CASES = {
    "elements": (lambda x, i: op.gather_elements(x, i, 1), [floats(2, 5, 3), places(5, 2, 7, 3)]),
    "elements of the first axis": (lambda x, i: op.gather_elements(x, i, 0), [floats(4, 3), places(4, 2, 3)]),
    "pairs of indices": (lambda x, i: op.gather_nd(x, i), [floats(4, 5, 3), places(4, 6, 2)]),
    "single elements": (lambda x, i: op.gather_nd(x, i), [floats(4, 5), places(4, 2, 3, 2)]),
    "a constant grid": (lambda x: op.gather_nd(x, relax.const(GRID, "int64")), [floats(2, 5)]),
}


@pytest.mark.parametrize("build, arrays", named(CASES, {"elements", "pairs of indices", "a constant grid"}))
def test_the_results_stay(build, arrays):
    check_results(build, arrays, GatherAsTake(), gone="gather_elements gather_nd")


@pytest.mark.parametrize(
    "axis, index, counted",
    [(1, [4, -1, -5, 0, 0], True), (-1, [2, -3], True), (1, [5], False), (0, [1], False)],
)
def test_known_places_are_counted_from_the_start(axis, index, counted):
    def build(x):
        return op.take(x, relax.const(np.array(index, "int64")), axis, mode="wrap")

    after, _ = rewritten(build, [floats(2, 5, 3)], [TakeOfKnownPlaces()])
    assert ("clip" in after.script(show_meta=False)) == counted
    if counted:
        check_results(build, [floats(2, 5, 3)], TakeOfKnownPlaces(), gone="none")


class TestTakeOfKnownPlaces(Rewrite):
    rule = TakeOfKnownPlaces()
    inputs = {"x": (2, 5)}

    def before(self, x):
        return op.take(x, constant([3, -1], "int64"), 1, mode="wrap")

    def expected(self, x):
        return op.take(x, constant([3, 4], "int32"), 1, mode="clip")


class TestGatherAsTake(Rewrite):
    rule = GatherAsTake()
    inputs = {"x": (4, 5, 3), "index": ("int64", 6, 2)}

    def before(self, x, index):
        return op.gather_nd(x, index)

    def expected(self, x, index):
        row, column = op.strided_slice(index, [-1], [0], [1]), op.strided_slice(index, [-1], [1], [2])
        row = bind(op.multiply(op.astype(op.squeeze(row, [-1]), "int32"), constant(5, "int32")))
        flat = bind(op.add(row, op.astype(op.squeeze(column, [-1]), "int32")))
        return op.reshape(op.take(op.reshape(x, (20, 3)), flat, 0, mode="wrap"), (6, 3))
