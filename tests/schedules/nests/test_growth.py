"""Chains whose every step reads the one before several times: written once, not copied."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import te, topi
from hetero_tvm.schedules.cpu import generic
from tests.schedules.cpu.running import MACHINES, compiled


def chain(x, steps):
    """Running maxima, as a search in steps of 1, 2, 4, ... places writes them."""
    for n in range(steps):
        before = topi.nn.pad(topi.strided_slice(x, [0, 0], [4, 96 - 2**n]), [0, 2**n], [0, 0], -9.0)
        x = topi.where(topi.greater_equal(x, before), x, before)
    return x


@pytest.mark.parametrize("steps", [1, 6])
def test_running_maxima_by_steps(steps):
    x = te.placeholder((4, 96), "float32")
    function = te.create_prim_func([x, chain(x, steps)])
    scheduled = generic.schedule(function, MACHINES["avx2"])
    assert len(str(scheduled)) < 60_000
    (run,) = compiled([(scheduled, (4, 96))])
    values = np.random.default_rng(0).standard_normal((4, 96)).astype("float32")
    expected = values.copy()
    for n in range(steps):
        expected[:, 2**n :] = np.maximum(expected[:, 2**n :], expected[:, : -(2**n)])
    np.testing.assert_array_equal(run(values), expected)


@pytest.mark.thorough
def test_powers_that_are_read_again_are_computed_once():
    """A sum of them that three places read, as zeta has it, was three times as many polynomials."""
    x, *bases = (te.placeholder((8,), "float32") for _ in range(4))
    total = topi.add(topi.add(topi.power(bases[0], x), topi.power(bases[1], x)), topi.power(bases[2], x))
    y = topi.where(topi.greater(total, x), topi.multiply(total, x), topi.subtract(total, x))
    scheduled = generic.schedule(te.create_prim_func([x, *bases, y]), MACHINES["avx2"])
    assert scheduled.script().count("T.pow(") == 3
    (run,) = compiled([(scheduled, (8,))])
    values = np.random.default_rng(0).uniform(0.5, 2.0, (4, 8)).astype("float32")
    summed = sum(base ** values[0] for base in values[1:])
    expected = np.where(summed > values[0], summed * values[0], summed - values[0])
    np.testing.assert_allclose(run(*values), expected, rtol=1e-5, atol=1e-6)  # powers in float32


def test_products_that_are_powers_of_two_are_inlined():
    x = te.placeholder((8,), "float32")
    square = topi.power(x, 2.0)
    y = topi.where(topi.greater(square, x), square, x)
    scheduled = generic.schedule(te.create_prim_func([x, y]), MACHINES["avx2"])
    assert scheduled.script().count("T.pow(") == 2


def test_functions_that_are_read_again_are_computed_once():
    x, y, z = (te.placeholder((8,), "float32") for _ in range(3))
    total = topi.add(topi.add(topi.log(x), topi.log(y)), topi.log(z))
    result = topi.where(topi.greater(total, x), topi.multiply(total, x), topi.subtract(total, x))
    scheduled = generic.schedule(te.create_prim_func([x, y, z, result]), MACHINES["avx2"])
    assert scheduled.script().count("T.log(") == 3


@pytest.mark.thorough
def test_sums_that_are_rounded_to_bytes_and_back():
    """A kernel of sixteen took TVM's simplifier a minute: it visits twice what becomes an integer."""
    first, *others = inputs = [te.placeholder((8,), "uint8") for _ in range(40)]

    def real(x):
        return topi.multiply(topi.cast(topi.subtract(topi.cast(x, "int32"), 128), "float32"), 0.5)

    total = first
    for other in others:
        steps = topi.round(topi.add(topi.multiply(topi.add(real(total), real(other)), 1.0), 128.0))
        total = topi.cast(topi.cast(topi.clip(steps, 0.0, 255.0), "int32"), "uint8")
    scheduled = generic.schedule(
        te.create_prim_func([*inputs, topi.cast(total, "float32")]), MACHINES["avx2"]
    )
    (run,) = compiled([(scheduled, (8,))])
    values = np.random.default_rng(0).integers(110, 146, (40, 8)).astype("uint8")
    expected = values[0]
    for value in values[1:]:
        summed = (expected.astype("float32") - 128) * 0.5 + (value.astype("float32") - 128) * 0.5
        expected = np.clip(np.round(summed + 128), 0, 255).astype("uint8")
    np.testing.assert_array_equal(run(*values), expected)
