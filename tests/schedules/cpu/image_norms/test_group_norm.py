"""Group normalisation on channel blocks: groups that fill no blocks, pieces, halos, values far from zero."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.ops.group_norm import GroupNorm
from hetero_tvm.ops.images.norms import BlockedGroupNorm
from hetero_tvm.schedules.cpu.image_norms.group_norm import BlockedGroupNormSpace
from tests.schedules.cpu.running import MACHINES, check_points, exact, point_runners
from tests.selection import thorough

SPACE = BlockedGroupNormSpace()
AVX2 = MACHINES["avx2"]


def norm(machine, shape, groups, activation="", x="", y=""):
    block = f"NCHW{machine.lanes}c"
    return BlockedGroupNorm(*shape, block + x, block + y, groups, 1e-5, activation)


@pytest.mark.parametrize("machine", [AVX2, *thorough([MACHINES["sse"], MACHINES["avx512"]])])
@pytest.mark.parametrize(
    ("shape", "groups", "activation", "x", "y"),
    [
        ((1, 20, 7, 9), 2, "silu", "", "+1,2,0,1"),
        ((2, 30, 3, 4), 3, "", "+1,0,2,1", ""),
        ((3, 12, 5, 6), 12, "sigmoid", "", "+1,1,1,1"),
        ((1, 1, 1, 1), 1, "", "", ""),
        ((1, 48, 9, 1), 1, "relu", "+2,2,2,2", "+1,1,1,1"),
    ],
    ids=str,
)
def test_groups_and_instances(machine, shape, groups, activation, x, y):
    op = norm(machine, shape, groups, activation, x, y)
    assert SPACE.refuses(op, machine) is None
    check_points(SPACE, op, [{}], machine, tolerance=2e-6)


@pytest.mark.parametrize("threads", [*thorough([1]), 7])
def test_planes_in_pieces(threads):
    """A plane is cut where there are fewer than threads, at most into its rows."""
    machine = dataclasses.replace(AVX2, threads=threads)
    for height in (1, 5, 40):
        check_points(SPACE, norm(machine, (1, 6, height, 3), 2), [{}], machine, tolerance=2e-6)


def test_values_far_from_zero_keep_their_digits():
    op = norm(AVX2, (1, 16, 32, 33), 4)
    rng = np.random.default_rng(0)
    x = (1000 + rng.standard_normal(op.inputs[0].shape)).astype("float32")
    x[0, 0, 0, 0] = -300  # the first pixel of some channels, from which their means are taken
    arrays = [x, np.ones(16, "float32"), np.zeros(16, "float32")]
    (run,) = point_runners(SPACE, op, [{}], AVX2)
    assert np.abs(run(*arrays) - exact(op, arrays)).max() < 2e-4


def test_a_value_that_is_no_number_stays_in_its_group():
    op = norm(AVX2, (1, 16, 4, 4), 4)
    arrays = [np.random.default_rng(0).standard_normal(o.shape).astype("float32") for o in op.inputs]
    arrays[0][0, 0, 2, 1, 5] = np.inf
    (run,) = point_runners(SPACE, op, [{}], AVX2)
    missing = np.isnan(run(*arrays))
    assert missing[0, 0, :, :, 4:].all() and missing.sum() == 4 * 16


def test_refusals():
    assert "not a blocked_group_norm" in SPACE.refuses(GroupNorm((1, 4, 2, 2), 2, 1e-5), AVX2)
    assert "not in blocks" in SPACE.refuses(norm(MACHINES["sse"], (1, 4, 2, 2), 2), AVX2)
    assert "zero" in SPACE.refuses(norm(AVX2, (1, 4, 0, 2), 2), AVX2)
