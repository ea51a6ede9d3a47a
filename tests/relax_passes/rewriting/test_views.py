"""Views against NumPy: the positions that they name hold what the operators compute."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.relax_passes.rewriting.graph import Graph
from hetero_tvm.relax_passes.rewriting.views import View, places, refine, slices_of
from tests.relax_passes.graphs import constant, module, op, relax


def positions(view):
    found = np.asarray(view.offset)
    for factors in view.dims:
        axis = np.zeros(1, int)
        for extent, stride in factors:
            axis = (axis[:, None] + np.arange(extent) * stride).reshape(-1)
        found = found[..., None] + axis
    return found


def some_shape(draw, size):
    shape = []
    while size > 1:
        shape.append(draw(st.sampled_from([d for d in range(2, size + 1) if size % d == 0])))
        size //= shape[-1]
    return [1] * draw(st.integers(0, 1)) + shape


@pytest.mark.thorough
@settings(max_examples=150)
@given(st.data())
def test_any_chain_of_operators(data):
    draw = data.draw
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    base = np.arange(np.prod(shape)).reshape(shape)
    array, view = base, View.whole(shape)
    for _ in range(draw(st.integers(1, 5))):
        axis = draw(st.integers(0, max(array.ndim - 1, 0)))
        kind = draw(st.sampled_from(("permute", "reshape", "slice", "index", "repeat", "broadcast")))
        if kind == "permute":
            axes = draw(st.permutations(range(array.ndim)))
            after, moved = array.transpose(axes), view.permute(axes)
        elif kind == "reshape":
            target = some_shape(draw, array.size)
            after, moved = array.reshape(target), view.reshape(target)
        elif array.ndim == 0:
            continue
        elif kind == "slice":
            start, step = draw(st.integers(0, array.shape[axis] - 1)), draw(st.integers(1, 2))
            count = draw(st.integers(1, (array.shape[axis] - 1 - start) // step + 1))
            after = array.take(range(start, start + count * step, step), axis)
            moved = view.slice(axis, start, count, step)
        elif kind == "index":
            place = draw(st.integers(0, array.shape[axis] - 1))
            after, moved = array.take(place, axis), view.index(axis, place)
        elif array.size > 300:
            continue
        elif kind == "repeat":
            after, moved = array.repeat(2, axis), view.repeat(axis, 2)
        else:
            wide = [draw(st.integers(1, 2)), *(3 if extent == 1 else extent for extent in array.shape)]
            after, moved = np.broadcast_to(array, wide), view.broadcast(wide)
        if moved is not None:  # some slices and reshapes of merged axes have no strides
            array, view = after, moved
    assert view.shape == array.shape
    np.testing.assert_array_equal(base.reshape(-1)[positions(view)], array)


def test_equal_positions_are_equal_views():
    whole = View.whole((2, 6, 4))
    assert whole.reshape((2, 2, 3, 4)).reshape((12, 4)).reshape((2, 6, 4)) == whole
    assert whole.permute((1, 0, 2)).permute((1, 0, 2)).is_whole
    assert not whole.permute((1, 0, 2)).is_whole
    assert View.whole((1, 6, 4)).permute((1, 0, 2)).is_whole  # nothing moves


def test_merged_axes_that_do_not_follow_each_other_keep_their_factors():
    heads = View.whole((2, 2, 5, 3)).reshape((2, 2, 1, 5, 3)).broadcast((2, 2, 4, 5, 3)).reshape((2, 8, 5, 3))
    assert heads.dims[1] == ((2, 15), (4, 0)) and heads.stride(1) is None
    assert heads.slice(1, 4, 4).dims[1] == ((4, 0),) and heads.slice(1, 4, 4).offset == 15
    assert heads.slice(1, 2, 4) is None


def test_refined_factors_have_common_borders():
    assert refine([[(6, 1)], [(2, 5), (3, 0)]]) == [[(2, 3), (3, 1)], [(2, 5), (3, 0)]]
    assert refine([[(2, 1), (3, 9)], [(3, 1), (2, 9)]]) is None


def test_places_of_a_relax_chain():
    def body(emit, x):
        pieces = emit(op.split(x, [4, 10], axis=2))
        y = emit(relax.TupleGetItem(pieces, 1), "item")
        y = emit(op.multiply(constant(0.5), emit(op.reshape(y, (2, 3, 2, 3)))))
        y = emit(op.strided_slice(emit(op.permute_dims(y, [0, 2, 1, 3])), [-1], [-2], [2**63 - 1]))
        return emit(op.take(y, constant(1, "int64"), axis=1))

    graph = Graph(module({"x": (2, 3, 12)}, body))
    (top,) = (v for v in graph.bindings() if graph.op_name(v) == "relax.take")
    assert len(places(graph, top)) == 4
    found = places(graph, top, scaled=True)[-1]
    assert found.base.name == "x" and found.factor == 0.5
    x = np.arange(72).reshape(2, 3, 12)
    wanted = x[:, :, 4:10].reshape(2, 3, 2, 3).transpose(0, 2, 1, 3)[:, 1, :, 1:]
    np.testing.assert_array_equal(positions(found.view), wanted)


def test_slices_begin_inside_of_their_axes():
    def body(emit, x):
        cut = emit(op.strided_slice(x, [0, -1], [-9, -3], [3, 5], [1, 2]))
        return emit(op.strided_slice(cut, [1], [7], [9]))

    graph = Graph(module({"x": (4, 5)}, body))
    calls = [graph.value(v) for v in graph.bindings() if graph.op_name(v) == "relax.strided_slice"]
    assert [slices_of(call) for call in calls] == [[(0, 0, 1), (1, 2, 2)], [(1, 2, 1)]]
