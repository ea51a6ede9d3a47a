import random

import pytest

from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.npu.matmul.choices import candidates
from hetero_tvm.schedules.npu.matmul.space import NpuMatmulSpace
from hetero_tvm.targets.npu.device.driver import open_device
from hetero_tvm.targets.npu.tuning.measure import kernel_region
from tests.schedules.npu.running import assert_close, machine
from tests.selection import thorough

SPACE = NpuMatmulSpace()


@pytest.mark.parametrize("preset", ["edge", "mobile", "datacenter"])
@pytest.mark.parametrize(
    "op",
    [
        Matmul((40,), 96, 72, ("bias", "gelu_erf", "residual")),
        Matmul((9,), 40, 24, ("bias", "quick_gelu")),
        Matmul((1,), 5, 3, ("bias", "tanh")),
        Matmul((3, 33), 70, 65, ("residual", "bias", "silu")),
        Matmul((17,), 200, 300, ("bias", "relu")),
    ],
    ids=lambda op: op.label,
)
def test_default_tiles_give_the_contract(op, preset):
    assert_close(SPACE, op, machine(preset))


@pytest.mark.parametrize("dtype", ["float16", *thorough(["bfloat16"])])
def test_any_tiles_give_the_contract(dtype):
    mach = machine("edge", dtype)
    op = Matmul((3, 33), 70, 65, ("residual", "bias", "gelu_tanh"))
    every = sorted(candidates(op, mach.spec), key=str)
    assert len(every) > 100
    for t in random.Random(0).sample(every, 8):
        assert_close(SPACE, op, mach, point={"tiles": t.choice()})


def test_large_activations_do_not_overflow_gelu():
    import numpy as np

    op = Matmul((4,), 8, 8, ("gelu_tanh",))
    x = np.full((4, 8), 300.0, np.float32)
    assert_close(SPACE, op, machine(), [x, np.eye(8, dtype=np.float32)])


@pytest.mark.parametrize("preset", [*thorough(["mobile"]), "datacenter"])
def test_default_tiles_keep_the_matrix_unit_busy(preset):
    mach, op = machine(preset), Matmul((1024,), 1024, 1024)
    region = kernel_region(SPACE, op, SPACE.default(op, mach), mach)
    with open_device(mach.spec) as device:
        counters = device.time(device.load(region.stream)).counters
    assert counters.matrix_block_cycles >= 0.9 * counters.cycles
