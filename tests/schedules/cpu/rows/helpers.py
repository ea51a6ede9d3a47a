"""Checks that spaces of rows share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.cpu.rows.row_chunks import RowSpace
from tests.ops.helpers import sample_inputs
from tests.schedules.cpu.running import MACHINES, point_runners

LENGTHS = (1, 3, 31, 100)


def check_defaults(space: RowSpace, op_of: Callable[[int, int], FusedOp]) -> None:
    """The default is a choice for ``op_of(rows, n)`` of all sizes; few bytes stay on the calling thread."""
    for machine in MACHINES.values():
        for rows in (1, 2, 3, 1000):
            for n in (1, 3, 5000):
                op = op_of(rows, n)
                point = space.default(op, machine)
                space.check(op, point, machine)
                if rows * n <= 9:
                    assert point == {"chunks": 1}
        assert space.default(op_of(1000, 5000), machine) == {"chunks": machine.threads}


def check_bad_values_stay_in_their_row(space: RowSpace, op: FusedOp, machine: CpuModel, bad: float) -> None:
    """One bad value of row 1 (of 5) changes no other row, and makes NaN what the reference makes NaN."""
    runners = point_runners(space, op, [{"chunks": c} for c in space.knobs(op, machine)[0].choices], machine)
    arrays = sample_inputs(op)
    clean = runners[0](*arrays)
    arrays[0][1, 20] = bad
    with np.errstate(invalid="ignore"):
        truth = op.reference(*arrays)[1]
    for run in runners:
        result = run(*arrays)
        np.testing.assert_array_equal(result[[0, 2, 3, 4]], clean[[0, 2, 3, 4]])
        np.testing.assert_array_equal(np.isnan(result[1]), np.isnan(truth))
