import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import Layout
from tests.ops.helpers import check, sample_inputs
from tests.ops.test_activations import EXACT


def formula(op):
    """PyTorch's convolution of plain images, then the epilogue step by step."""

    def convolve(x, w, *extra):
        x = Layout.parse(op.x_layout).unpack(x, op.channels)
        top, left, bottom, right = op.padding
        x = functional.pad(torch.from_numpy(np.ascontiguousarray(x)), (left, right, top, bottom))
        y = functional.conv2d(
            x, torch.from_numpy(w), stride=op.strides, dilation=op.dilation, groups=op.groups
        ).numpy()
        rest = list(extra)
        for step in op.epilogue:
            if step == "bias":
                y = y + rest.pop(0).reshape(1, -1, 1, 1)
            elif step == "residual":
                y = y + Layout.parse(op.residual_layout).unpack(rest.pop(0), op.filters)
            elif step == "gate":
                y = y * Layout.parse(op.residual_layout).unpack(rest.pop(0), op.filters)
            else:
                y = EXACT[step](y)
        return Layout.parse(op.y_layout).pack(np.ascontiguousarray(y))

    return convolve


FORMS = {
    "one of each": Conv2d(1, 1, 1, 1, 1, (1, 1)),
    "odd everything": Conv2d(
        2, 3, 7, 6, 4, (3, 2), (2, 1), (1, 0, 0, 2), (1, 2), epilogue=("bias", "relu", "residual")
    ),
    "depthwise": Conv2d(1, 4, 5, 5, 4, (3, 3), padding=(1, 1, 1, 1), groups=4, epilogue=("relu6",)),
    "groups": Conv2d(1, 4, 5, 5, 6, (3, 3), groups=2),
    "computed weight": Conv2d(1, 4, 5, 5, 6, (3, 3), constant_weight=False),
    "blocks with a halo": Conv2d(
        *(1, 6, 4, 5, 5, (3, 3)),
        padding=(1, 1, 1, 1),
        epilogue=("residual", "bias", "gate", "relu"),
        x_layout="NCHW4c+1,1,1,1",
        y_layout="NCHW4c+0,1,1,0",
        residual_layout="NCHW4c",
    ),
}


@pytest.mark.parametrize("op", FORMS.values(), ids=FORMS.keys())
def test_against_pytorch(op):
    check(op, formula(op), tolerance=5e-6)


def test_half_precision():
    op = dataclasses.replace(FORMS["groups"], epilogue=("bias",), dtype="float16")
    assert [x.dtype for x in op.inputs] == ["float16", "float16", "float32"]
    check(op, formula(op), tolerance=5e-4)


def test_a_missing_value_reaches_the_windows_that_see_it_only():
    op = Conv2d(1, 1, 5, 5, 1, (3, 3))
    x, w = sample_inputs(op)
    x[0, 0, 0, 0] = np.nan
    check(op, formula(op), [x, w])
    assert np.isnan(op.reference(x, w)).sum() == 1


def test_extents_cost_and_label():
    op = FORMS["odd everything"]
    assert (op.out_height, op.out_width) == (3, 6) and op.out_image == (2, 4, 3, 6)
    assert FORMS["groups"].flops == 2 * 6 * 9 * 2 * 9
    assert FORMS["groups"].nbytes == 4 * (4 * 25 + 6 * 2 * 9 + 6 * 9)
    assert FORMS["depthwise"].depthwise and FORMS["depthwise"].label == "depthwise_4x5x5_4_k3x3s1_relu6"
    assert op.plain and not FORMS["blocks with a halo"].plain
