"""Convolutions of images of any size: strides, dilation, groups, padding, and many taps in loops."""

import dataclasses

import pytest

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.schedules.cpu.images.conv2d import Conv2dSpace
from hetero_tvm.schedules.cpu.symbolic import kernels
from tests.schedules.cpu.running import MACHINES
from tests.schedules.cpu.symbolic.helpers import check, witnesses_of
from tests.selection import thorough

AVX2 = MACHINES["avx2"]


@pytest.mark.parametrize(
    "given",
    [
        *thorough(
            [{"kernel": (3, 3), "padding": (1, 1, 1, 1), "epilogue": ("bias", "gate", "relu", "residual")}]
        ),
        *thorough([{"kernel": (1, 1), "epilogue": ("bias",)}]),
        {"kernel": (3, 2), "padding": (2, 2, 2, 2), "dilation": (2, 2), "groups": 3},
        *thorough([{"kernel": (7, 7), "padding": (3, 3, 3, 3)}]),
        {"kernel": (3, 3), "padding": (1, 1, 1, 1), "groups": 6},
    ],
)
def test_convolutions_of_any_width(given):
    def make(b, s):
        return Conv2d(batch=b, channels=6, height=9, width=s, filters=6, **given)

    space = Conv2dSpace()
    witnesses = witnesses_of(make)
    point = space.default(witnesses.largest, AVX2)
    function = kernels.emit(witnesses, space, point, AVX2)
    check(make, function, space.pack(witnesses.largest, point, AVX2))


@pytest.mark.parametrize(
    "given",
    [
        {"kernel": (3, 3), "strides": (2, 2), "padding": (0, 0, 1, 1), "epilogue": ("bias", "relu")},
        {"kernel": (3, 5), "dilation": (2, 1), "padding": (2, 0, 1, 3), "filters": 12},
        *thorough([{"kernel": (2, 2), "strides": (1, 2), "filters": 12, "epilogue": ("residual", "gate")}]),
    ],
)
@pytest.mark.parametrize("small_cache", [False, True])
def test_depthwise_convolutions_fill_the_rows_of_a_block(given, small_cache):
    """A small L1 cuts images into several blocks of rows, each with its neighbours' rows around it."""
    machine = dataclasses.replace(AVX2, l1=1024) if small_cache else AVX2

    def make(b, s):
        return Conv2d(
            **({"batch": b, "channels": 6, "height": 2 * s, "width": 2 * s, "filters": 6} | given), groups=6
        )

    space = Conv2dSpace()
    witnesses = witnesses_of(make)
    point = space.default(witnesses.largest, machine)
    function = kernels.emit(witnesses, space, point, machine)
    check(make, function, space.pack(witnesses.largest, point, machine))


def test_filters_of_any_number_of_taps():
    """The kernel loops over taps, so that filters which no space serves at one size have it as well."""

    def make(b, s):
        return Conv2d(b, 6, 1, 2 * s, 6, (1, 60), (1, 2), (0, 30, 0, 30), groups=2, epilogue=("bias",))

    witnesses = witnesses_of(make)
    assert "60 filter taps" in Conv2dSpace().refuses(witnesses.largest, AVX2)
    space = kernels.space_for(witnesses.largest)
    point = space.default(witnesses.largest, AVX2)
    function = kernels.emit(witnesses, space, point, AVX2)
    check(make, function, space.pack(witnesses.largest, point, AVX2))
    assert kernels.space_for(Conv2d(1, 6, 8, 8, 6, (1, 1), constant_weight=False)) is None
