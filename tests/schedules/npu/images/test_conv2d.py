import random

import pytest

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.schedules.npu.images.conv2d import NpuConv2dSpace
from hetero_tvm.schedules.npu.images.conv2d_tiles import candidates
from tests.schedules.npu.running import assert_close, machine

SPACE = NpuConv2dSpace()


@pytest.mark.parametrize("preset", ["edge", "mobile"])
@pytest.mark.parametrize(
    "op",
    [
        Conv2d(1, 16, 9, 9, 24, (3, 3), (1, 1), (1, 1, 1, 1), epilogue=("bias", "relu")),
        Conv2d(2, 5, 11, 8, 7, (3, 2), (2, 1), (0, 1, 1, 0), epilogue=("bias", "residual", "relu")),
        Conv2d(1, 3, 30, 30, 20, (7, 7), (2, 2), (3, 3, 3, 3), epilogue=("bias", "relu6")),
        Conv2d(1, 32, 7, 7, 40, (1, 1), epilogue=("bias", "residual")),
        Conv2d(1, 8, 14, 14, 16, (1, 1), (2, 2)),
        Conv2d(1, 4, 12, 12, 6, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2)),
        Conv2d(1, 1, 1, 1, 1, (1, 1)),
    ],
    ids=lambda op: op.label,
)
def test_default_tiles_give_the_contract(op, preset):
    assert_close(SPACE, op, machine(preset))


def test_any_tiles_give_the_contract():
    mach = machine("edge")
    op = Conv2d(2, 20, 13, 10, 24, (3, 3), (2, 2), (1, 1, 1, 1), epilogue=("bias", "relu"))
    every = sorted(candidates(op, mach.spec), key=str)
    assert {t.stationary for t in every} == {"x", "w"}
    for t in random.Random(1).sample(every, 8):
        assert_close(SPACE, op, mach, point={"tiles": t.choice()})


def test_groups_are_refused_with_a_reason():
    reason = SPACE.refuses(Conv2d(1, 8, 4, 4, 8, (1, 1), groups=2), machine())
    assert reason == "2 groups: the matrix unit takes convolutions without groups"
