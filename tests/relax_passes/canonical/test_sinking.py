"""Transposes and reshapes meet behind an elementwise step."""

import numpy as np
import pytest

from hetero_tvm.relax_passes.canonical.sinking import SinkMoves
from tests.relax_passes.canonical.simplified import X, simplified
from tests.relax_passes.graphs import (
    calls,
    constant,
    module,
    op,
    weights,
)
from tests.relax_passes.rewrite import Rewrite

ONE = constant(np.ones((1, 1, 1, 1), "float32"))


@pytest.mark.parametrize(
    "step",
    [
        lambda e, x: e(op.tanh(x)),
        lambda e, x: e(op.multiply(x, constant(0.5))),
        lambda e, x: e(op.subtract(constant(1.0), x)),
    ],
)
@pytest.mark.parametrize(("second", "left"), [((1, 2, 0), 0), ((2, 1, 0), 1)])
def test_transposes_meet_behind_an_elementwise_step(step, second, left):
    def body(e, x):
        return e(op.permute_dims(step(e, e(op.permute_dims(x, (2, 0, 1)))), second))

    assert simplified(body, SinkMoves()).get("permute_dims", 0) == left


def test_reshapes_undo_each_other_across_an_elementwise_step():
    def body(e, x):
        return e(op.reshape(e(op.exp(e(op.reshape(x, (6, 4))))), (2, 3, 4)))

    assert simplified(body, SinkMoves()) == {"exp": 1}


@pytest.mark.parametrize(
    "body",
    [
        lambda e, x: e(op.reshape(e(op.exp(e(op.reshape(x, (6, 4))))), (3, 8))),  # another shape comes out
        lambda e, x: e(op.permute_dims(e(op.nn.softmax(e(op.permute_dims(x, (0, 2, 1))))), (0, 2, 1))),
        lambda e, x: e(
            op.permute_dims(e(op.add(e(op.permute_dims(x, (0, 2, 1))), constant(weights(3)))), (0, 2, 1))
        ),
        lambda e, x: e(op.permute_dims(e(op.exp(e(op.reshape(x, (3, 2, 4))))), (1, 0, 2))),
        # One number, of more axes than what comes out.
        lambda e, x: e(op.reshape(e(op.add(e(op.reshape(x, (1, 2, 3, 4))), ONE)), (2, 3, 4))),
        lambda e, x: e(op.reshape(e(op.add(e(op.reshape(e(op.sum(x, (0, 1, 2))), (1,))), ONE)), ())),
    ],
)
def test_what_cannot_sink(body):
    before = module(X, body)
    assert simplified(body, SinkMoves()) == dict(calls(before))


def test_a_step_that_others_see_stays():
    def body(e, x):
        step = e(op.exp(e(op.permute_dims(x, (2, 0, 1)))))
        return e(op.permute_dims(step, (1, 2, 0))), step

    assert simplified(body, SinkMoves()) == {"permute_dims": 2, "exp": 1}


class TestSinkMoves(Rewrite):
    rule = SinkMoves()

    def before(self, x):
        return op.permute_dims(op.tanh(op.permute_dims(x, [2, 0, 1])), [0, 2, 1])

    def expected(self, x):
        return op.permute_dims(op.tanh(x), [2, 1, 0])
