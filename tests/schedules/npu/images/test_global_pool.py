import numpy as np
import pytest

from hetero_tvm.ops.pool2d import Pool2d
from hetero_tvm.schedules.npu.images.global_pool import NpuGlobalPoolSpace
from tests.schedules.npu.running import assert_close, machine, run

SPACE = NpuGlobalPoolSpace()


def mean(batch, channels, height, width, **changes):
    fields = {"kernel": (height, width), "strides": (1, 1), "padding": (0,) * 4, "out": (1, 1), "mode": "avg"}
    return Pool2d(batch, channels, height, width, **fields | changes)


@pytest.mark.parametrize(
    "op",
    [mean(1, 1, 1, 1), mean(1, 48, 7, 7), mean(2, 100, 5, 9), mean(3, 17, 1, 33), mean(1, 520, 2, 2)],
    ids=lambda op: op.label,
)
def test_means_keep_their_contract_with_any_tile(op):
    mach = machine()
    for tile in SPACE.knobs(op, mach)[0].choices:
        assert_close(SPACE, op, mach, point={"tile": tile})


@pytest.mark.parametrize("preset", ["mobile", "datacenter"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_on_other_machines(preset, dtype):
    assert_close(SPACE, mean(1, 96, 14, 14), machine(preset, dtype))


def test_sums_beyond_float16_and_special_values():
    op = mean(1, 4, 8, 8)
    image = np.full(op.image, 6e4, np.float32)
    image[0, 1, 2, 3], image[0, 2, 0, 0] = np.nan, np.inf
    got, _ = run(SPACE, op, machine(), [image])
    got = got.reshape(-1)
    assert got[0] == got[3] == np.float16(6e4) and np.isnan(got[1]) and got[2] == np.inf


@pytest.mark.parametrize(
    "changes",
    [{"mode": "max"}, {"kernel": (3, 3), "out": (3, 3)}, {"padding": (1, 1, 1, 1), "count_padding": True}],
)
def test_other_pooling_is_refused(changes):
    assert "means over whole images" in SPACE.refuses(mean(1, 8, 5, 5, **changes), machine())
