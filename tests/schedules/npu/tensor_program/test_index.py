"""Affine forms, against every point of a box."""

import itertools
import operator
import random

import pytest

from hetero_tvm.schedules.npu.tensor_program.index import (
    Affine,
    CutError,
    FactorError,
    NotAffineError,
    divided,
    holds,
)


def test_affine_forms():
    x = Affine(3, {0: 2, 1: -1})
    assert x.range((4, 5)) == (-1, 9)
    assert (x + x.scaled(-1)) == Affine(0)
    assert x.strides(3) == (2, -1, 0)


def at(x, point):
    return x.base + sum(c * point[axis] for axis, c in x.terms.items())


def forms(count):
    rng = random.Random(0)
    for _ in range(count):
        extents = [rng.choice([1, 2, 3, 4, 6]) for _ in range(3)]
        terms = {axis: c for axis in range(3) if (c := rng.choice([0, 0, 1, -1, 2, 4, 12]))}
        yield Affine(rng.randint(-9, 9), terms), extents


def test_quotients_and_remainders_are_those_of_every_point():
    answered = 0
    for x, extents in forms(400):
        for by in (1, 2, 4, 12):
            try:
                quotient, remainder = divided(x, by, extents)
            except (CutError, FactorError, NotAffineError):
                continue
            answered += 1
            for point in itertools.product(*map(range, extents)):
                assert (at(quotient, point), at(remainder, point)) == divmod(at(x, point), by)
    assert answered > 400


@pytest.mark.parametrize("kind, test", [("LT", operator.lt), ("LE", operator.le), ("EQ", operator.eq)])
def test_conditions_hold_at_every_point_or_at_none(kind, test):
    answered = 0
    for x, extents in forms(400):
        every = [test(at(x, point), 0) for point in itertools.product(*map(range, extents))]
        try:
            answer = holds(kind, x, extents)
        except CutError as cut:
            assert all(0 < point < extents[cut.axis] for point in cut.points)
            continue
        except NotAffineError:
            continue
        answered += 1
        assert every == [answer] * len(every)
    assert answered > 100
