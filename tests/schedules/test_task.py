"""Tasks: their keys, which are their identity, and their names."""

from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.task import Task, symbol, task_key

OPS = [
    Matmul((2, 3), 5, 4, ("bias", "gelu_erf", "residual")),
    Matmul((2, 3), 5, 4, ("residual", "gelu_erf", "bias")),
    Matmul((6,), 5, 4),
    BatchMatmul((1,), 6, 5, 4, (1, 6, 4), (0, 24, 4, 1), (1, 4, 5), (0, 20, 5, 1), (0, 1, 2)),
    Normalization((2, 3), 9, 1e-5),
    Normalization((2, 3), 9, 1e-6),
    Softmax((2, 3), 9),
]


def test_keys_tell_operators_apart_and_are_stable():
    keys = [task_key(op.workload()) for op in OPS]
    assert len(set(keys)) == len(OPS)
    assert keys == [task_key(op.workload()) for op in OPS]


def test_a_key_does_not_depend_on_the_name_of_the_function():
    workload = Matmul((4,), 8, 3).workload()
    key = task_key(workload)
    assert int(key, 16) > 0
    assert task_key(workload.with_attr("global_symbol", "another")) == key


def test_a_name_becomes_a_c_identifier():
    assert symbol("matmul_4x3x8/bias (2)") == "matmul_4x3x8_bias__2_"


def test_calls_are_counted():
    op = Matmul((4,), 8, 3)
    calls = (("/layer.0/fc",), ("/layer.1/fc", "/layer.1/gelu"))
    assert Task("key", op.label, op, op.workload(), None, calls, op.flops, op.nbytes).count == 2
