"""Norms that read and write tensors where they lie."""

from dataclasses import replace

import pytest

from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.relax_passes.fusions.normalization import FuseLayerNorm, FuseRmsNorm
from hetero_tvm.relax_passes.fusions.normalization_layout import NormAxis, NormRows
from tests.relax_passes.graphs import (
    calls,
    constant,
    contracts,
    fuse,
    module,
    names_of,
    op,
    same_numbers,
    weights,
)
from tests.relax_passes.rewrite import Rewrite, kernel


def norm(emit, x, n):
    return emit(op.nn.rms_norm(x, constant(weights(n)), axes=[-1], epsilon=1e-5))


def run(before, *rules):
    after, names, report = fuse(before, FuseLayerNorm(), FuseRmsNorm(), *rules)
    assert set().union(*names.values()) >= names_of(before)
    same_numbers(before, after)
    return after, report


def channels(order, back):
    def body(emit, x):
        moved = emit(op.permute_dims(x, order))
        y = norm(emit, moved, [2, 3, 4, 5][order[-1]])
        return emit(op.permute_dims(y, back))

    return module({"x": (2, 3, 4, 5)}, body)


@pytest.mark.parametrize(
    "order, back", [([0, 2, 3, 1], [0, 3, 1, 2]), ([0, 1, 3, 2], [0, 1, 3, 2]), ([1, 2, 3, 0], [3, 0, 1, 2])]
)
def test_transposed_and_back(order, back):
    after, _ = run(channels(order, back), NormAxis(lambda op: True))
    (found,) = contracts(after, "normalize")
    assert calls(after) == {"normalize": 1} and found.trail == (2, 3, 4, 5)[order[-1] + 1 :]


@pytest.mark.parametrize(
    "order, back",
    [([0, 2, 3, 1], [0, 3, 2, 1]), ([0, 3, 2, 1], [0, 3, 2, 1])],  # not back; others change places
)
def test_other_transpositions_stay(order, back):
    after, _ = run(channels(order, back), NormAxis(lambda op: True))
    assert calls(after) == {"permute_dims": 2, "normalize": 1} and not contracts(after, "normalize")[0].trail


def test_transposed_norm_used_twice():
    def body(emit, x):
        y = norm(emit, emit(op.permute_dims(x, [0, 2, 1])), 3)
        return emit(op.permute_dims(y, [0, 2, 1])), y

    after, _ = run(module({"x": (2, 3, 4)}, body), NormAxis(lambda op: True))
    assert calls(after) == {"permute_dims": 2, "normalize": 1}


def test_a_target_without_the_kernels():
    before = channels([0, 2, 3, 1], [0, 3, 1, 2])
    after, _ = run(before, NormAxis(lambda op: False), NormRows(lambda op: False))
    assert calls(after) == {"permute_dims": 2, "normalize": 1}


def test_heads_of_a_packed_projection():
    """The keys of [B, S, 3 * H * D], heads before positions: neither slice nor transposition is left."""

    def body(emit, x):
        part = emit(op.strided_slice(x, [2], [24], [48], [1]))
        heads = emit(op.reshape(part, (2, 5, 4, 6)))
        return norm(emit, emit(op.permute_dims(heads, [0, 2, 1, 3])), 6)

    after, report = run(module({"x": (2, 5, 72)}, body), NormRows(lambda op: True))
    (found,) = contracts(after, "normalize")
    assert calls(after) == {"normalize": 1} and report.fusions == {"rms_norm": 1}
    assert (found.lead, found.source, found.place) == ((2, 4, 5), (2, 5, 72), (24, 360, 6, 72))


@pytest.mark.parametrize(
    "body",
    [
        lambda e, x: norm(e, x, 6),
        lambda e, x: norm(e, e(op.reshape(x, (8, 6))), 6),  # rows in order: nothing is copied anyway
        lambda e, x: norm(e, e(op.permute_dims(x, [0, 2, 1])), 4),  # elements of a row lie apart
        lambda e, x: norm(e, e(op.permute_dims(e(op.tanh(x)), [0, 2, 1])), 4),
    ],
)
def test_rows_that_stay(body):
    after, _ = run(module({"x": (2, 4, 6)}, body), NormRows(lambda op: True))
    assert not contracts(after, "normalize")[0].place


SCALE = constant(weights(4))
RMS = Normalization((2, 3), 4, 0.25, centered=False, shifted=False)


class TestNormAxis(Rewrite):
    rule = NormAxis(lambda op: True)
    inputs = {"x": (2, 4, 3)}

    def before(self, x):
        return op.permute_dims(kernel(RMS, op.permute_dims(x, [0, 2, 1]), SCALE), [0, 2, 1])

    def expected(self, x):
        return kernel(replace(RMS, lead=(2,), trail=(3,)), x, SCALE)


class TestNormRows(Rewrite):
    rule = NormRows(lambda op: True)
    inputs = {"x": (2, 3, 8)}

    def before(self, x):
        return kernel(RMS, op.strided_slice(x, [2], [4], [8], [1]), SCALE)

    def expected(self, x):
        return kernel(replace(RMS, source=(2, 3, 8), place=(4, 24, 8)), x, SCALE)
