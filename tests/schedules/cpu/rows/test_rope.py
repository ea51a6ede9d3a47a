"""Rotary embedding: both pairings, partial rotation, tables per element and per pair, strided sources."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.rope import Rope
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.relax_passes.rewriting.views import View
from hetero_tvm.schedules.cpu.rows.rope import RopeSpace
from tests.schedules.cpu.running import MACHINES, SWEPT, check_points, check_shapes, llvm_of

SPACE = RopeSpace()


def rope(shape, rotary=None, interleaved=False, per_pair=False, table=None, source=None, place=None):
    rotary = rotary or shape[-1]
    lead = (1,) * (len(shape) - 2) + (shape[-2],) if table is None else table
    strides = tuple(View.whole(shape).stride(axis) for axis in range(len(shape) - 1))
    tables = (*lead, rotary // 2 if per_pair else rotary)
    return Rope(shape, rotary, interleaved, tables, source or shape, place or (0, *strides))


@pytest.mark.parametrize("machine", SWEPT)
def test_every_choice_rotates(machine):
    ops = [
        rope((2, 3, 70, 6)),
        rope((2, 3, 5, 2 * machine.lanes + 6), interleaved=True, per_pair=True),
        rope((2, 5, 3, 23), rotary=14, table=(2, 5, 1)),
        # keys of a packed [B, S, (H + 2 Hkv) * D], read by head
        rope((2, 2, 9, 8), rotary=4, source=(2, 9, 48), place=(32, 9 * 48, 8, 48)),
        rope((1, 2), interleaved=True),
    ]
    check_shapes(SPACE, ops, machine)


@pytest.mark.thorough
@settings(max_examples=12)
@given(st.data())
def test_random_shapes(data):
    draw = data.draw
    machine = MACHINES[draw(st.sampled_from(sorted(MACHINES)))]
    rotary = 2 * draw(st.integers(1, 35))
    lead = (draw(st.integers(1, 2)), draw(st.integers(1, 9)), draw(st.integers(1, 3)))
    shape = (*lead, rotary + draw(st.integers(0, 20)))
    table = tuple(draw(st.sampled_from((1, extent))) for extent in shape[:-1])
    op = rope(shape, rotary, draw(st.booleans()), draw(st.booleans()), table)
    point = {knob.name: draw(st.sampled_from(knob.choices)) for knob in SPACE.knobs(op, machine)}
    check_points(SPACE, op, [point], machine)


def test_refusals():
    machine = MACHINES["avx2"]
    assert SPACE.refuses(Softmax((3,), 4), machine) == "not a rotary embedding"
    assert SPACE.refuses(rope((2, 0, 4)), machine) == "an extent is zero"
    assert SPACE.refuses(rope((2, 3, 4)), machine) is None


def test_pairs_are_exchanged_in_registers():
    machine = MACHINES["avx2"]
    op = rope((4, 32), interleaved=True)
    ir = llvm_of(SPACE.emit(op, SPACE.default(op, machine), machine))
    assert "shufflevector <8 x float>" in ir
