"""Choices that hang on choices: right, in every lane, built at all, and never read where nothing is."""

import functools

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.codegen.steps.choice_steps import choose_in_steps
from hetero_tvm.host.tvm import te, tirx, tvm, tvm_ffi
from hetero_tvm.schedules.cpu import generic
from tests.schedules.cpu.running import MACHINES, TARGET

SHAPE = (6, 64)


def remainder_of_quotient(x, d):
    """``(x // d) % d`` of floats' manners, as JAX writes it for whole numbers."""

    def sign(v):
        return tirx.Select(v > 0, tirx.const(1, "int32"), tirx.Select(v < 0, tirx.const(-1, "int32"), 0 * v))

    odd = tirx.And(tirx.NE(sign(x), sign(d)), tirx.NE(tirx.truncmod(x, d), 0))
    quotient = tirx.Select(odd, tirx.truncdiv(x, d) - 1, tirx.truncdiv(x, d))
    rest = tirx.truncmod(quotient, d)
    wrong = tirx.And(tirx.NE(sign(rest), sign(d)), tirx.NE(rest, 0))
    return tirx.Select(wrong, rest + d, rest)


@functools.cache
def kernel(compute=remainder_of_quotient, other=SHAPE):
    """A kernel of one value, made once: TVM takes two seconds for the choices within choices."""
    x, d = (te.placeholder(shape, "int32", name) for shape, name in ((SHAPE, "x"), (other, "d")))
    return te.create_prim_func([x, d, te.compute(SHAPE, lambda *i: compute(x[i], d[i]), "y")])


def steps(function):
    found = []
    tvm_ffi.structural_walk(choose_in_steps(function).body, (tirx.AllocBuffer, found.append))
    return len(found)


@pytest.mark.parametrize("plain", [True, False])
def test_numbers(plain):
    random = np.random.default_rng(0)
    x = random.integers(-90, 90, SHAPE).astype(np.int32)
    d = np.where(random.integers(0, 2, SHAPE), 7, -5).astype(np.int32)
    function = kernel() if plain else generic.schedule(kernel(), MACHINES["avx2"])
    y = tvm.runtime.tensor(np.zeros(SHAPE, np.int32))
    compile_kernels(function, TARGET)["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(d), y)
    np.testing.assert_array_equal(y.numpy(), (x // d) % d)


def test_many_choices_are_made_one_after_the_other():
    assert 3 <= steps(kernel()) <= 12


def test_a_few_choices_stay():
    assert steps(kernel(lambda x, d: tirx.Select(tirx.Select(x > d, x, d) > 3, x, d))) == 0


def test_what_one_side_alone_has_is_not_read_before():
    """``d`` has fewer rows than there are."""

    def compute(x, d):
        return tirx.Select(x > 0, remainder_of_quotient(x, d), x)

    assert steps(kernel(compute, other=(3, 64))) < steps(kernel(compute))
