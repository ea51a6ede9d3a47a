"""Convolutions of few filters: every tile, strides, dilations, channels that fill no block, epilogues."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.volumes.conv3d import Conv3d
from hetero_tvm.schedules.cpu.images.conv2d_blocked import FEW, BlockedConv2dSpace, methods_of
from hetero_tvm.schedules.cpu.images.conv2d_few_kernel import MOST_FILTERS, fits_few, pack_few
from tests.ops.helpers import sample_inputs
from tests.schedules.cpu.images.helpers import PAD, on
from tests.schedules.cpu.running import MACHINES, SWEPT, check_points, llvm_of, point_runners
from tests.selection import named

SPACE = BlockedConv2dSpace()
AVX512 = MACHINES["avx512"]
WIDE = (2, 2, 2, 2)
OPS = {
    "one 5x5": (Conv2d(1, 32, 9, 37, 1, (5, 5), padding=WIDE, epilogue=("bias",)), "+2,2,2,2", ""),
    "three 3x3": (
        Conv2d(2, 20, 7, 11, 3, (3, 3), padding=PAD, epilogue=("bias", "sigmoid")),
        *("+1,1,1,1", ""),
    ),
    "four strided": (
        Conv2d(1, 17, 9, 13, 4, (3, 2), (2, 3), (1, 0, 1, 1), epilogue=("relu",)),
        *("+1,0,1,1", ""),
    ),
    "two dilated": (
        Conv2d(1, 16, 9, 9, 2, (3, 3), (1, 1), WIDE, (2, 2), epilogue=("bias", "residual")),
        *("+2,2,2,2", "+1,0,2,1"),
    ),
    "volume": (
        Conv3d(6, 20, 5, 9, 2, (3, 3), padding=PAD, epilogue=("bias",), slices=3, taps=3, before=1, after=1),
        *("+1,1,1,1", ""),
    ),
    "one pixel": (Conv2d(1, 5, 1, 1, 1, (1, 1), epilogue=("bias", "residual", "relu")), "", ""),
    "flat": (Conv2d(2, 40, 6, 15, 4, (1, 1), epilogue=("residual", "gate", "bias")), "", ""),
}


@pytest.mark.parametrize(
    "name", named(list(OPS), {"one 5x5", "three 3x3", "two dilated", "one pixel", "flat"})
)
@pytest.mark.parametrize("machine", SWEPT)
def test_the_kernel_computes_the_convolution(machine, name):
    op, x, halo = OPS[name]
    op = on(machine, op, x, halo, halo)
    check_points(SPACE, op, points(op, machine), machine)


def points(op, machine):
    """Points with the method, of the first and last choices of the other knobs."""
    assert FEW in methods_of(op, machine)
    knobs = {knob.name: knob.choices for knob in SPACE.knobs(op, machine)}
    return [
        {"method": FEW, "tile": knobs["tile"][at], "blocks": knobs["blocks"][at], "groups": 1}
        for at in (0, -1)
    ]


def test_few_filters_are_the_default_where_lanes_of_filters_would_be_empty():
    def method(filters, kernel=(3, 3)):
        padding = tuple(extent // 2 for extent in (*kernel, *kernel))
        op = Conv2d(1, 64, 128, 160, filters, kernel, padding=padding, epilogue=("bias",))
        return SPACE.default(on(AVX512, op, "+" + ",".join(map(str, padding))), AVX512)["method"]

    assert method(1) == method(3) == method(1, (5, 5)) == method(3, (9, 9)) == method(2, (1, 1)) == FEW
    assert method(16) == method(16, (5, 5)) == "winograd4" and method(16, (1, 1)) == "direct"


def test_what_the_kernel_does_not_compute():
    op = on(AVX512, Conv2d(1, 32, 8, 8, 1, (3, 3), padding=PAD), "+1,1,1,1")
    assert fits_few(op, AVX512)
    assert not fits_few(dataclasses.replace(op, filters=MOST_FILTERS + 1), AVX512)
    assert not fits_few(dataclasses.replace(op, groups=2, filters=2), AVX512)
    assert not fits_few(dataclasses.replace(op, x_layout="NCHW"), AVX512)


def test_weights_lie_by_tap_block_and_filter():
    op = on(AVX512, Conv2d(1, 20, 12, 40, 3, (3, 3), padding=PAD), "+1,1,1,1")
    w = np.random.default_rng(0).standard_normal((3, 20, 3, 3)).astype(np.float32)
    packed = pack_few(op, w, 16).reshape(9, 2, 3, 16)
    np.testing.assert_array_equal(packed[5, 1, 2, :4], w[2, 16:, 1, 2])
    assert not packed[:, 1, :, 4:].any()


def test_nan_spreads_no_further_than_the_window_and_not_to_other_filters():
    machine = MACHINES["avx2"]
    op = on(machine, Conv2d(1, 8, 9, 10, 2, (3, 3), padding=PAD, epilogue=("relu",)), "+1,1,1,1")
    (run,) = point_runners(SPACE, op, points(op, machine)[:1], machine)
    x, w = sample_inputs(op)
    x[0, 0, 5, 10] = np.nan
    w[1] = 0.0
    nans = np.isnan(run(x, w))
    expected = np.zeros_like(nans)
    expected[:, :, 3:6, 8:10, :2] = True  # zero times NaN is NaN; lanes without a filter have none
    np.testing.assert_array_equal(nans, expected)


def test_no_heap_for_the_sums():
    op = on(AVX512, Conv2d(1, 32, 10, 40, 3, (3, 3), padding=PAD, epilogue=("bias", "relu")), "+1,1,1,1")
    assert "TVMBackendAllocWorkspace" not in llvm_of(SPACE.emit(op, points(op, AVX512)[0], AVX512))
