"""Convolutions that read slices where they lie, and the reasons of those that do not."""

import pytest

from hetero_tvm.host.tvm import relax
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.volumes.conv3d import Conv3d
from hetero_tvm.ops.volumes.slice_windows import SliceWindows
from hetero_tvm.relax_passes.fusions.convolutions.slices import ReadSlices
from tests.relax_passes.graphs import constant, contracts, fuse, module, weights
from tests.relax_passes.rewrite import Rewrite, kernel

CONV = Conv2d(4, 12, 5, 6, 7, (3, 3), epilogue=("bias", "relu"))
WINDOWS = SliceWindows(1, 4, 4, 5, 6, taps=3, before=1, after=1)
CONSTANTS = weights(7, 12, 3, 3), weights(7)


class TestReadSlices(Rewrite):
    rule = ReadSlices(lambda op: op.epilogue == (), lambda plain, op: plain == CONV and op.taps == 3)
    inputs = {"x": (4, 4, 5, 6)}

    def before(self, x):
        return kernel(CONV, kernel(WINDOWS, x), *map(constant, CONSTANTS))

    def expected(self, x):
        op = Conv3d(4, 4, 5, 6, 7, (3, 3), epilogue=CONV.epilogue, slices=4, taps=3, before=1, after=1)
        return kernel(op, x, *map(constant, CONSTANTS))


@pytest.mark.parametrize(
    "windows, taken, paid, reason",
    [
        (WINDOWS, False, True, "no kernel reads slices of this form"),
        (WINDOWS, True, False, "copies of the slices take less time than filters that fill no vector"),
        (SliceWindows(1, 6, 4, 5, 6, taps=3, dilation=2, before=1, after=1), True, True, "2 apart"),
    ],
)
def test_reasons(windows, taken, paid, reason):
    def body(emit, x):
        y = emit(kernel(windows, x))
        return emit(kernel(CONV, y, *map(relax.const, CONSTANTS)))

    made = module({"x": windows.inputs[0].shape}, body)
    after, _, report = fuse(made, ReadSlices(lambda op: taken, lambda plain, op: paid))
    assert contracts(after, "conv2d") and not contracts(after, "conv3d")
    assert [reason in miss["reason"] for miss in report.misses] == [True]
