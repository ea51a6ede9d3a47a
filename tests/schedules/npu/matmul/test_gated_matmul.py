import random

import pytest

from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.schedules.npu.matmul.gated_matmul import NpuGatedMatmulSpace
from tests.schedules.npu.running import assert_close, machine

SPACE = NpuGatedMatmulSpace()


@pytest.mark.parametrize(
    "op",
    [GatedMatmul((12,), 88, 64, "silu"), GatedMatmul((2, 33), 70, 40, "gelu_tanh", biased=True)],
    ids=lambda op: op.label,
)
def test_both_products_and_the_gate(op):
    mach = machine("edge")
    assert SPACE.refuses(op, mach) is None
    assert_close(SPACE, op, mach)
    for tiles in random.Random(0).sample(SPACE.knobs(op, mach)[0].choices, 3):
        assert_close(SPACE, op, mach, point={"tiles": tiles})
