"""Sums of transposed tensors become transposed sums."""

import pytest

from hetero_tvm.relax_passes.canonical.transposed_sums import SumTransposed
from hetero_tvm.relax_passes.canonical.views import MergeTransposes
from tests.relax_passes.canonical.simplified import simplified
from tests.relax_passes.graphs import calls, fuse, module, op, same_numbers
from tests.relax_passes.rewrite import Rewrite, bind

IMAGE = {"x": (2, 3, 4, 5), "a": (2, 4, 5, 3), "b": (2, 4, 5, 3)}
TO_IMAGE, TO_ROWS = (0, 3, 1, 2), (0, 2, 3, 1)


def test_a_chain_of_sums_is_transposed_once():
    def body(e, x, a, b):
        first = e(op.add(x, e(op.permute_dims(e(op.exp(a)), TO_IMAGE))))
        image = e(op.tanh(first))
        second = e(op.add(e(op.permute_dims(e(op.multiply(b, b)), TO_IMAGE)), first))
        return e(op.permute_dims(second, TO_ROWS)), image

    before = module(IMAGE, body)
    after, _, _ = fuse(before, SumTransposed(), MergeTransposes())
    same_numbers(before, after)
    assert calls(after)["permute_dims"] == 2, "of x, and of what is read as an image"


SQUARE = {"x": (2, 4, 4, 3), "a": (2, 4, 4, 3), "b": (2, 4, 4, 3)}


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        (lambda e, x, a, b: e(op.add(x, e(op.permute_dims(a, TO_IMAGE)))), IMAGE),  # nobody goes on
        (lambda e, x, a, b: e(op.add(e(op.mean(x, 1, True)), e(op.permute_dims(a, TO_IMAGE)))), IMAGE),
        (
            lambda e, x, a, b: e(
                op.add(e(op.permute_dims(a, (0, 2, 1, 3))), e(op.permute_dims(b, (2, 1, 0, 3))))
            ),
            {**SQUARE, "a": (2, 4, 4, 3), "b": (4, 4, 2, 3)},
        ),
    ],
    ids=["alone", "broadcast", "other orders"],
)
def test_sums_that_stay(body, inputs):
    assert simplified(body, SumTransposed(), inputs=inputs) == dict(calls(module(inputs, body)))


def test_transposed_tensors_that_others_read_stay():
    def body(e, x, a, b):
        one, other = e(op.permute_dims(a, TO_IMAGE)), e(op.permute_dims(b, TO_IMAGE))
        return e(op.add(one, other)), e(op.exp(one)), e(op.exp(other))

    assert simplified(body, SumTransposed(), inputs=IMAGE)["permute_dims"] == 2


class TestSumTransposed(Rewrite):
    rule = SumTransposed()
    inputs = IMAGE

    def before(self, x, a, b):
        return op.add(bind(op.permute_dims(a, TO_IMAGE)), bind(op.permute_dims(b, TO_IMAGE)))

    def expected(self, x, a, b):
        return op.permute_dims(op.add(a, b), TO_IMAGE)
