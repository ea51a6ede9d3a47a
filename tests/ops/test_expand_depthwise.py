"""A 1x1 convolution and the depthwise one behind it: NumPy's formula, plain and on channel blocks."""

import numpy as np
import pytest

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.expand_depthwise import ExpandDepthwise
from tests.ops.helpers import run_workload, sample_inputs

OPS = [
    ExpandDepthwise(2, 5, 6, 7, 9, (3, 3), (2, 1), (1, 0, 1, 2), ("bias", "relu6"), ("bias", "silu")),
    ExpandDepthwise(1, 3, 4, 4, 8, (1, 2), (1, 1), (0, 0, 0, 1)),
    ExpandDepthwise(
        *(1, 10, 5, 5, 12, (3, 3), (1, 1), (1, 1, 1, 1), ("relu",), ("bias",)),
        x_layout="NCHW8c",
        y_layout="NCHW8c+1,1,1,1",
    ),
]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.label)
def test_the_workload_computes_the_formula(op):
    arrays = sample_inputs(op)
    (result,) = run_workload(op, arrays)
    exact = op.reference(*(array.astype("float64") for array in arrays))
    np.testing.assert_allclose(result, exact, rtol=1e-5, atol=1e-5)


def test_it_is_the_two_convolutions():
    expand = Conv2d(1, 5, 6, 7, 9, (1, 1), epilogue=("bias", "relu6"))
    depthwise = Conv2d(1, 9, 6, 7, 9, (3, 3), (2, 2), (1, 1, 1, 1), groups=9, epilogue=("bias",))
    op = ExpandDepthwise.of(expand, depthwise)
    assert (op.expand, op.depthwise) == (expand, depthwise)
    assert op.flops == expand.flops + depthwise.flops
    x, w, b, v, c = sample_inputs(op)
    np.testing.assert_array_equal(
        op.reference(x, w, b, v, c), depthwise.reference(expand.reference(x, w, b), v, c)
    )
