import numpy as np

from hetero_tvm.ops.blocked_group_norm import BlockedGroupNorm
from hetero_tvm.ops.layout import Layout
from tests.ops.helpers import check


def test_the_plain_form_between_two_layouts():
    op = BlockedGroupNorm(2, 6, 3, 5, 3, 1e-3, "silu", "NCHW4c+1,0,1,2", "NCHW4c+0,1,0,0")

    def formula(x, scale, shift):
        plain = Layout.parse(op.x_layout).unpack(x, 6)
        return Layout.parse(op.y_layout).pack(op.plain_form.reference(plain, scale, shift))

    check(op, formula)


def test_zeros_around_the_image_are_not_counted():
    op = BlockedGroupNorm(1, 3, 2, 2, 1, 0.0, "", "NCHW4c+1,1,1,1", "NCHW4c")
    x = Layout.parse(op.x_layout).pack(np.arange(12.0).reshape(1, 3, 2, 2))
    y = op.reference(x, np.ones(3), np.zeros(3))
    assert abs(y.sum()) < 1e-12 and not y[..., 3].any()
    assert op.label == "blocked_group_norm_1x3x2x2_g1" and op.flops == op.plain_form.flops
