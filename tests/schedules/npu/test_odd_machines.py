"""Every space on machines that are unlike the presets: right numbers, or a reason."""

import dataclasses

import pytest

from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.targets.npu.spaces import NPU_SPACES
from tests.schedules.npu.running import assert_close, machine

SAME = (1, 1, 1, 1)
OPS = [
    Matmul((40,), 48, 64, ("bias", "residual")),
    Attention(1, 2, 36, 36, 12, 0.25, 2, packed=True, mask=(1, 1, 1, 36)),
    Conv2d(1, 3, 20, 20, 10, (3, 3), (2, 2), SAME, epilogue=("bias", "relu")),
    Conv2d(1, 24, 6, 6, 24, (3, 3), (1, 1), SAME, groups=24, epilogue=("bias", "relu6")),
    Normalization((20,), 48, 1e-5),
]
CHANGES = [
    {"alignment": 1024},
    {"alignment": 512, "matrix_block": (4, 1, 8), "vector_lanes": 8, "l0c_kib": 8, "ub_kib": 24},
    {"alignment": 4, "matrix_block": (7, 5, 3)},
    {"matrix_block": (64, 64, 64)},
    {"l1_kib": 8, "l0a_kib": 2, "l0b_kib": 2, "l0c_kib": 2, "ub_kib": 6, "vector_lanes": 12},
    {"issue_cycles": 0, "dram_latency": 0, "dma_outstanding": 1, "events": 1, "dram_bytes_per_cycle": 0.01},
]


def odd(**changes):
    if "vector_lanes" in changes:
        changes["ub_bytes_per_cycle"] = 0
    spec = dataclasses.replace(NPUSpec.preset("edge"), name="odd", **changes)
    return dataclasses.replace(machine(), spec=spec)


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: next(iter(changes)))
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.label)
def test_numbers(op, changes):
    mach = odd(**changes)
    space = next(space for space in NPU_SPACES if space.refuses(op, mach) is None)
    assert_close(space, op, mach)


def test_what_no_tile_of_which_fits_is_refused():
    mach = odd(ub_kib=1, l0c_kib=1, l0a_kib=1, l0b_kib=1, l1_kib=1)
    for op in OPS:
        for space in NPU_SPACES:
            space.refuses(op, mach)  # says yes or no, raises nothing
    product = Matmul((64,), 512, 512, ("bias",))
    (reason,) = (space.refuses(product, mach) for space in NPU_SPACES if space.name == "npu.matmul")
    assert reason == "no tile fits the scratchpads of odd"
