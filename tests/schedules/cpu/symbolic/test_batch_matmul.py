"""Products of two computed tensors of any size: however the operands lie, and whichever extents are open."""

import dataclasses

import pytest

from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.schedules.cpu.products.batch_matmul import BatchMatmulSpace
from hetero_tvm.schedules.cpu.symbolic import kernels
from hetero_tvm.schedules.extents import Unfit, completed
from hetero_tvm.schedules.symbolic import Witnesses
from tests.schedules.cpu.running import MACHINES
from tests.schedules.cpu.symbolic.helpers import check, choices_after_simplifying, witnesses_of
from tests.selection import thorough


def rows(b, s):
    """Rows of both operands are contiguous; the length is the columns and the rows."""
    lead = (b, 3)
    left, right = (b, 3, s, 20), (b, 3, 20, s)
    steps = (3 * s * 20, s * 20)
    return BatchMatmul(lead, s, s, 20, left, (0, *steps, 20, 1), right, (0, *steps, s, 1), (0, 1, 2, 3))


def keys(b, s):
    """Columns of B are contiguous, as keys of a head that lie beside those of others; Y has rows first."""
    left, right = (b, s, 40), (b, s, 40)
    at = (0, s * 40, 20, 40, 1)
    return BatchMatmul((b, 2), s, s, 20, left, at, right, (0, s * 40, 20, 1, 40), (0, 2, 1, 3))


def reduced(b, s):
    """The length is what is summed up; B is the same for all of a batch, and A is turned."""
    left, right = (b, s, 9), (s, 37)
    return BatchMatmul((b,), 9, 37, s, left, (0, s * 9, 1, 9), right, (0, 0, 37, 1), (0, 1, 2))


def apart(b, s):
    """Neither rows nor columns of B are contiguous."""
    left, right = (b, s, 12), (b, 12, s, 2)
    at = (1, 24 * s, 2 * s, 2)
    return BatchMatmul((b,), s, s, 12, left, (0, s * 12, 12, 1), right, at, (0, 1, 2))


def halved(b, s):
    """Weights of attention behind a layer with strides: the square of a length that is a quotient."""
    t = s // 2 + 1
    left, right = (b, 2, t, t), (b, 2, t, 11)
    at = (0, 2 * t * t, t * t, t, 1), (0, 22 * t, 11 * t, 11, 1)
    return BatchMatmul((b, 2), t, 11, t, left, at[0], right, at[1], (0, 1, 2, 3))


def vectors(b, s):
    """A matrix of any number of rows with two vectors, and that with a batch."""
    left, right = (b, s, 37), (b, 2, 37)
    steps = (0, s * 37, 37, 1), (0, 74, 1, 37)
    return BatchMatmul((b,), s, 2, 37, left, steps[0], right, steps[1], (0, 1, 2))


def queries(b, s):
    """A vector with any number of rows that lie one after the other."""
    left, right = (b, 1, 40), (b, s, 40)
    return BatchMatmul((b,), 1, s, 40, left, (0, 40, 40, 1), right, (0, s * 40, 1, 40), (0, 1, 2))


@pytest.mark.parametrize("machine", ["avx2", "avx512"])
@pytest.mark.parametrize("make", [vectors, queries])
def test_inner_products_of_few_rows(make, machine):
    machine, space = MACHINES[machine], BatchMatmulSpace()
    witnesses = witnesses_of(make)
    point = {"tile": (1, 1), "unroll": 4, "order": "inner"}
    assert kernels.RunTimeInnerKernel(witnesses, machine).few_left == (make is queries)
    check(make, kernels.emit(witnesses, space, point, machine))


@pytest.mark.parametrize("machine", ["avx2", "avx512"])
@pytest.mark.parametrize("make", [rows, keys, reduced, apart])
def test_products_of_any_size(make, machine):
    machine, space = MACHINES[machine], BatchMatmulSpace()
    witnesses = witnesses_of(make)
    point = space.default(witnesses.largest, machine)
    check(make, kernels.emit(witnesses, space, point, machine))


def test_the_simplifier_does_not_copy_choices():
    """It wrote how many pieces there are wherever that was used, 200 times, and compiled for seconds."""
    machine, space, witnesses = MACHINES["avx2"], BatchMatmulSpace(), witnesses_of(rows)
    kernel = kernels.emit(witnesses, space, space.default(witnesses.largest, machine), machine)
    assert choices_after_simplifying(kernel) == 1


@pytest.mark.parametrize("machine", ["avx2", "avx512"])
@pytest.mark.parametrize("make", [rows, keys, reduced, apart])
def test_float64_of_any_size(make, machine):
    machine, space = MACHINES[machine], BatchMatmulSpace()

    def wide(b, s):
        return dataclasses.replace(make(b, s), dtype="float64")

    witnesses = witnesses_of(wide)
    point = space.default(witnesses.largest, machine)
    check(wide, kernels.emit(witnesses, space, point, machine))


@pytest.mark.parametrize("machine", ["avx2", *thorough(["avx512"])])
def test_squares_of_quotients(machine):
    machine, space = MACHINES[machine], BatchMatmulSpace()
    ends = ((3, 65), (2, 65), (3, 51), (2, 37), (3, 44), (3, 58), (2, 30))
    sizes = tuple(completed({"b": b, "s": s}, ["(s//2)"]) for b, s in ends)
    witnesses = Witnesses(tuple(halved(at["b"], at["s"]) for at in sizes), sizes)
    point = space.default(witnesses.largest, machine)
    check(halved, kernels.emit(witnesses, space, point, machine))


def test_integers_have_none():
    def make(b, s):
        left, right = (b, s, 20), (b, 20, 8)
        at = ((0, s * 20, 20, 1), right, (0, 160, 8, 1), (0, 1, 2))
        return BatchMatmul((b,), s, 8, 20, left, *at, dtype="int8")

    point = {"tile": (4, 1), "unroll": 4, "order": "panels"}
    with pytest.raises(Unfit, match="not a product of float32"):
        kernels.emit(witnesses_of(make), BatchMatmulSpace(), point, MACHINES["avx2"])
