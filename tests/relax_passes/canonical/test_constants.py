"""Operators on constants are folded where that stores little."""

import numpy as np
import pytest

from hetero_tvm.relax_passes.canonical.constants import FoldConstants, ReleaseConstants
from tests.relax_passes.canonical.simplified import X, simplified
from tests.relax_passes.graphs import (
    bindings,
    calls,
    constant,
    fuse,
    module,
    names_of,
    op,
    relax,
    same_numbers,
    weights,
)
from tests.relax_passes.rewrite import Rewrite


@pytest.mark.parametrize(
    "make",
    [
        lambda e: op.add(constant(weights(4)), constant(1.0)),
        lambda e: op.permute_dims(constant(weights(4, 3))),
        lambda e: op.reshape(constant(weights(2, 2)), (4,)),
        lambda e: op.strided_slice(constant(weights(9)), [0], [1], [9], [2]),
        lambda e: op.strided_slice(constant(weights(6)), [0], [2], [2**62], [1]),
        lambda e: op.take(constant(weights(6, 4)), relax.const(np.array(-1), "int64"), 0, mode="wrap"),
        lambda e: op.where(constant([True, False, True, False], "bool"), constant(1.0), constant(2.0)),
        lambda e: op.broadcast_to(constant(2.0), (4,)),
        lambda e: op.concat([constant([1.0, 2.0]), constant([3.0, 4.0])], 0),
        lambda e: op.mean(constant(weights(5, 4)), axis=[0]),
        lambda e: op.astype(constant([1, 2, 3, 4], "int64"), "float32"),
        lambda e: op.cumsum(constant(weights(4)), axis=0),
        lambda e: op.dequantize(constant([1, 2, 3, 250], "uint8"), constant(0.5), constant(128, "uint8")),
        lambda e: op.zeros((4,), "float32"),
        lambda e: op.full((4,), constant(3.0), "float32"),
        lambda e: op.divide(constant(weights(4)), constant(0.0)),
    ],
)
def test_constants_are_folded(make):
    before = module(X, lambda e, x: e(op.add(x, e(make(e)))))
    after, names, _ = fuse(before, FoldConstants())
    assert dict(calls(after)) == {"add": 1}
    assert names_of(before) <= set().union(*names.values())
    value = bindings(after)[0].value.args[1].value.numpy()
    made = relax.BlockBuilder().normalize(make(None))
    expected = np.broadcast_to(value, [int(extent) for extent in made.ty.shape])
    assert value.dtype == np.float32 and value.shape == expected.shape


def test_chains_of_constants_end_in_one():
    def body(emit, x):
        a = emit(op.multiply(constant(weights(4)), constant(weights(4))))
        b = emit(op.sqrt(emit(op.multiply(a, a))))
        return emit(op.add(x, emit(op.reshape(b, (1, 4)))))

    assert simplified(body, FoldConstants()) == {"add": 1}


def test_shapes_are_constants():
    def body(emit, x):
        extents = emit(op.shape_to_tensor(emit(op.shape_of(x))))
        last = emit(op.take(extents, relax.const(np.array(2), "int64"), 0, mode="wrap"))
        return emit(op.multiply(x, emit(op.astype(last, "float32"))))

    before = module(X, body)
    after, names, _ = fuse(before, FoldConstants())
    assert dict(calls(after)) == {"multiply": 1} and names_of(before) <= set().union(*names.values())
    assert bindings(after)[0].value.args[1].value.numpy() == 4.0


def test_a_constant_result_stays_a_result():
    def body(emit, x):
        return emit(op.tanh(x)), emit(op.add(constant(weights(4)), constant(1.0)))

    before = module(X, body)
    after, names, _ = fuse(before, FoldConstants())
    assert dict(calls(after)) == {"tanh": 1} and names_of(before) <= set().union(*names.values())
    same_numbers(before, after)


def test_large_broadcasts_are_not_stored():
    body = lambda e, x: e(op.multiply(x, e(op.broadcast_to(constant(weights(4)), (40000, 4)))))  # noqa: E731
    assert simplified(body, FoldConstants(), inputs={"x": (40000, 4)}) == {"broadcast_to": 1, "multiply": 1}


def test_rows_of_a_table_are_stored_for_long_sequences():
    """The embedding of one token type for each of 512 positions: its sum with theirs is one constant."""
    table, types = constant(weights(2, 768)), relax.const(np.zeros((1, 512), "int64"))
    body = lambda e, x: e(op.add(x, e(op.take(table, types, axis=0, mode="clip"))))  # noqa: E731
    assert simplified(body, FoldConstants(), inputs={"x": (1, 512, 768)}) == {"add": 1}


def test_what_depends_on_inputs_is_not_folded():
    assert simplified(lambda e, x: e(op.add(x, e(op.multiply(x, constant(2.0))))), FoldConstants()) == {
        "add": 1,
        "multiply": 1,
    }


class TestFoldConstants(Rewrite):
    rule = FoldConstants()

    def before(self, x):
        return op.add(x, op.reshape(op.multiply(constant([1.0, 2.0, 3.0, 4.0]), constant(2.0)), (1, 4)))

    def expected(self, x):
        return op.add(x, constant([[2.0, 4.0, 6.0, 8.0]]))


class TestReleaseConstants(Rewrite):
    rule = ReleaseConstants()
    inputs = {"x": (3,)}

    def before(self, x):
        return op.add(x, op.builtin.stop_lift_params(constant([1, 2, 3])))

    def expected(self, x):
        return op.add(x, constant([1, 2, 3]))


def test_held_constants_are_not_folded():
    made = module(
        {"x": (3,)},
        lambda e, x: e(op.add(x, e(op.negative(e(op.builtin.stop_lift_params(constant([1, 2, 3]))))))),
    )
    assert calls(fuse(made, FoldConstants())[0])["negative"] == 1


def test_the_largest_of_nothing_is_minus_infinity():
    def body(emit, x):
        return emit(op.maximum(x, emit(op.max(constant(np.zeros((0, 4))), axis=[0, 1]))))

    after, _, _ = fuse(module(X, body), FoldConstants())
    assert calls(after) == {"maximum": 1}
