"""Sums of many terms, or of a number that is known at run time, in kernels that are scheduled."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import te, topi, tvm
from hetero_tvm.schedules.cpu import generic
from hetero_tvm.schedules.cpu.symbolic import kernels
from tests.schedules.cpu.running import MACHINES, TARGET
from tests.selection import thorough

AVX2 = MACHINES["avx2"]
MANY = 300_000
OPEN = te.var("n", "int64")


def reduction(operation, shape, axis):
    x = te.placeholder(shape, "float32", name="x")
    return te.create_prim_func([x, operation(x, axis)])


def matmul(m, k, n):
    a, b = te.placeholder((m, k), "float32", name="a"), te.placeholder((k, n), "float32", name="b")
    return te.create_prim_func([a, b, topi.matmul(a, b)])


def softmax(shape):
    x = te.placeholder(shape, "float32", name="x")
    return te.create_prim_func([x, topi.nn.softmax(x, 1)])


def run(function, *arrays, shape):
    y = tvm.runtime.tensor(np.zeros(shape, "float32"))
    compile_kernels(function, TARGET).jit()["main"](*map(tvm.runtime.tensor, arrays), y)
    return y.numpy()


def values(*shape):
    return 1000 + np.random.default_rng(0).standard_normal(shape).astype("float32")


def rows(x):
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


SHAPES = [(1, (2, OPEN)), (0, (OPEN, 3)), (1, (2, OPEN, 8)), (None, (2, OPEN))]


@pytest.mark.parametrize("axis, shape", [SHAPES[0], *thorough(SHAPES[1:3]), *SHAPES[3:]])
def test_sums_of_a_number_of_terms_that_comes_at_run_time(axis, shape):
    x = values(*(MANY if n is OPEN else n for n in shape))
    wanted = x.astype("float64").sum(axis)
    kernel = kernels.schedule(reduction(topi.sum, shape, axis), MANY, AVX2)
    # The result alone is rounded; one accumulator of float32 is 1e-3 off.
    np.testing.assert_allclose(run(kernel, x, shape=wanted.shape), wanted, rtol=2e-7)


def test_products_and_softmax_of_a_number_of_terms_that_comes_at_run_time():
    x = 1 + np.random.default_rng(1).uniform(-1e-3, 1e-3, (2, MANY)).astype("float32")
    kernel = kernels.schedule(reduction(topi.prod, (2, OPEN), 1), MANY, AVX2)
    np.testing.assert_allclose(run(kernel, x, shape=2), x.astype("float64").prod(1), rtol=2e-7)
    x = np.random.default_rng(2).standard_normal((2, MANY)).astype("float32")
    kernel = kernels.schedule(softmax((2, OPEN)), MANY, AVX2)
    # An exponential in float32 has an error of some ulp; the sum of so many must not add to it.
    np.testing.assert_allclose(run(kernel, x, shape=x.shape), rows(x.astype("float64")), rtol=1e-6)


def test_maxima_and_other_types_stay_as_they_are():
    x = values(2, 1000)
    kernel = kernels.schedule(reduction(topi.max, (2, OPEN), 1), MANY, AVX2)
    np.testing.assert_array_equal(run(kernel, x, shape=2), x.max(1))
    assert "float64" not in kernel.script()


@pytest.mark.parametrize("m, n", [(4, 16), (3, 5)])
def test_products_of_matrices_that_share_a_long_axis(m, n):
    a, b = values(m, MANY), values(MANY, n)
    wanted = a.astype("float64") @ b
    kernel = generic.schedule(matmul(m, MANY, n), AVX2)
    # As ONNX Runtime, whose blocks are of some hundred terms.
    np.testing.assert_allclose(run(kernel, a, b, shape=wanted.shape), wanted, rtol=1e-6)


def test_a_long_product_does_not_lean_to_one_side():
    x = 1 + np.random.default_rng(1).uniform(-1e-3, 1e-3, (2, MANY)).astype("float32")
    kernel = generic.schedule(reduction(topi.prod, (2, MANY), 1), AVX2)
    np.testing.assert_allclose(run(kernel, x, shape=2), x.astype("float64").prod(1), rtol=1e-6)
