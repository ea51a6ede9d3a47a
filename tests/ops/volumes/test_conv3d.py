"""Convolutions of volumes as PyTorch computes them; the contract as text."""

import numpy as np
import pytest
import torch

from hetero_tvm.ops.base import from_json
from hetero_tvm.ops.volumes.conv3d import Conv3d
from tests.ops.helpers import run_workload, sample_inputs

PLANE = {"padding": (1, 1, 1, 1), "strides": (2, 1)}
FORMS = {
    "windows": Conv3d(6, 4, 5, 6, 3, (3, 3), slices=3, taps=3, before=1, after=1, **PLANE),
    "strided": Conv3d(2, 4, 5, 6, 3, (3, 3), slices=5, taps=2, step=3, **PLANE),
    "grouped": Conv3d(8, 4, 5, 6, 6, (1, 1), groups=2, slices=5, taps=2),
    "depthwise": Conv3d(3, 4, 5, 6, 4, (3, 3), groups=4, slices=5, taps=3, **PLANE),
}


@pytest.mark.parametrize("op", FORMS.values(), ids=FORMS.keys())
def test_the_reference_is_that_of_pytorch(op):
    x, w = sample_inputs(op)
    volumes = op.batch // op.out_slices
    volume = x.reshape(volumes, op.slices, *x.shape[1:]).transpose(0, 2, 1, 3, 4)
    filters = w.reshape(op.filters, op.taps, -1, *op.kernel).transpose(0, 2, 1, 3, 4)
    volume = np.pad(volume, ((0, 0), (0, 0), (op.before, op.after), (0, 0), (0, 0)))
    y = torch.nn.functional.conv3d(
        torch.from_numpy(volume.astype("float64")),
        torch.from_numpy(np.ascontiguousarray(filters).astype("float64")),
        stride=(op.step, *op.strides),
        padding=(0, *op.padding[:2]),
        groups=op.groups,
    ).numpy()
    wanted = y.transpose(0, 2, 1, 3, 4).reshape(op.out_image)
    np.testing.assert_allclose(run_workload(op, [x, w])[0], wanted, rtol=1e-5, atol=1e-5)
    result = op.reference(x.astype("float64"), w.astype("float64"))
    np.testing.assert_allclose(result, wanted, rtol=1e-12, atol=1e-12)
    assert op.flops == 2 * wanted.size * op.per_filter * op.kernel[0] * op.kernel[1]


def test_text_and_label():
    op = FORMS["windows"]
    assert from_json(op.to_json()) == op
    assert op.label == "conv3d_3of3x4x5x6_3_k3x3s2"
    assert FORMS["depthwise"].label == "depthwise3d_4x5x6_4_k3x3s2"
