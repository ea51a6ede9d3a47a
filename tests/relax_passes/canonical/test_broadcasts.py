"""Broadcasts that the next operator does by itself are not written out."""

from hetero_tvm.relax_passes.canonical.broadcasts import DropBroadcasts
from tests.relax_passes.canonical.simplified import simplified
from tests.relax_passes.graphs import (
    op,
)
from tests.relax_passes.rewrite import Rewrite


def test_broadcasts_that_the_operator_does_itself():
    def body(emit, x):
        row = emit(op.broadcast_to(emit(op.tanh(emit(op.strided_slice(x, [0], [0], [1], [1])))), (2, 3, 4)))
        return emit(op.add(row, x))

    assert simplified(body, DropBroadcasts()) == {"strided_slice": 1, "tanh": 1, "add": 1}
    wider = lambda e, x: e(op.multiply(e(op.broadcast_to(x, (5, 2, 3, 4))), x))  # noqa: E731
    assert simplified(wider, DropBroadcasts()) == {"broadcast_to": 1, "multiply": 1}


class TestDropBroadcasts(Rewrite):
    rule = DropBroadcasts()
    inputs = {"x": (4,), "y": (2, 3, 4)}

    def before(self, x, y):
        return op.add(op.broadcast_to(x, (2, 3, 4)), y), op.multiply(y, op.broadcast_to(y, (5, 2, 3, 4)))

    def expected(self, x, y):
        return op.add(x, y), op.multiply(y, op.broadcast_to(y, (5, 2, 3, 4)))
