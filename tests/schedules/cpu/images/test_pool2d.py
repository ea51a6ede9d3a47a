"""Pooling on channel blocks."""

import numpy as np
import pytest

from hetero_tvm.ops.pool2d import Pool2d, Relayout
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.images.pool2d import Pool2dSpace
from tests.ops.helpers import sample_inputs
from tests.schedules.cpu.running import (
    MACHINES,
    check_shapes,
    compiled,
    exact,
    point_runners,
)
from tests.selection import named

POOL = Pool2dSpace()
PAD, NONE = (1, 1, 1, 1), (0, 0, 0, 0)
SHAPES = [
    (2, 20, 9, 11, (3, 3), (2, 2), PAD, (5, 6), "max"),
    (2, 20, 9, 11, (3, 3), (2, 2), PAD, (5, 6), "avg"),
    (1, 4, 10, 11, (3, 3), (2, 2), PAD, (6, 6), "avg", True),  # rounded up: windows past the padding
    (1, 17, 10, 11, (10, 11), (1, 1), NONE, (1, 1), "avg"),
    (1, 16, 3, 12, (2, 9), (1, 1), NONE, (2, 4), "max"),
    (1, 1, 1, 1, (1, 1), (1, 1), NONE, (1, 1), "max"),
    (2, 17, 1, 40, (1, 3), (1, 2), (0, 1, 0, 1), (1, 20), "max"),
    (1, 4, 3, 30, (3, 4), (1, 3), NONE, (1, 9), "avg"),
]


@pytest.mark.parametrize("machine", named(MACHINES, {"avx512"}))
def test_pooling(machine):
    block = f"NCHW{machine.lanes}c"
    forms = [
        {"x_layout": block, "y_layout": block + "+1,0,2,1"},
        {"x_layout": block + "+1,1,1,1", "y_layout": block},
    ]
    check_shapes(POOL, [Pool2d(*shape, **forms[i % 2]) for i, shape in enumerate(SHAPES)], machine)


@pytest.mark.thorough
def test_workloads_say_the_same():
    ops = [Pool2d(*s, y_layout="NCHW8c+1,0,0,1") for s in SHAPES]
    ops.append(Relayout(2, 5, 3, 4, "NCHW8c+1,0,0,1", "NCHW4c"))
    for op, run in zip(ops, compiled((op.workload(), op.output.shape) for op in ops), strict=True):
        arrays = sample_inputs(op)
        np.testing.assert_allclose(run(*arrays), exact(op, arrays), rtol=1e-5, atol=1e-6, err_msg=str(op))


def test_maximum_of_negative_values_ignores_the_zeros_around():
    machine = MACHINES["avx2"]
    op = Pool2d(1, 8, 4, 4, (3, 3), (2, 2), PAD, (2, 2), "max", False, "NCHW8c+1,1,1,1", "NCHW8c")
    (x,) = sample_inputs(op)
    x[:, :, 1:-1, 1:-1] = -2 - np.abs(x[:, :, 1:-1, 1:-1])
    (run,) = point_runners(POOL, op, [POOL.default(op, machine)], machine)
    np.testing.assert_array_equal(run(x), op.reference(x))
    assert run(x).max() <= -2


def test_refusals():
    machine = MACHINES["avx2"]
    assert POOL.refuses(Softmax((3,), 4), machine) == "not a pooling"
    assert "not in blocks of 8" in POOL.refuses(Pool2d(*SHAPES[0]), machine)
