"""Products of computed 8-bit tensors: views, zero points, every way out, every way to multiply."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.ops.integers.batch_matmul import QuantBatchMatmul
from hetero_tvm.schedules.cpu.integers.attention.products import QuantBatchMatmulSpace
from tests.schedules.cpu.integers.test_dynamic_matmul import WAYS
from tests.schedules.cpu.running import TARGET, covering

SPACE = QuantBatchMatmulSpace()


def heads(m, n, k, zeros=(128, 131), dtypes=("uint8", "uint8"), out="uint8", y_zero=120):
    """Scores of two texts and three heads: Q and K [2, rows, 3, k]."""
    return QuantBatchMatmul(
        (2, 3), m, n, k,
        (2, m, 3, k), (0, m * 3 * k, k, 3 * k, 1),
        (2, n, 3, k), (0, n * 3 * k, k, 1, 3 * k),
        (0, 1, 2, 3), *dtypes, *zeros, 0.01 / k**0.5, out, y_zero,
    )  # fmt: skip


def values(m, n, k, zeros=(0, 7), dtypes=("uint8", "int8"), out="int8", y_zero=-3):
    """Weighted sums of values: P [2, 3, m, k] and V [2, k, 3, n], the heads of a row beside each other."""
    return QuantBatchMatmul(
        (2, 3), m, n, k,
        (2, 3, m, k), (0, 3 * m * k, m * k, k, 1),
        (2, k, 3, n), (0, k * 3 * n, n, 3 * n, 1),
        (0, 2, 1, 3), *dtypes, *zeros, 0.001 / k**0.5, out, y_zero,
    )  # fmt: skip


def turned(m, n, k):
    """A and B read along strides: A [k, m], B every second value."""
    return QuantBatchMatmul(
        (), m, n, k, (k, m), (0, 1, m), (k, n, 2), (1, 2 * n, 2), (0, 1), "int8", "uint8", 5, 128, 0.01
    )


def check(op, points, here, extreme=False):
    random = np.random.default_rng(0)
    arrays = []
    for operand in op.inputs:
        limits = np.iinfo(operand.dtype)
        x = random.integers(limits.min, limits.max + 1, operand.shape)
        arrays.append(
            (np.where(x > x.mean(), limits.max, limits.min) if extreme else x).astype(operand.dtype)
        )
    wanted = op.reference(*arrays)
    for point in points:
        function = SPACE.emit(op, point, here).with_attr("global_symbol", "f")
        library = compile_kernels(tvm.IRModule({"f": function}), TARGET).jit()
        result = tvm.runtime.tensor(np.full(op.output.shape, 7).astype(op.out))
        library["f"](*(tvm.runtime.tensor(a) for a in arrays), result)
        if op.out == "float32":
            np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-6)
        else:
            np.testing.assert_array_equal(result.numpy(), wanted, err_msg=f"{op} at {point}")


CASES = [
    heads(37, 41, 20),
    heads(5, 70, 64, (3, 128), ("int8", "uint8"), "float32"),
    values(35, 24, 41),
    values(16, 64, 150, (0, 128), ("uint8", "uint8"), "uint8", 0),
    heads(1, 33, 8, (0, 0), ("int8", "int8"), "int8"),
    turned(18, 21, 13),
]


@pytest.mark.parametrize("here", WAYS)
@pytest.mark.parametrize("op", CASES, ids=lambda op: op.label)
def test_defaults_compute_the_product(op, here):
    if SPACE.refuses(op, here) is None:
        check(op, [SPACE.default(op, here)], here)


@pytest.mark.parametrize("here", WAYS)
def test_ends_of_the_range_do_not_saturate(here):
    op = heads(9, 17, 64, (0, 255), out="float32")
    if SPACE.refuses(op, here) is None:
        check(op, [SPACE.default(op, here)], here, extreme=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("here", WAYS)
@pytest.mark.parametrize("op", CASES[:4], ids=lambda op: op.label)
def test_every_choice_computes_the_product(op, here):
    if SPACE.refuses(op, here) is None:
        check(op, covering(SPACE, op, here, set()), here)
