"""Recurrent layers: every cell, both directions, with and without states to begin with, at odd sizes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.ops.loops.recurrence import GATES, Recurrence
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.rows.recurrence import RecurrenceSpace
from hetero_tvm.schedules.cpu.symbolic import kernels
from hetero_tvm.schedules.symbolic import Witnesses
from tests.schedules.cpu.running import MACHINES, SWEPT, TARGET, UNWRITTEN, check_points, covering
from tests.selection import thorough

SPACE = RecurrenceSpace()


def arrays(op):
    """Operands; weights are small enough for states not to saturate, which would hide errors."""
    generator = np.random.default_rng(op.steps)
    found = [generator.standard_normal(o.shape, np.float32) for o in op.inputs]
    found[1] /= op.hidden**0.5
    if op.lengths:
        found[-1] = generator.integers(0, op.steps + 1, op.batch, np.int32)
    return found


def check(op, points, machine):
    # States lie within 1 (a relu's near it); float32 sums in another order, a few steps after one another.
    check_points(SPACE, op, points, machine, arrays(op), tolerance=4e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("machine", SWEPT)
def test_every_choice(machine):
    seen = set()
    for op in (
        Recurrence("lstm", 4, 5, 2 * machine.lanes + 3, initial=True),
        Recurrence("gru", 3, 4, 3 * machine.lanes, reverse=True, initial=True),
        Recurrence("rnn_tanh", 3, 1, 5),
        Recurrence("lstm", 4, 5, machine.lanes + 3, lengths=True),
        Recurrence("gru", 4, 3, 9, reverse=True, lengths=True),
        Recurrence("gru_before", 3, 4, 2 * machine.lanes + 3, initial=True),
        Recurrence("gru_before", 4, 3, 9, reverse=True, lengths=True),
    ):
        check(op, covering(SPACE, op, machine, seen), machine)
        assert {(knob.name, c) for knob in SPACE.knobs(op, machine) for c in knob.choices} <= seen


@pytest.mark.thorough
@settings(max_examples=6)
@given(st.data())
def test_random_shapes(data):
    draw = data.draw
    machine = MACHINES[draw(st.sampled_from(sorted(MACHINES)))]
    sizes = [draw(st.integers(1, most)) for most in (4, 6, 50)]
    op = Recurrence(draw(st.sampled_from(sorted(GATES))), *sizes, draw(st.booleans()), draw(st.booleans()))
    check(op, [{k.name: draw(st.sampled_from(k.choices)) for k in SPACE.knobs(op, machine)}], machine)


def test_not_a_number_stays_in_its_row():
    op, machine = Recurrence("gru", 3, 3, 9, initial=True), MACHINES["avx2"]
    given_ = arrays(op)
    given_[0][1, 2, 0] = np.nan
    from tests.schedules.cpu.running import point_runners

    (run,) = point_runners(SPACE, op, [SPACE.default(op, machine)], machine)
    y = run(*given_)
    assert np.isnan(y[1:, 2]).any() and np.isfinite(y[:, :2]).all() and np.isfinite(y[0]).all()


def test_refusals_and_defaults():
    machine = MACHINES["avx2"]
    assert SPACE.refuses(Softmax((3,), 4), machine) == "not a recurrent layer"
    assert SPACE.refuses(Recurrence("gru", 3, 0, 4), machine) == "an extent is zero"
    assert SPACE.default(Recurrence("lstm", 9, 1, 16), machine)["threads"] is False
    assert SPACE.default(Recurrence("lstm", 9, 4, 512), machine)["threads"] is True


@pytest.mark.parametrize(
    ("cell", "options", "tile"),
    [
        *thorough([("lstm", {"initial": True}, (4, 1))]),
        ("lstm", {"lengths": True, "reverse": True}, (2, 1)),
        *thorough([("gru", {}, (1, 2)), ("rnn_tanh", {"reverse": True}, (4, 1))]),
        *thorough([("gru_before", {"initial": True}, (2, 1))]),
    ],
)
def test_any_number_of_steps_and_of_rows(cell, options, tile):
    sizes = ({"t": 20, "b": 7}, {"t": 20, "b": 5}, {"t": 17, "b": 7}, {"t": 6, "b": 3})
    machine = MACHINES["avx2"]

    def make(t, b):
        return Recurrence(cell, t, b, 21, **options)

    witnesses = Witnesses(tuple(make(**each) for each in sizes), sizes)
    point = {"tile": tile, "threads": True}
    function = kernels.emit(witnesses, SPACE, point, machine)
    run = compile_kernels(function, TARGET).jit()["main"]
    packers = SPACE.pack(witnesses.largest, point, machine)
    for t, b in ((1, 1), (2, 4), (20, 6), (9, 3)):
        op = make(t, b)
        operands = arrays(op)
        results = [tvm.runtime.tensor(np.full(o.shape, UNWRITTEN, "float32")) for o in op.outputs]
        packed = [packers[n](a) if n in packers else a for n, a in enumerate(operands)]
        run(*map(tvm.runtime.tensor, packed), *results)
        wanted = op.reference(*(a.astype(np.float64) if a.dtype.kind == "f" else a for a in operands))
        for result, exact in zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            np.testing.assert_allclose(result.numpy(), exact, atol=4e-6)
