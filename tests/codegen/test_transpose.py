"""Transposition of a block in registers, as LLVM IR that a kernel imports."""

from __future__ import annotations

import numpy as np
import pytest

from hetero_tvm.codegen import transpose
from hetero_tvm.schedules.emit import Kernel, int32
from tests.schedules.cpu.running import UNWRITTEN, compiled, llvm_of


@pytest.mark.parametrize("lanes", (4, 8, 16))
def test_transposes_a_block_inside_a_matrix(lanes):
    """Only the block is written, at any strides and offsets."""
    source = np.random.default_rng(0).standard_normal((lanes + 3, lanes + 5)).astype("float32")
    shape = (lanes + 2, lanes + 1)
    k = Kernel()
    with k:
        x, y = k.argument("x", source.shape), k.argument("y", shape)
        with k.imported(transpose.ir(lanes)):
            strides = int32(shape[1]), int32(source.shape[1])
            k.call(
                transpose.name_of(lanes), k.address(y, [1, 1]), strides[0], k.address(x, [2, 3]), strides[1]
            )
    (run,) = compiled([(k.function, shape)])
    result = run(source)
    block = (slice(1, 1 + lanes), slice(1, 1 + lanes))
    np.testing.assert_array_equal(result[block], source[2 : 2 + lanes, 3 : 3 + lanes].T)
    result[block] = UNWRITTEN
    np.testing.assert_array_equal(result, UNWRITTEN)


def test_the_function_is_inlined():
    k = Kernel()
    with k:
        x, y = k.argument("x", (8, 8)), k.argument("y", (8, 8))
        with k.imported(transpose.ir(8)):
            k.call(transpose.name_of(8), k.address(y, [0, 0]), int32(8), k.address(x, [0, 0]), int32(8))
    ir = llvm_of(k.function)
    assert "shufflevector <8 x float>" in ir and f"call i32 @{transpose.name_of(8)}" not in ir
