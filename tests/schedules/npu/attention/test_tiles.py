"""Tiles that are said to fit a machine, against what the compiled kernel takes of its scratchpads."""

import random

import pytest

from hetero_tvm.ops.attention import Attention
from hetero_tvm.schedules.npu.attention.kernel import AttentionEmitter
from hetero_tvm.schedules.npu.attention.space import NpuAttentionSpace
from hetero_tvm.schedules.npu.attention.tiles import estimate, fits, ranked
from hetero_tvm.targets.npu.regions.codegen import generate
from tests.schedules.npu.running import assert_close, machine

OPS = [
    Attention(1, 2, 70, 300, 64, 0.125, 2, mask=(1, 1, 1, 300)),
    Attention(1, 4, 40, 40, 160, 0.1, 2, causal=True),
    Attention(1, 2, 33, 90, 13, 0.3, 2, mask=(1, 2, 33, 90), value_dim=24),
]


@pytest.mark.thorough
@pytest.mark.parametrize("preset", ["edge", "datacenter"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.label)
def test_what_fits_compiles(op, preset):
    mach = machine(preset)
    tiles = ranked(op, mach.spec)
    assert tiles and all(fits(op, t, mach.spec) for t in tiles)
    for t in random.Random(0).sample(tiles, min(4, len(tiles))):
        program = generate(AttentionEmitter(op, t, mach).run(), mach.spec)
        for memory, need in program.needs.items():
            assert need <= mach.spec.scratchpad(memory), (t, memory)


@pytest.mark.exhaustive
def test_the_best_by_estimate_are_the_best_by_cycles():
    """The first tiles of the list against the last."""
    op, mach = Attention(1, 4, 128, 128, 32, 0.2, 4), machine("mobile")
    tiles = ranked(op, mach.spec)
    costs = [estimate(op, t, mach.spec) for t in tiles]
    assert costs == sorted(costs)
    space = NpuAttentionSpace()
    first, last = (assert_close(space, op, mach, point={"tiles": t.choice()}) for t in (tiles[0], tiles[-1]))
    assert first.counters.cycles < last.counters.cycles
