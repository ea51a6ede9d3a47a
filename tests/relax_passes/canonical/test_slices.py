"""Lookups at constant, evenly spaced places are slices."""

import numpy as np
import pytest

from hetero_tvm.relax_passes.canonical.slices import SliceOfTake
from tests.relax_passes.canonical.simplified import simplified
from tests.relax_passes.graphs import (
    constant,
    op,
    relax,
)
from tests.relax_passes.rewrite import Rewrite


@pytest.mark.parametrize(
    "places, found",
    [
        ([1], {"strided_slice": 1}),
        ([0, 1], {"strided_slice": 1}),
        ([0, 2], {"strided_slice": 1}),
        ([-2, -1], {"strided_slice": 1}),
        ([0, 1, 2], {}),
        ([2, 1], {"take": 1}),
        ([0, 1, 1], {"take": 1}),
        ([[0, 1]], {"take": 1}),
        ([1, 1], {"take": 1}),
    ],
)
def test_lookups_that_are_slices(places, found):
    def body(emit, x):
        index = relax.const(np.array(places), "int64")
        return emit(op.tanh(emit(op.take(x, index, 1, mode="wrap"))))

    assert simplified(body, SliceOfTake()) == {"tanh": 1, **found}


@pytest.mark.parametrize(
    "places, found",
    [
        ([[1]], {"strided_slice": 1}),
        ([[0], [1]], {}),
        ([[1], [0]], {"gather_nd": 1}),
        ([[1, 2]], {"gather_nd": 1}),
        ([[[1]]], {"gather_nd": 1}),
    ],
)
def test_lookups_along_the_first_axis(places, found):
    def body(emit, x):
        return emit(op.tanh(emit(op.gather_nd(x, relax.const(np.array(places), "int64")))))

    assert simplified(body, SliceOfTake()) == {"tanh": 1, **found}


class TestSliceOfTake(Rewrite):
    rule = SliceOfTake()

    def before(self, x):
        return op.take(x, constant([0, 2], "int64"), 1, mode="wrap")

    def expected(self, x):
        return op.strided_slice(x, [1], [0], [3], [2])
