"""Random operands of kernels that rely on zeros around an image, or on trees: else no candidate is right."""

import numpy as np
import pytest

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.loops.forest import Forest
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.pool2d import Pool2d
from hetero_tvm.schedules.cpu.images.conv2d_blocked import BlockedConv2dSpace
from hetero_tvm.schedules.cpu.images.depthwise import DepthwiseSpace
from hetero_tvm.schedules.cpu.rows.forest import ForestSpace
from hetero_tvm.schedules.task import Task, task_key
from hetero_tvm.search.measure.service import Job, contract_spec
from tests.search.spaces import MACHINE

BLOCKED = {"x_layout": "NCHW8c+1,1,1,1", "y_layout": "NCHW8c", "residual_layout": "NCHW8c+2,2,2,2"}
PAD = (1, 1, 1, 1)


@pytest.fixture(scope="module")
def workers():
    from hetero_tvm.search.measure.forked_workers import ForkedWorkers

    with ForkedWorkers(MACHINE) as found:
        yield found


@pytest.mark.thorough
@pytest.mark.parametrize(
    "space, op",
    [
        (DepthwiseSpace(), Conv2d(1, 12, 6, 7, 12, (3, 3), padding=PAD, groups=12, **BLOCKED)),
        (
            BlockedConv2dSpace(),
            Conv2d(1, 12, 6, 7, 20, (3, 3), padding=PAD, epilogue=("residual",), **BLOCKED),
        ),
        (ForestSpace(), Forest(20, 5, 11, 90, 2, 6)),
        (ForestSpace(), Forest(3, 5, 11, 90, 2, 6, missing=True)),
    ],
    ids=["depthwise", "blocked", "trees", "trees_with_gaps"],
)
def test_a_kernel_that_relies_on_its_operands_is_right(workers, space, op):
    workload = op.workload()
    task = Task(task_key(workload), op.label, op, workload, space, (), op.flops, op.nbytes)
    workers.add_task(task.key, contract_spec(op, space))
    job = Job(task.key, ({"point": dict(space.default(op, MACHINE))},), budget=0.001)
    ((_, (result,)),) = workers.measure([job])
    assert result.seconds is not None, result.text


def test_zeros_where_the_layout_has_them():
    op = Conv2d(1, 12, 6, 7, 20, (3, 3), padding=PAD, epilogue=("bias", "residual"), **BLOCKED)
    ones = [np.ones(operand.shape, np.float32) for operand in op.inputs]
    x, weight, bias, residual = op.admissible(ones)
    assert x.sum() == 12 * 6 * 7 and residual.sum() == 20 * 6 * 7
    assert (weight == 1).all() and (bias == 1).all()
    pooled = Pool2d(1, 12, 6, 7, (2, 2), (2, 2), (0, 0, 0, 0), (3, 3), "max", x_layout="NCHW8c")
    (x,) = pooled.admissible([np.ones(pooled.inputs[0].shape, np.float32)])
    assert x.sum() == 12 * 6 * 7


@pytest.mark.thorough
def test_plain_operands_stay_as_they_are():
    op = Matmul((4,), 8, 8)
    arrays = [np.ones(operand.shape, np.float32) for operand in op.inputs]
    assert all(a is b for a, b in zip(op.admissible(arrays), arrays, strict=True))
