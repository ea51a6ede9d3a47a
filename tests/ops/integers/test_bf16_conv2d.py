"""The contract of convolutions of bfloat16: its reference, and its unscheduled kernel."""

import ml_dtypes
import numpy as np

from hetero_tvm.ops.base import from_json
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.integers.bf16_conv2d import Bf16Conv2d
from tests.ops.helpers import run_workload

PLAIN = Conv2d(2, 5, 7, 6, 4, (3, 3), (2, 1), (1, 1, 1, 1), epilogue=("bias", "residual", "relu"))


def test_reference_and_workload():
    op = Bf16Conv2d.of(PLAIN)
    assert op.plain_form == PLAIN and from_json(op.to_json()) == op
    assert op.label == "bf16_" + PLAIN.label and op.inputs[1].dtype == "bfloat16"
    rng = np.random.default_rng(2)
    x, w, *extra = (rng.standard_normal(o.shape, dtype=np.float32) for o in op.inputs)
    half = w.astype(ml_dtypes.bfloat16)
    given = op.reference(x.astype(np.float64), half, *extra)
    rounded = [a.astype(ml_dtypes.bfloat16).astype(np.float64) for a in (x, w)]
    np.testing.assert_array_equal(given, PLAIN.reference(*rounded, *extra))
    assert np.abs(given - PLAIN.reference(x.astype(np.float64), w, *extra)).max() > 1e-3
    (made,) = run_workload(op, [x, half, *extra])
    # TVM's lowering leaves out casts of X there and back; sums of 45 products of about 1 in float32.
    np.testing.assert_allclose(made, PLAIN.reference(x.astype(np.float64), rounded[1], *extra), atol=1e-5)
