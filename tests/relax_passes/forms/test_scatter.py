"""Scatters as concatenations, selections and products: the same numbers."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.forms.scatter import ScatterAsKernel, ScatterAsSelection
from tests.relax_passes.compiled import floats, result, rewritten
from tests.relax_passes.graphs import constant, op
from tests.relax_passes.rewrite import Rewrite, any_function
from tests.selection import named


def rows(*values):
    return np.array(values, np.int64).reshape(-1, 1)


def elements(values, shape, axis):
    """Places that are the same for all indices of the other axes."""
    along = [1] * len(shape)
    along[axis] = -1
    wanted = [*shape]
    wanted[axis] = len(values)
    return np.ascontiguousarray(np.broadcast_to(np.array(values, np.int64).reshape(along), wanted))


def known(scatter, places, **options):
    return lambda data, updates: scatter(data, relax.const(places), updates, **options)


def nd(data, places, updates, reduction="update"):
    return op.scatter_nd(data, places, updates, reduction)


def expected(data, places, updates, axis, add):
    """Result of the scatter in NumPy; ``axis`` is None for rows."""
    after = data.copy()
    if axis is None:
        at = (places.reshape(-1),)
        updates = updates.reshape(-1, *data.shape[1:])
    else:
        grid = np.meshgrid(*map(np.arange, places.shape), indexing="ij")
        at = (*grid[:axis], places, *grid[axis + 1 :])
    if add:
        np.add.at(after, at, updates)
    else:
        after[at] = updates
    return after


DATA = floats(5, 3)
PER_ELEMENT = np.array([[[0, -1, 2], [3, 1, -4]]] * 2)
TWICE = np.array([[[3], [1]], [[3], [-4]]])
CASES = {
    "rows in a row": (True, DATA, rows(1, 2, 3), floats(3, 3), None, False),
    "the last rows, added": (True, DATA, rows(-2, -1), floats(2, 3), None, True),
    "all rows": (True, DATA, rows(0, 1, 2, 3, 4), floats(5, 3), None, False),
    "rows in disorder": (True, DATA, rows(4, 0, -2), floats(3, 3), None, False),
    "rows in disorder, added": (True, DATA, rows(3, 1), floats(2, 3), None, True),
    "columns": (True, DATA, elements([2, 0], (5, 3), 1), floats(5, 2), 1, False),
    "computed rows": (False, DATA, rows(-1, 2), floats(2, 3), None, False),
    "computed rows, one twice": (False, DATA, TWICE, floats(2, 2, 3), None, True),
    "computed elements": (False, floats(2, 4, 3), PER_ELEMENT, floats(2, 2, 3), 1, False),
    "computed elements, added": (False, floats(2, 4, 3), PER_ELEMENT, floats(2, 2, 3), 1, True),
    "many rows added": (False, floats(5, 2, 3), rows(0, 3, 3, -1, 2, 0), floats(6, 2, 3), None, True),
}


@pytest.mark.parametrize(
    "are_known, data, places, updates, axis, add",
    named(
        CASES,
        {
            "rows in a row",
            "the last rows, added",
            "all rows",
            "rows in disorder",
            "rows in disorder, added",
            "columns",
            "computed rows",
            "computed elements",
        },
    ),
)
def test_the_results_stay(are_known, data, places, updates, axis, add):
    def build(data, updates, *computed):
        at = computed[0] if computed else relax.const(places)
        reduction = "add" if add else "update"
        if axis is None:
            return nd(data, at, updates, reduction)
        return op.scatter_elements(data, at, updates, axis, reduction)

    arrays = [data, updates] if are_known else [data, updates, places]
    after, report = rewritten(build, arrays, [ScatterAsSelection()])
    assert report.misses == [] and "R.scatter" not in after.script(show_meta=False)
    # Values of order one; sums of few of them in another order.
    wanted = expected(data, places, updates, axis, add)
    np.testing.assert_allclose(result(after, arrays), wanted, rtol=0, atol=1e-6)


MANY = np.zeros((6, 1), np.int64)
MISSES = {
    "combines by max": (lambda x, i, u: nd(x, i, u, "max"), [DATA, MANY, floats(6, 3)]),
    "many computed places": (nd, [DATA, MANY, floats(6, 3)]),
    "one place twice": (known(nd, rows(1, 1)), [DATA, floats(2, 3)]),
    "places of several indices": (nd, [DATA, np.zeros((2, 2), np.int64), floats(2)]),
    "a part of the rows": (
        lambda x, i, u: op.scatter_elements(x, i, u, 0),
        [DATA, np.zeros((1, 2), np.int64), floats(1, 2)],
    ),
}


@pytest.mark.parametrize("reason, case", MISSES.items(), ids=MISSES.keys())
def test_left_alone(reason, case):
    _, report = rewritten(*case, [ScatterAsSelection()])
    assert [reason in miss["reason"] for miss in report.misses] == [True]


class TestScatterAsSelection(Rewrite):
    """At known places in a row."""

    rule = ScatterAsSelection()
    inputs = {"x": (6, 4), "rows": (2, 4)}

    def before(self, x, rows):
        return op.scatter_nd(x, constant([[1], [2]], "int64"), rows, "update")

    def expected(self, x, rows):
        before, behind = op.strided_slice(x, [0], [0], [1]), op.strided_slice(x, [0], [3], [6])
        return op.concat([before, rows, behind], 0)


SCATTER = any_function((4, 3), "float32", others=[((2, 1), "int64"), ((2, 3), "float32")])


class TestScatterAsKernel(Rewrite):
    rule = ScatterAsKernel(lambda *of: SCATTER)
    inputs = {"data": (4, 3), "places": ("int64", 2, 1), "updates": (2, 3)}

    def before(self, data, places, updates):
        return op.scatter_nd(data, places, updates, "update")

    def expected(self, data, places, updates):
        function = relax.BlockBuilder.current().add_func(SCATTER, "scatter")
        return relax.call_tir(function, [data, places, updates], out_ty=relax.TensorType((4, 3), "float32"))
