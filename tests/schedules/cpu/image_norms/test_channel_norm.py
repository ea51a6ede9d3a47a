"""Normalisation of pixels over channels in blocks: rows of any length, channels that fill no block, halos."""

import numpy as np
import pytest

from hetero_tvm.ops.images.norms import BlockedNormalization
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.schedules.cpu.image_norms.channel_norm import BlockedNormalizeSpace
from tests.schedules.cpu.running import MACHINES, check_points, exact, point_runners
from tests.selection import thorough

SPACE = BlockedNormalizeSpace()
AVX2 = MACHINES["avx2"]


def norm(machine, shape, centered=True, shifted=True, x="", y=""):
    block = f"NCHW{machine.lanes}c"
    return BlockedNormalization(*shape, block + x, block + y, 1e-5, centered, shifted)


@pytest.mark.parametrize("machine", [AVX2, *thorough([MACHINES["sse"], MACHINES["avx512"]])])
@pytest.mark.parametrize(
    ("shape", "centered", "shifted", "x", "y"),
    [
        ((1, 20, 7, 9), True, True, "", "+1,2,0,1"),
        ((2, 24, 3, 16), True, True, "+1,0,2,1", ""),
        ((3, 33, 2, 37), False, False, "", "+1,1,1,1"),
        ((1, 1, 1, 1), True, True, "", ""),
        ((1, 16, 5, 3), True, False, "", ""),
        ((1, 48, 1, 20), False, True, "", ""),
    ],
    ids=str,
)
def test_layer_and_rms_norms(machine, shape, centered, shifted, x, y):
    op = norm(machine, shape, centered, shifted, x, y)
    assert SPACE.refuses(op, machine) is None
    check_points(SPACE, op, [{}], machine, tolerance=2e-6)


def test_values_far_from_zero_keep_their_digits():
    op = norm(AVX2, (1, 64, 3, 11))
    rng = np.random.default_rng(0)
    x = (1000 + rng.standard_normal(op.inputs[0].shape)).astype("float32")
    arrays = [x, np.ones(64, "float32"), np.zeros(64, "float32")]
    (run,) = point_runners(SPACE, op, [{}], AVX2)
    assert np.abs(run(*arrays) - exact(op, arrays)).max() < 2e-4


def test_a_value_that_is_no_number_stays_in_its_pixel():
    op = norm(AVX2, (1, 12, 2, 19), y="+1,1,1,1")
    arrays = [np.random.default_rng(0).standard_normal(o.shape).astype("float32") for o in op.inputs]
    arrays[0][0, 1, 1, 17, 2] = np.nan
    (run,) = point_runners(SPACE, op, [{}], AVX2)
    assert np.argwhere(np.isnan(run(*arrays))).tolist() == [[0, c // 8, 2, 18, c % 8] for c in range(12)]


def test_refusals():
    assert "not a blocked_normalize" in SPACE.refuses(Normalization((1,), 4, 1e-5, trail=(2, 2)), AVX2)
    assert "not in blocks" in SPACE.refuses(norm(MACHINES["sse"], (1, 4, 2, 2)), AVX2)
    assert "zero" in SPACE.refuses(norm(AVX2, (1, 4, 0, 2)), AVX2)
