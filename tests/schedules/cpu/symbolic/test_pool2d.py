"""Pooling of images of any size: strides, padding, what a mean divides by, and narrow images."""

import pytest

from hetero_tvm.ops.pool2d import AVERAGE, MAX, Pool2d
from hetero_tvm.schedules.cpu.images.pool2d_plain import PlainPool2dSpace
from hetero_tvm.schedules.cpu.symbolic import kernels
from tests.schedules.cpu.running import MACHINES
from tests.schedules.cpu.symbolic.helpers import check, witnesses_of
from tests.selection import thorough

AVX2 = MACHINES["avx2"]


@pytest.mark.parametrize(
    "given",
    [
        {"mode": MAX, "kernel": (3, 3), "strides": (1, 1), "padding": (1, 1, 1, 1)},
        {"mode": AVERAGE, "kernel": (3, 3), "strides": (1, 1), "padding": (1, 1, 1, 1)},
        {"mode": AVERAGE, "kernel": (3, 2), "strides": (2, 1), "padding": (1,) * 4, "count_padding": True},
        {"mode": AVERAGE, "kernel": (5, 1), "strides": (1, 1), "padding": (2, 0, 2, 0)},
        *thorough(
            [
                {"mode": MAX, "kernel": (9, 33), "strides": (1, 1), "padding": (4, 16, 4, 16)},
                {"mode": AVERAGE, "kernel": (1, 1), "strides": (1, 1), "padding": (0, 0, 0, 2)},
            ]
        ),
    ],
)
def test_pools_of_any_width(given):
    def make(b, s):
        (top, left, bottom, right), (kh, kw) = given["padding"], given["kernel"]
        rows = (9 + top + bottom - kh) // given["strides"][0] + 1
        out = (rows, s + left + right - kw + 1)
        return Pool2d(batch=b, channels=6, height=9, width=s, out=out, **given)

    witnesses = witnesses_of(make)
    space = PlainPool2dSpace()
    point = space.default(witnesses.largest, AVX2)
    check(make, kernels.emit(witnesses, space, point, AVX2))
