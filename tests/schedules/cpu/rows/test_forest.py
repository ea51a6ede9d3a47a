"""Decision trees: every number of walks, rows that fill no block, many targets, and any number of rows."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.ops.loops.forest import Forest
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.rows.forest import ForestSpace
from hetero_tvm.schedules.cpu.symbolic import kernels
from hetero_tvm.schedules.symbolic import Witnesses
from tests.ops.loops.test_forest import tables
from tests.schedules.cpu.running import MACHINES, TARGET, UNWRITTEN, check_points
from tests.selection import thorough

SPACE = ForestSpace()
MACHINE = MACHINES["avx2"]


@pytest.mark.parametrize(
    "op",
    [
        *thorough([Forest(19, 5, 21, 90, 1, 6)]),
        Forest(3, 4, 3, 20, 7, 4, True),
        *thorough([Forest(32, 6, 1, 30, 3, 5, True)]),
        Forest(1, 6, 40, 99, 2, 9),
        Forest(5, 6, 4, 9, 2, 0),
    ],
    ids=str,
)
def test_every_choice(op):
    (walks,) = SPACE.knobs(op, MACHINE)
    # Sums in float64, rounded once.
    points = [{"walks": n} for n in walks.choices]
    check_points(SPACE, op, points, MACHINE, tables(op), tolerance=2e-7)


def test_a_row_does_not_depend_on_those_beside_it():
    op = Forest(21, 5, 30, 200, 2, 7)
    x, *constant = tables(op)
    kernel = compile_kernels(SPACE.emit(op, {"walks": 8}, MACHINE), TARGET).jit()["main"]
    alone = compile_kernels(SPACE.emit(Forest(1, 5, 30, 200, 2, 7), {"walks": 8}, MACHINE), TARGET).jit()
    given = [tvm.runtime.tensor(array) for array in constant]
    together = tvm.runtime.tensor(np.full((21, 2), UNWRITTEN, "float32"))
    kernel(tvm.runtime.tensor(x), *given, together)
    for row in (0, 8, 20):
        one = tvm.runtime.tensor(np.full((1, 2), UNWRITTEN, "float32"))
        alone["main"](tvm.runtime.tensor(x[row : row + 1].copy()), *given, one)
        np.testing.assert_array_equal(one.numpy()[0], together.numpy()[row])


@pytest.mark.parametrize("missing", [*thorough([False]), True])
def test_any_number_of_rows(missing):
    sizes = ({"n": 40}, {"n": 33}, {"n": 21}, {"n": 9})

    def make(n):
        return Forest(n, 5, 11, 60, 2, 6, missing)

    witnesses = Witnesses(tuple(make(**each) for each in sizes), sizes)
    function = kernels.emit(witnesses, SPACE, {"walks": 8}, MACHINE)
    run = compile_kernels(function, TARGET).jit()["main"]
    for n in (1, 7, 8, 9, 40):
        operands = tables(make(n), seed=n)
        result = tvm.runtime.tensor(np.full((n, 2), UNWRITTEN, "float32"))
        run(*map(tvm.runtime.tensor, operands), result)
        np.testing.assert_allclose(result.numpy(), make(n).reference(*operands), rtol=2e-7, atol=1e-6)


def test_refusals_and_defaults():
    assert SPACE.refuses(Softmax((3,), 4), MACHINE) == "no decision trees"
    assert SPACE.refuses(Forest(0, 4, 3, 20, 7, 4), MACHINE) == "an extent is zero"
    assert "32 bits" in SPACE.refuses(Forest(1 << 20, 1 << 12, 3, 20, 7, 4), MACHINE)
    for rows in (1, 4, 1000):
        assert SPACE.default(Forest(rows, 4, 100, 2000, 1, 6), MACHINE)["walks"] in (4, 8, 16)
