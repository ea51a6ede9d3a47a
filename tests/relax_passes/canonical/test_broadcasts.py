"""Broadcasts: those that the next operator does by itself go, those that are written otherwise are found."""

from hetero_tvm.relax_passes.canonical.broadcasts import DropBroadcasts, TileAsBroadcast
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


class TestTileAsBroadcast(Rewrite):
    rule = TileAsBroadcast()
    inputs = {"x": (2, 3)}

    def before(self, x):
        return op.tile(x, (4, 1, 5)), op.tile(x, (3, 1))

    def expected(self, x):
        wide = op.broadcast_to(op.reshape(x, (1, 1, 2, 1, 3)), (4, 1, 2, 5, 3))
        high = op.broadcast_to(op.reshape(x, (1, 2, 3)), (3, 2, 3))
        return op.reshape(wide, (4, 2, 15)), op.reshape(high, (6, 3))
