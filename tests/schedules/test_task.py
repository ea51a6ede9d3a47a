"""Task keys: the identity of a tuning task."""

from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.normalization import Normalize
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.task import task_key

OPS = [
    Matmul((2, 3), 5, 4, ("bias", "gelu_erf", "residual")),
    Matmul((2, 3), 5, 4, ("residual", "gelu_erf", "bias")),
    Matmul((6,), 5, 4),
    BatchMatmul((1,), 6, 5, 4, (1, 6, 4), (0, 24, 4, 1), (1, 4, 5), (0, 20, 5, 1), (0, 1, 2)),
    Normalize((2, 3), 9, 1e-5),
    Normalize((2, 3), 9, 1e-6),
    Softmax((2, 3), 9),
]


def test_keys_tell_operators_apart_and_are_stable():
    keys = [task_key(op.workload()) for op in OPS]
    assert len(set(keys)) == len(OPS)
    assert keys == [task_key(op.workload()) for op in OPS]
