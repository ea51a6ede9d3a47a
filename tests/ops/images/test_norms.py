"""Norms of images in blocks: those of plain images between two layouts."""

import numpy as np
import pytest

from hetero_tvm.ops.images.norms import BlockedGroupNorm, BlockedNormalization
from hetero_tvm.ops.layout import Layout
from tests.ops.helpers import check

LAYOUTS = "NCHW4c+1,0,1,2", "NCHW4c+0,1,0,0"


@pytest.mark.parametrize(
    ("op", "label"),
    [
        (BlockedGroupNorm(2, 6, 3, 5, *LAYOUTS, 3, 1e-3, "silu"), "blocked_group_norm_2x6x3x5_g3_silu"),
        (BlockedNormalization(2, 6, 3, 5, *LAYOUTS, 1e-3), "blocked_layer_norm_2x6x15"),
        (BlockedNormalization(1, 5, 2, 2, *LAYOUTS, 1e-3, False, False), "blocked_rms_norm_1x5x4"),
    ],
    ids=lambda value: getattr(value, "label", None),
)
def test_the_plain_form_between_two_layouts(op, label):
    def formula(x, *vectors):
        plain = Layout.parse(op.x_layout).unpack(x, op.channels)
        return Layout.parse(op.y_layout).pack(op.plain_form.reference(plain, *vectors))

    check(op, formula)
    assert op.label == label and op.flops == op.plain_form.flops


def test_zeros_around_the_image_are_not_counted():
    op = BlockedGroupNorm(1, 3, 2, 2, "NCHW4c+1,1,1,1", "NCHW4c", 1, 0.0)
    x = Layout.parse(op.x_layout).pack(np.arange(12.0).reshape(1, 3, 2, 2))
    y = op.reference(x, np.ones(3), np.zeros(3))
    assert abs(y.sum()) < 1e-12 and not y[..., 3].any()
