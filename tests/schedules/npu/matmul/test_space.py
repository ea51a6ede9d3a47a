import random

import pytest

from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.npu.matmul.choices import candidates
from hetero_tvm.schedules.npu.matmul.space import NpuMatmulSpace
from hetero_tvm.targets.npu.device.driver import open_device
from hetero_tvm.targets.npu.tuning.measure import kernel_region
from tests.schedules.npu.running import assert_close, machine

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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_any_tiles_give_the_contract(dtype):
    mach = machine("edge", dtype)
    op = Matmul((3, 33), 70, 65, ("residual", "bias", "gelu_tanh"))
    every = sorted(candidates(op, mach.spec), key=str)
    assert len(every) > 100
    for t in random.Random(0).sample(every, 8):
        assert_close(SPACE, op, mach, point={"tiles": t.choice()})


def test_a_point_that_does_not_fit_is_refused():
    op = Matmul((512,), 512, 512)
    with pytest.raises(ValueError, match="do not fit edge"):
        SPACE.check(op, {"tiles": ("x", 512, 512, 512, 1, 1, 2, 8)}, machine("edge"))


def test_large_activations_do_not_overflow_gelu():
    import numpy as np

    op = Matmul((4,), 8, 8, ("gelu_tanh",))
    x = np.full((4, 8), 300.0, np.float32)
    assert_close(SPACE, op, machine(), [x, np.eye(8, dtype=np.float32)])


@pytest.mark.parametrize("preset", ["mobile", "datacenter"])
def test_default_tiles_keep_the_matrix_unit_busy(preset):
    mach, op = machine(preset), Matmul((1024,), 1024, 1024)
    region = kernel_region(SPACE, op, SPACE.default(op, mach), mach)
    with open_device(mach.spec) as device:
        counters = device.time(device.load(region.stream)).counters
    assert counters.matrix_block_cycles >= 0.9 * counters.cycles


@pytest.mark.parametrize("steps", [("bias", "residual"), ("gelu_erf",), ("bias", "relu", "residual")])
def test_reductions_in_parts_give_the_contract(steps):
    """Sums wait in float16 between the parts; sizes that no tile divides."""
    op, mach = Matmul((37,), 72, 2048, steps), machine("edge")
    split = [t for t in SPACE.knobs(op, mach)[0].choices if len(t) == 9]
    assert {t[8] for t in split} >= {2, 4}
    for parts in {t[8] for t in split}:
        tiles = next(t for t in split if t[8] == parts)
        SPACE.check(op, {"tiles": tiles}, mach)
        assert_close(SPACE, op, mach, point={"tiles": tiles})
    assert len(SPACE.default(op, mach)["tiles"]) == 8


@pytest.mark.parametrize("room", [16 << 10, 64 << 10])
def test_points_for_a_place_fit_there_and_alone(room):
    """So that a record of one is kept, whatever is held when the model is built."""
    op, mach, held = Matmul((64,), 96, 64, ("bias",)), machine("edge"), frozenset({0})
    space = NpuMatmulSpace()
    found = space.in_place(op, mach, held, room, 4)
    assert 1 < len(found) <= 4 and len({str(point) for point in found}) == len(found)
    for point in found:
        space.check(op, point, mach)
        kept = space.fitted(op, point, mach, held, room)["tiles"]
        assert kept[:6] == point["tiles"][:6] and kept[6] >= point["tiles"][6]
