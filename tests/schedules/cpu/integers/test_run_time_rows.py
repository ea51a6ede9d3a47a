"""Products of integers whose rows are counted at run time: vectors and tiles, every tail, no rows."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.ops.integers.dynamic_matmul import DynamicGatedMatmul, DynamicMatmul
from hetero_tvm.ops.integers.quantized import QuantMatmul
from hetero_tvm.ops.integers.stored_matmul import StoredMatmul
from hetero_tvm.schedules.cpu.integers.bf16_matmul import Bf16MatmulSpace
from hetero_tvm.schedules.cpu.integers.dynamic_matmul import DynamicGatedMatmulSpace, DynamicMatmulSpace
from hetero_tvm.schedules.cpu.integers.product_kernel import MATRICES, VECTORS
from hetero_tvm.schedules.cpu.integers.quant_matmul import QuantMatmulSpace
from hetero_tvm.schedules.cpu.symbolic import kernels
from hetero_tvm.schedules.symbolic import Witnesses
from tests.schedules.cpu.integers.test_dynamic_matmul import WAYS
from tests.schedules.cpu.integers.test_tiles import BUILT_FOR, drawn, needs_halves, needs_tiles
from tests.schedules.cpu.integers.test_tiles import MATRICES as TILED
from tests.selection import thorough

SIZES = ({"b": 3, "s": 64}, {"b": 2, "s": 64}, {"b": 3, "s": 51}, {"b": 2, "s": 37})
ROWS = ((1, 1), (2, 7), (1, 16), (1, 17), (3, 11), (2, 48), (3, 101), (1, 0))
"""Single rows, tails of vectors and tiles, several blocks, none."""


def check(make, space, here, tolerance=0.0, **choices):
    witnesses = Witnesses(tuple(make(**sizes) for sizes in SIZES), SIZES)
    point = {**space.default(witnesses.largest, here), **choices}
    function = kernels.emit(witnesses, space, point, here).with_attr("global_symbol", "main")
    packers = space.pack(witnesses.largest, point, here)
    run = compile_kernels(tvm.IRModule({"main": function}), BUILT_FOR).jit()["main"]
    for b, s in ROWS:
        op = make(b, s)
        arrays = drawn(op, seed=b + s)
        given = [packers[n](array) if n in packers else array for n, array in enumerate(arrays)]
        result = tvm.runtime.tensor(np.full(op.output.shape, 7, op.output.dtype))
        run(*(tvm.runtime.tensor(np.ascontiguousarray(array)) for array in given), result)
        wanted = op.reference(*arrays)
        largest = np.abs(wanted).max(initial=1.0) if tolerance else 0
        np.testing.assert_allclose(
            result.numpy(), wanted, rtol=0, atol=tolerance * largest, err_msg=f"{b}x{s}"
        )


@pytest.mark.thorough
@pytest.mark.parametrize("here", WAYS)
def test_integers_are_exact(here):
    columns = 3 * here.lanes + 5
    check(lambda b, s: QuantMatmul("uint8", "int32", lead=(b, s), n=columns, k=19), QuantMatmulSpace(), here)


@pytest.mark.thorough
@pytest.mark.parametrize("here", WAYS)
def test_rows_are_quantised_alone(here):
    def make(b, s):
        return DynamicMatmul((b, s), 2 * here.lanes + 3, 37, ("bias", "residual", "silu"))

    check(make, DynamicMatmulSpace(), here, tolerance=5e-6)


@pytest.mark.thorough
def test_blocks_of_rows_have_a_bounded_size():
    """Rows of 6,000 values fill a quarter of this L2 with a few."""
    here = WAYS[0].values[0]
    check(lambda b, s: QuantMatmul("int8", "int32", lead=(b, s), n=8, k=6000), QuantMatmulSpace(), here)


@pytest.mark.thorough
def test_gated_products():
    here = WAYS[0].values[0]

    def make(b, s):
        return DynamicGatedMatmul((b, s), 2 * here.lanes + 3, 21, "silu", True)

    check(make, DynamicGatedMatmulSpace(), here, tolerance=5e-6)


@needs_tiles
@pytest.mark.parametrize("n", [*thorough([70]), 8])
def test_tiles_store_the_rows_that_are_left(n):
    def make(b, s):
        return QuantMatmul("uint8", "uint8", 3, lead=(b, s), n=n, k=130)

    check(make, QuantMatmulSpace(), TILED, unit=MATRICES)


@needs_halves
@pytest.mark.parametrize("unit", [VECTORS, pytest.param(MATRICES, marks=needs_tiles)])
def test_bfloat16(unit):
    def make(b, s):
        return StoredMatmul((b, s), 40, 33, form="bf16", epilogue=("bias",), x_bits=16)

    check(make, Bf16MatmulSpace(), TILED, tolerance=5e-3, unit=unit)
