"""Convolutions of volumes on channel blocks: windows of slices, zeros before and after, all methods."""

import dataclasses

import pytest

from hetero_tvm.ops.volumes.conv3d import Conv3d
from hetero_tvm.schedules.cpu.images.conv2d_blocked import BlockedConv2dSpace
from hetero_tvm.schedules.cpu.images.depthwise import DepthwiseSpace
from tests.schedules.cpu.images.helpers import PAD, WINOGRAD_ERROR, on
from tests.schedules.cpu.running import MACHINES, check_points, check_shapes
from tests.selection import thorough

SPACE = BlockedConv2dSpace()


def volumes(channels, filters, kernel, number=2, size=(6, 7), **form):
    """Convolution of two volumes of 5 slices."""
    op = Conv3d(1, channels, *size, filters, kernel, **{"slices": 5, "taps": 3, **form})
    return dataclasses.replace(op, batch=number * op.out_slices)


CASES = {
    "around": (volumes(16, 20, (3, 3), before=1, after=1, padding=PAD, epilogue=("bias",)), "+1,1,1,1"),
    "strided": (
        volumes(24, 9, (3, 3), strides=(2, 2), step=2, before=1, after=1, padding=PAD),
        "+1,1,1,1",
    ),
    "causal": (volumes(16, 16, (1, 1), before=2, epilogue=("bias", "residual", "relu")), ""),
    "even": (volumes(16, 16, (2, 2), taps=2, step=2, after=1), ""),
    "plain": (volumes(3, 17, (3, 5), before=1, after=1, padding=(1, 2, 1, 2), epilogue=("relu",)), None),
    "long": (volumes(16, 16, (3, 3), taps=9, before=4, after=4, padding=PAD), "+1,1,1,1"),
    "partial": (volumes(13, 16, (3, 3), before=1, after=0, padding=PAD), "+1,1,1,1"),
    # windows of one slice, which lies outside of the volume or is there, with a partial block of channels
    "single": (volumes(70, 17, (3, 3), taps=1, before=2, after=1, padding=PAD), "+1,1,1,1"),
}


@pytest.mark.parametrize(
    "name",
    [
        *list(CASES)[1:2],
        *thorough([*list(CASES)[2:3], "around", *list(CASES)[3:5], "long", "partial", "single"]),
    ],
)
def test_windows_of_slices(name):
    op, x = CASES[name]
    for machine in (MACHINES["avx2"], MACHINES["avx512"]):
        blocked = on(machine, op, x)
        default = SPACE.default(blocked, machine)
        methods = SPACE.knobs(blocked, machine)[0].choices
        points = [{**default, "method": method} for method in methods]
        points.append({**default, "blocks": 2, "groups": 1})
        check_points(SPACE, blocked, points, machine, tolerance=WINOGRAD_ERROR)


def test_winograd_needs_whole_blocks_in_a_slice():
    machine = MACHINES["avx512"]
    for name, few in (("around", False), ("partial", True)):
        op, x = CASES[name]
        assert (SPACE.knobs(on(machine, op, x), machine)[0].choices == ("direct",)) == few


@pytest.mark.thorough
def test_every_choice():
    machine = MACHINES["avx2"]
    check_shapes(
        SPACE, [on(machine, *CASES[name]) for name in ("around", "strided")], machine, WINOGRAD_ERROR
    )


@pytest.mark.thorough
def test_panels_in_slices_of_their_depth():
    """The depth of a panel is cut across slices of a volume, of which some are outside of it."""
    machine = dataclasses.replace(MACHINES["avx2"], l1=8 << 10, l2=64 << 10)
    op = on(machine, volumes(76, 24, (3, 3), before=1, after=1, padding=PAD, epilogue=("bias",)), "+1,1,1,1")
    points = [{"method": "direct", "tile": (1, 7, 1), "blocks": 1, "groups": groups} for groups in (1, 2)]
    check_points(SPACE, op, points, machine, tolerance=WINOGRAD_ERROR)


def test_groups_of_channels_are_refused():
    machine = MACHINES["avx2"]
    op = on(machine, volumes(32, 32, (3, 3), groups=2, padding=PAD), "+1,1,1,1")
    assert SPACE.refuses(op, machine) == "groups of a volume's channels"


@pytest.mark.parametrize("machine", ["avx2", "avx512"])
@pytest.mark.parametrize(
    "form", [{"before": 1, "after": 1}, {"step": 2, "before": 2}, {"taps": 5, "after": 3}]
)
def test_depthwise(machine, form):
    machine = MACHINES[machine]
    for kernel, halo in (((3, 3), "+1,1,1,1"), ((1, 1), "")):
        padding = PAD if halo else (0, 0, 0, 0)
        op = volumes(20, 20, kernel, groups=20, padding=padding, epilogue=("bias", "silu"), **form)
        blocked = on(machine, op, halo)
        space = DepthwiseSpace()
        check_points(space, blocked, [space.default(blocked, machine)], machine)
