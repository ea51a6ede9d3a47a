"""The contract of attention of bfloat16: its reference, and its unscheduled kernel."""

import ml_dtypes
import numpy as np

from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.base import from_json
from hetero_tvm.ops.integers.bf16_attention import Bf16Attention
from tests.ops.helpers import run_workload

PLAIN = Attention(2, 4, 7, 9, 6, 0.4, 2, mask=(2, 1, 1, 9), value_dim=5)


def test_reference_and_workload():
    op = Bf16Attention.of(PLAIN)
    assert op.plain_form == PLAIN and from_json(op.to_json()) == op
    assert op.label == "bf16_" + PLAIN.label and op.kind != PLAIN.kind
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal(o.shape, dtype=np.float32) for o in op.inputs]
    given = op.reference(*(a.astype(np.float64) for a in arrays))
    *qkv, mask = arrays
    rounded = [a.astype(ml_dtypes.bfloat16).astype(np.float64) for a in qkv]
    of_rounded = PLAIN.reference(*rounded, mask.astype(np.float64))
    largest = np.abs(arrays[2]).max()
    assert 1e-4 < np.abs(given - of_rounded).max() < largest / 256  # the weights are rounded too
    (made,) = run_workload(op, arrays)
    # TVM's lowering may leave out casts there and back: no more than all of them in float32.
    plain = PLAIN.reference(*(a.astype(np.float64) for a in arrays))
    assert np.abs(made - given).max() <= np.abs(plain - given).max() + 1e-5
