"""Sums and products along an axis, and recurrent layers, in steps of whole tensors: the same numbers."""

import numpy as np
import pytest

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.host.tvm import relax
from hetero_tvm.ops.loops.recurrence import Recurrence
from hetero_tvm.relax_passes.forms.scan import RecurrenceAsSteps, ScanAsKernel, ScanAsShifts
from tests.relax_passes.compiled import RNG, check_results, floats, result
from tests.relax_passes.graphs import fuse, module, op
from tests.relax_passes.rewrite import Rewrite, any_kernel, bind, kernel

CASES = {
    "sums along": (lambda x: op.cumsum(x, 1), [floats(2, 7)]),
    "sums of integers": (lambda x: op.cumsum(x, 0, "int64"), [RNG.integers(-9, 9, (13, 2))]),
    "sums of truth values": (lambda x: op.cumsum(x, 1, "int64"), [RNG.integers(0, 2, (2, 9)) > 0]),
    "sums before": (lambda x: op.cumsum(x, 1, exclusive=True), [floats(2, 5, 3)]),
    "sums of one": (lambda x: op.cumsum(x, 1), [floats(3, 1)]),
    "products along": (lambda x: op.cumprod(x, -1), [floats(2, 6)]),
}


@pytest.mark.parametrize("build, arrays", CASES.values(), ids=CASES.keys())
def test_the_results_stay(build, arrays):
    check_results(build, arrays, ScanAsShifts(), gone="cumsum cumprod")


class TestScanAsShifts(Rewrite):
    rule = ScanAsShifts()
    inputs = {"x": (2, 7)}

    def before(self, x):
        return op.cumsum(x, 1)

    def expected(self, x):
        return any_kernel("cumsum", (2, 7), "float32", x)


class TestScanAsKernel(TestScanAsShifts):
    rule = ScanAsKernel(ScanAsShifts().function)


def _any_scan(*form, reverse, **more):
    return ScanAsShifts().function(*form, **more)


class TestScanInReverse(Rewrite):
    rule = ScanAsKernel(_any_scan, reverses=True)
    inputs = {"x": (2, 7)}

    def before(self, x):
        return op.flip(bind(op.cumsum(bind(op.flip(x, 1)), 1)), 1)

    def expected(self, x):
        return any_kernel("cumsum", (2, 7), "float32", x)


class TestReversalsOfOtherAxesStay(TestScanInReverse):
    rule = ScanAsKernel(ScanAsShifts().function, reverses=True)

    def before(self, x):
        return op.flip(bind(op.cumsum(bind(op.flip(x, 0)), 1)), 1)

    def expected(self, x):
        return op.flip(bind(any_kernel("cumsum", (2, 7), "float32", bind(op.flip(x, 0)))), 1)


ONE = Recurrence("rnn_tanh", 1, 2, 3, initial=True)


class TestRecurrenceAsSteps(Rewrite):
    rule = RecurrenceAsSteps()
    inputs = {"x": (1, 2, 3), "r": (3, 3), "h": (2, 3)}

    def before(self, x, r, h):
        return kernel(ONE, x, r, h)

    def expected(self, x, r, h):
        own = bind(op.reshape(x, (2, 3)))
        return op.expand_dims(op.tanh(op.add(op.matmul(h, r), own)), 0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "layer",
    [
        Recurrence("lstm", 3, 2, 4, initial=True),
        Recurrence("gru", 18, 1, 3, reverse=True),
        Recurrence("gru_before", 3, 2, 4, initial=True),
        pytest.param(Recurrence("lstm", 2, 1, 3, reverse=True), marks=pytest.mark.exhaustive),
        pytest.param(Recurrence("rnn_relu", 3, 2, 4, initial=True), marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_recurrent_layers(layer):
    generator = np.random.default_rng(1)
    arrays = [generator.standard_normal(o.shape, np.float32) / 2 for o in layer.inputs]

    def body(emit, *operands):
        called = emit(kernel(layer, *operands))
        if len(layer.outputs) == 1:
            return called
        *further, y = (emit(relax.TupleGetItem(called, n)) for n in range(len(layer.outputs)))
        return op.concat([*(emit(op.expand_dims(value, 0)) for value in further), y], axis=0)

    before = module({o.name: o.shape for o in layer.inputs}, body)
    after, _, report = fuse(before, RecurrenceAsSteps())
    assert report.misses == []
    assert "R.call_tir(" not in after["main"].script(show_meta=False)
    found = layer.reference(*(a.astype(np.float64) for a in arrays))
    wanted = found if len(layer.outputs) == 1 else np.concatenate([*(a[None] for a in found[:-1]), found[-1]])
    # States lie near 1; float32 sums, a few steps after one another.
    np.testing.assert_allclose(result(after, arrays), wanted, atol=5e-6)


def test_longest_recurrent_layer():
    long = Recurrence("rnn_tanh", 5000, 1, 2)
    before = module({o.name: o.shape for o in long.inputs}, lambda emit, *args: kernel(long, *args))
    with pytest.raises(UnsupportedOperatorError, match="at most 4096 time steps, not 5000"):
        fuse(before, RecurrenceAsSteps())
