"""Differences and comparisons of floats: computed as written, NaN and rounding included."""

import numpy as np
import pytest
from tvm.script import from_source

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import te, tirx, tvm
from hetero_tvm.schedules.cpu import generic
from tests.schedules.cpu.running import MACHINES, TARGET

CASES = {
    "(x + y) - y": (lambda total, x, y: total - y, 1),
    "y - (x + y)": (lambda total, x, y: y - total, -1),
}


def difference(compute, dtype):
    """The kernel of a difference of a sum."""
    x, y = (te.placeholder((3,), dtype, name) for name in "xy")
    total = te.compute((3,), lambda i: x[i] + y[i], "total")
    result = te.compute((3,), lambda i: compute(total[i], x[i], y[i]), "result")
    return te.create_prim_func([x, y, result])


def comparison(one, other, made, dtype):
    """The kernel of what is made of two comparisons."""
    x, y = (te.placeholder((8,), dtype, name) for name in "xy")
    first = te.compute((8,), lambda i: one(x[i], y[i]), "first")
    second = te.compute((8,), lambda i: other(x[i], y[i]), "second")
    result = te.compute((8,), lambda i: tirx.Cast("int32", made(first[i], second[i])), "result")
    return te.create_prim_func([x, y, result])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("compute, small", CASES.values(), ids=CASES)
def test_nothing_is_cancelled(compute, small, dtype):
    """TVM takes such a difference for one of its operands once the sum is inlined."""
    function = generic.schedule(difference(compute, dtype), MACHINES["avx2"])
    run = compile_kernels(function, TARGET).jit()["main"]
    large = 1e8 if dtype == "float32" else 1e18  # 1 disappears beside it
    arrays = [np.array(values, dtype) for values in ([np.inf, 1.0, 1.0], [np.inf, large, 2.0], [0.0] * 3)]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    run(*tensors)
    np.testing.assert_array_equal(tensors[2].numpy(), np.array([np.nan, 0.0, small], dtype))


def equal(x, y):
    return x == y if isinstance(x, np.ndarray) else tirx.EQ(x, y)


FLOATS = np.array([1, np.nan, 2, np.inf, -np.inf, np.nan, 3, -0.0])
OTHERS = np.array([2, 1, np.nan, np.inf, np.nan, np.nan, 3, 0.0])
# Two comparisons, and what is made of them.
COMPARISONS = {
    "not less": (lambda x, y: x < y, lambda x, y: x < y, lambda a, b: tirx.Not(a), lambda a, b: ~a),
    "not less or equal": (
        lambda x, y: x <= y,
        lambda x, y: x <= y,
        lambda a, b: tirx.Not(a),
        lambda a, b: ~a,
    ),
    "unequal": (equal, equal, lambda a, b: tirx.Not(a), lambda a, b: ~a),
    "ordered": (lambda x, y: x < y, lambda x, y: y <= x, tirx.Or, np.logical_or),
    "neither": (
        lambda x, y: x < y,
        lambda x, y: x <= y,
        lambda a, b: tirx.Not(tirx.And(a, b)),
        lambda a, b: ~(a & b),
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("one", "other", "made", "expected"), COMPARISONS.values(), ids=COMPARISONS)
def test_nan_is_neither_less_nor_greater(one, other, made, expected, dtype):
    function = generic.schedule(comparison(one, other, made, dtype), MACHINES["avx2"])
    arrays = [FLOATS.astype(dtype), OTHERS.astype(dtype)]
    tensors = [tvm.runtime.tensor(array) for array in (*arrays, np.zeros(8, "int32"))]
    compile_kernels(function, TARGET).jit()["main"](*tensors)
    np.testing.assert_array_equal(tensors[2].numpy(), expected(one(*arrays), other(*arrays)))


# What a kernel makes of x == x; te.compute would fold the comparison alone.
BESIDE_ITSELF = {
    "unequal": ("T.Cast('float32', not same[i])", lambda x: np.isnan(x)),
    "NaN made 0": ("T.Select(same[i], x[i], T.float32(0))", lambda x: np.where(np.isnan(x), 0, x)),
    "and another": ("T.Cast('float32', same[i] and T.float32(1) < x[i])", lambda x: x > 1),
}
KERNEL = """
@T.prim_func(s_tir=True)
def main(x: T.Buffer((8,), "float32"), result: T.Buffer((8,), "float32")):
    same = T.sblock_alloc_buffer((8,), "bool")
    for n in range(8):
        with T.sblock("same"):
            i = T.axis.spatial(8, n)
            same[i] = x[i] == x[i]
    for n in range(8):
        with T.sblock("result"):
            i = T.axis.spatial(8, n)
            result[i] = {}
"""


@pytest.mark.parametrize(("made", "expected"), BESIDE_ITSELF.values(), ids=BESIDE_ITSELF)
def test_nan_is_not_equal_to_itself(made, expected):
    """TVM takes ``x == x`` for true wherever it is a part of something."""
    function = generic.schedule(from_source(KERNEL.format(made)), MACHINES["avx2"])
    values = FLOATS.astype("float32")
    tensors = [tvm.runtime.tensor(array) for array in (values, np.full(8, 9, "float32"))]
    compile_kernels(function, TARGET).jit()["main"](*tensors)
    np.testing.assert_array_equal(tensors[1].numpy(), expected(values).astype("float32"))
