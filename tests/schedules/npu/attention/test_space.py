import pytest

from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.npu.attention.space import NpuAttentionSpace
from hetero_tvm.schedules.npu.attention.tiles import Tiles, fits
from tests.schedules.npu.running import machine

SPACE = NpuAttentionSpace()


@pytest.mark.parametrize("preset", ["edge", "mobile", "datacenter"])
def test_long_sequences_fit(preset):
    for length, causal in ((2048, True), (4096, False)):
        op = Attention(1, 12, length, length, 64, 0.125, 12, causal=causal)
        assert SPACE.refuses(op, machine(preset)) is None


def test_other_operators_are_refused():
    assert SPACE.refuses(Softmax((4,), 8), machine()) == "is for attention, not softmax"


def test_a_point_is_kept_where_it_fits_and_replaced_where_it_does_not():
    op, mach, held = Attention(1, 2, 64, 64, 32, 0.2, 2), machine(), frozenset({1, 2})
    kept = SPACE.default(op, mach)
    assert SPACE.fitted(op, kept, mach, held, 64 << 10) == kept
    large = {"tiles": max(SPACE.knobs(op, mach)[0].choices, key=lambda tiles: (tiles[5], tiles[0]))}
    assert not fits(op, Tiles.of(large), mach.spec, frozenset(), 16 << 10)
    other = SPACE.fitted(op, large, mach, frozenset(), 16 << 10)
    assert other is not None and fits(op, Tiles.of(other), mach.spec, frozenset(), 16 << 10)
    assert SPACE.fitted(op, kept, mach, frozenset(), 256) is None
