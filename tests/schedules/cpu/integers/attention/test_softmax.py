"""Softmax into bytes, of bytes and floats, beside float64: a step of rounding apart at most, and rarely."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.ops.integers.softmax import QuantSoftmax
from hetero_tvm.schedules.cpu.integers.attention.softmax import QuantSoftmaxSpace
from tests.schedules.cpu.integers.test_dynamic_matmul import WAYS
from tests.schedules.cpu.running import TARGET

SPACE = QuantSoftmaxSpace()


def run(op, x, here, point=None):
    function = SPACE.emit(op, point or SPACE.default(op, here), here).with_attr("global_symbol", "f")
    library = compile_kernels(tvm.IRModule({"f": function}), TARGET).jit()
    y = tvm.runtime.tensor(np.full(op.shape, 7).astype(op.out))
    library["f"](tvm.runtime.tensor(x), y)
    return y.numpy()


@pytest.mark.parametrize("here", WAYS)
@pytest.mark.parametrize(
    "op",
    [
        QuantSoftmax((2, 5), 67, "uint8", 0.11, "uint8", 1 / 255, 0),
        QuantSoftmax((9,), 16, "int8", 0.02, "int8", 1 / 127, -128),
        QuantSoftmax((4,), 150, "float32", 1.0, "uint8", 0.002, 3),
        QuantSoftmax((3,), 1, "uint8", 0.5, "uint8", 1 / 255, 0),
    ],
    ids=lambda op: op.label,
)
def test_values(op, here):
    random = np.random.default_rng(0)
    if op.x_dtype == "float32":
        x = 3 * random.standard_normal(op.shape).astype(np.float32)
    else:
        limits = np.iinfo(op.x_dtype)
        x = random.integers(limits.min, limits.max + 1, op.shape).astype(op.x_dtype)
    for point in (SPACE.default(op, here), {"chunks": min(op.rows, 2)}):
        far = np.abs(run(op, x, here, point).astype(int) - op.reference(x).astype(int))
        # A share that lies between two steps may be rounded to either.
        assert far.max() <= 1 and (far > 0).mean() < 0.01


def test_a_hidden_row_is_within_its_type():
    """Scores of minus infinity hide keys; a row of them alone has no softmax."""
    op = QuantSoftmax((2,), 20, "float32", 1.0, "uint8", 1 / 255, 0)
    x = np.zeros((2, 20), np.float32)
    x[0, 5:], x[1] = -np.inf, -np.inf
    here = WAYS[0].values[0]
    y = run(op, x, here)
    np.testing.assert_array_equal(y[0], [51] * 5 + [0] * 15)
