"""Proofs about neighbouring elements, against all values of small indices."""

import pytest

from hetero_tvm.host.tvm import tirx, tvm
from hetero_tvm.schedules.cuda.tensor_program.neighbours import Neighbours
from hetero_tvm.schedules.nests.nest import substitute

GROUPS, WIDTH = 24, 4
# Places of an index, and the step that must be found; None: it differs from neighbour to neighbour.
PLACES = {
    "itself": (lambda i: i, 1),
    "a row": (lambda i: i // 8, 0),
    "a column": (lambda i: i % 8, 1),
    "a column of odd rows": (lambda i: i % 6, None),
    "a row of odd length": (lambda i: i // 6, None),
    "shifted by a vector": (lambda i: i + 4, 1),
    "shifted by an element": (lambda i: i + 1, None),
    "a transposed image": (lambda i: i % 8 * 12 + i // 8, None),
    "blocks in another order": (lambda i: i // 8 * 16 + i % 8, 1),
    "a constant": (lambda i: i * 0 + 5, 0),
    "backwards": (lambda i: 95 - i, None),
}
CONDITIONS = {
    "below a whole vector": (lambda i: i < 40, True),
    "below an odd place": (lambda i: i < 41, False),
    "of a row": (lambda i: i // 8 >= 3, True),
    "of columns": (lambda i: tirx.all(i % 8 >= 4, i // 8 < 2), True),
    "equality of elements": (lambda i: tirx.EQ(i, 40), False),
    "equality of rows": (lambda i: tirx.EQ(i // 8, 5), True),
    "not": (lambda i: tirx.Not(i < 12), True),
}


def values_of(make):
    """The value of an expression at each place of an index."""
    index, analyzer = tvm.ir.Var("i", tvm.ir.PrimType("int32")), tvm.sym.Analyzer()
    places = range(GROUPS * WIDTH)
    made = [substitute(make(index), {index: tirx.const(i, "int32")}) for i in places]
    return [int(analyzer.simplify(value)) for value in made]


@pytest.mark.parametrize("name", PLACES)
def test_steps(name):
    make, step = PLACES[name]
    values = values_of(make)
    vectors = [values[at : at + WIDTH] for at in range(0, len(values), WIDTH)]
    still = all(len(set(vector)) == 1 for vector in vectors)
    moves = all(v == list(range(v[0], v[0] + WIDTH)) and v[0] % WIDTH == 0 for v in vectors)
    assert (0 if still else 1 if moves else None) == step
    assert Neighbours(GROUPS, WIDTH, "int32").step(make) == step


@pytest.mark.parametrize("name", CONDITIONS)
def test_uniform_conditions(name):
    make, uniform = CONDITIONS[name]
    values = values_of(make)
    vectors = [values[at : at + WIDTH] for at in range(0, len(values), WIDTH)]
    assert all(len(set(vector)) == 1 for vector in vectors) == uniform
    index = tvm.ir.Var("i", tvm.ir.PrimType("int32"))
    near = Neighbours(GROUPS, WIDTH, "int32")
    assert near.uniform(make(index), lambda side, at: substitute(side, {index: at})) == uniform
