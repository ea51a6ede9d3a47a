"""Functions of one byte."""

import numpy as np
import pytest

from hetero_tvm.ops.integers.byte_table import ByteTable
from tests.ops.helpers import run_workload


@pytest.mark.parametrize("y_dtype", ["int8", "uint8"])
@pytest.mark.parametrize("x_dtype", ["int8", "uint8"])
def test_each_byte_gives_its_entry(x_dtype, y_dtype):
    op = ByteTable((16, 16), x_dtype, y_dtype)
    x = np.arange(256, dtype=np.uint8).reshape(16, 16)
    table = np.random.default_rng(0).permutation(256).astype(np.uint8).view(y_dtype)
    arrays = [x.view(x_dtype), table]
    for found in (op.reference(*arrays), *run_workload(op, arrays)):
        np.testing.assert_array_equal(found, table.reshape(16, 16))


def test_cost_and_label():
    op = ByteTable((2, 3, 4), "int8", "uint8")
    assert op.size == 24 and op.nbytes == 48 + 256 and op.flops == 24
    assert op.label == "byte_table_2x3x4_int8_uint8"
