"""Lookups at constant, evenly spaced places are slices, and views behind slices move before them."""

import numpy as np
import pytest

from hetero_tvm.relax_passes.canonical.slices import JoinSlices, SliceOfPieces, SliceOfTake
from hetero_tvm.relax_passes.rewriting.graph import Graph
from tests.relax_passes.canonical.simplified import simplified
from tests.relax_passes.graphs import (
    constant,
    module,
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


@pytest.mark.parametrize(
    ("axis", "begin", "end", "shape", "moved"),
    [
        (1, 2, 8, (2, 3, 2, 5), True),
        (-2, 0, 8, (2, 4, 2, 1, 5), True),
        (1, -8, 10, (2, 4, 2, 5), True),
        (1, -14, 8, (2, 4, 2, 5), True),  # begins before the first
        (2, 0, 4, (2, 10, 2, 2), False),  # 5 columns are no whole pieces of 2
        (1, 1, 9, (2, 4, 2, 5), False),  # begins within a piece
        (1, 2, 8, (12, 5), False),  # joins axes
        (1, 2, 8, (2, 6, 5, 1), False),
    ],
)
def test_slices_in_pieces_before_a_concatenation(axis, begin, end, shape, moved):
    def body(emit, x):
        part = emit(op.reshape(emit(op.strided_slice(x, [axis], [begin], [end], [1])), shape))
        return emit(op.concat([part, part], 1))

    graph = Graph(module({"x": (2, 10, 5)}, body))
    (view,) = (var for var in graph.bindings() if graph.op_name(var) == "relax.reshape")
    assert (SliceOfPieces().match(graph, view) is not None) is moved
    simplified(body, SliceOfPieces(), inputs={"x": (2, 10, 5)})


class TestSliceOfPieces(Rewrite):
    rule = SliceOfPieces()
    inputs = {"x": (2, 10, 4)}

    def before(self, x):
        windows = [op.reshape(op.strided_slice(x, [1], [n], [n + 6], [1]), (2, 3, 2, 4)) for n in (0, 2)]
        return op.concat(windows, 2)

    def expected(self, x):
        pieces = [op.reshape(x, (2, 5, 2, 4)) for _ in range(2)]
        return op.concat([op.strided_slice(p, [1], [n], [n + 3], [1]) for n, p in enumerate(pieces)], 2)


@pytest.mark.parametrize(
    ("cuts", "found"),
    [
        ([(0, 2), (2, 6)], {}),  # all of it
        ([(0, 2), (2, 5)], {"strided_slice": 1, "concat": 1}),
        ([(1, 2), (2, -1), (5, 6)], {"strided_slice": 1, "concat": 1}),
        ([(2, 4), (0, 2)], {"strided_slice": 2, "concat": 1}),
        ([(0, 2), (1, 4)], {"strided_slice": 2, "concat": 1}),
        ([(0, 2), (0, 2)], {"strided_slice": 2, "concat": 1}),
    ],
)
def test_neighbours_come_back_together(cuts, found):
    def body(emit, x):
        parts = [emit(op.strided_slice(x, [-1], [begin], [end], [1])) for begin, end in cuts]
        return emit(op.tanh(emit(op.concat(parts if not found else [*parts, x], 1))))

    assert simplified(body, JoinSlices(), inputs={"x": (3, 6)}) == {"tanh": 1, **found}


@pytest.mark.parametrize(("end", "found"), [(3, {"strided_slice": 1}), (4, {})])
def test_neighbours_alone_are_one_slice(end, found):
    def body(emit, x):
        parts = [emit(op.strided_slice(x, [1], [n], [m], [1])) for n, m in ((0, 1), (1, end))]
        return emit(op.tanh(emit(op.concat(parts, 1))))

    assert simplified(body, JoinSlices(), inputs={"x": (3, 4)}) == {"tanh": 1, **found}


@pytest.mark.parametrize(("axis", "steps"), [(0, [1]), (1, [2])])
def test_slices_that_are_no_neighbours(axis, steps):
    """Slices along another axis than the concatenation's, or with elements left out, stay."""

    def body(emit, x):
        parts = [emit(op.strided_slice(x, [axis], [n], [n + 2], steps)) for n in (0, 2)]
        return emit(op.concat(parts, 1))

    assert simplified(body, JoinSlices(), inputs={"x": (4, 4)}) == {"strided_slice": 2, "concat": 1}


class TestJoinSlices(Rewrite):
    rule = JoinSlices()

    def before(self, x):
        first, rest = op.strided_slice(x, [1], [0], [1], [1]), op.strided_slice(x, [1], [1], [3], [1])
        return op.concat([first, rest, x], 1)

    def expected(self, x):
        return op.concat([x, x], 1)
