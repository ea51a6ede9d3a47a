import numpy as np
import pytest

from hetero_tvm.machines.npu.numbers import numpy_dtype
from hetero_tvm.ops.attention import Attention
from hetero_tvm.schedules.npu.attention.space import NpuAttentionSpace
from hetero_tvm.schedules.npu.attention.tiles import Tiles
from tests.schedules.npu.running import assert_close, machine, run, sample
from tests.selection import thorough

SPACE = NpuAttentionSpace()


def masked(op):
    """Operands whose mask hides some keys, as exporters write it: the lowest float32."""
    arrays = sample(op)
    if op.mask:
        hidden = np.random.default_rng(1).random(op.mask) < 0.3
        arrays[-1] = np.where(hidden, np.finfo(np.float32).min, 0).astype(np.float32)
        arrays[-1][..., 0] = 0
    return arrays


@pytest.mark.parametrize("preset", ["edge", "mobile"])
@pytest.mark.parametrize(
    "op",
    [
        Attention(2, 3, 20, 20, 16, 0.25, 3, packed=True, mask=(2, 1, 1, 20)),
        Attention(1, 4, 17, 33, 8, 0.3, 2, causal=True),
        Attention(1, 2, 40, 40, 12, 0.3, 2, mask=(1, 1, 40, 40)),
        Attention(1, 1, 1, 1, 4, 0.3, 1),
        Attention(1, 2, 20, 20, 8, 0.3, 2, causal=True, window=5, softcap=3.0, value_dim=12),
        Attention(4, 2, 9, 9, 8, 0.3, 1, packed=True, mask=(2, 2, 9, 9)),
        Attention(1, 2, 70, 300, 64, 0.125, 2, mask=(1, 2, 1, 1)),
        Attention(
            2,
            4,
            9,
            9,
            16,
            0.25,
            2,
            tensors=((2, 4, 9, 16), (2, 2, 9, 16), (2, 2, 9, 16)),
            places=((0, 0, 576, 144, 16), (1, 0, 288, 144, 16), (2, 0, 288, 144, 16)),
        ),
    ],
    ids=lambda op: op.label,
)
def test_default_tiles_give_the_contract(op, preset):
    assert SPACE.refuses(op, machine(preset)) is None
    assert_close(SPACE, op, machine(preset), masked(op))


@pytest.mark.thorough
def test_every_choice_gives_the_contract():
    op, mach = Attention(1, 2, 40, 72, 16, 0.25, 2, mask=(1, 1, 1, 72)), machine("edge")
    choices = SPACE.knobs(op, mach)[0].choices
    assert len(choices) > 5
    for tiles in choices[:: max(1, len(choices) // 5)]:
        assert_close(SPACE, op, mach, masked(op), point={"tiles": tiles})


def test_a_query_that_sees_nothing_gives_zero_when_the_contract_says_so():
    op = Attention(1, 1, 6, 8, 8, 0.3, 1, mask=(1, 1, 6, 8), zero_masked=True)
    arrays = sample(op)
    arrays[-1] = np.zeros(op.mask, np.float32)
    arrays[-1][0, 0, 2] = -np.inf
    assert_close(SPACE, op, machine(), arrays)


def rounded(array, dtype):
    """The array as the machine keeps it, so that only the kernel's own errors are seen."""
    return array.astype(numpy_dtype({"float16": "f16", "bfloat16": "bf16"}[dtype])).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", [1e2, 1e4, 1e6])
def test_scores_of_any_size_give_the_contract(size, dtype):
    """float16 ends at 65504; keys hidden by the lowest float32, float16 and a query that sees nothing."""
    op = Attention(1, 2, 9, 20, 8, 0.3, 1, mask=(1, 1, 9, 20))
    grown = np.sqrt(size / (op.scale * np.sqrt(op.head_dim)))
    arrays = [rounded(a * f, dtype) for a, f in zip(sample(op), (grown, grown, 1.0, 0.0), strict=True)]
    mask, hidden = arrays[-1], np.random.default_rng(1).random(op.mask) < 0.3
    mask[hidden] = np.finfo(np.float32).min
    mask[..., 3:6, 5] = -65504.0
    mask[..., 7, :] = np.finfo(np.float32).min
    for tiles in ((9, 1, 20, 20, 20, 1), (9, 1, 8, 8, 8, 0)):
        assert_close(SPACE, op, machine("mobile", dtype), arrays, {"tiles": tiles})


def test_sums_of_large_values_do_not_overflow():
    op = Attention(1, 1, 4, 64, 8, 1e-3, 1)
    query, key, value = sample(op)
    value[...] = 30000.0
    assert_close(SPACE, op, machine("mobile"), [query, key, value])


@pytest.mark.parametrize(
    "op",
    [
        Attention(1, 2, 33, 70, 16, 0.3, 1, causal=True),
        *thorough([Attention(1, 2, 33, 70, 16, 0.3, 2, causal=True, window=9, softcap=5.0)]),
        Attention(1, 2, 7, 5, 8, 0.3, 2, causal=True, zero_masked=True),
        Attention(2, 6, 1, 77, 16, 0.3, 2, mask=(2, 1, 1, 77), value_dim=11),
        Attention(1, 2, 40, 90, 13, 0.3, 2, mask=(1, 2, 40, 90)),
    ],
    ids=lambda op: op.label,
)
def test_softmax_by_blocks_of_keys_gives_the_contract(op):
    """Blocks that no query sees left out; heads that share keys in one tile; loaded once or every time."""
    mach = machine("edge")
    online = [t for t in (Tiles(*c) for c in SPACE.knobs(op, mach)[0].choices) if t.block < op.kv_len]
    kinds = {(t.resident, t.heads, t.block): t for t in reversed(online)}
    for tiles in list(kinds.values())[:: max(1, len(kinds) // 4)]:
        assert_close(SPACE, op, mach, masked(op), point={"tiles": tiles.choice()})


def test_a_causal_tile_leaves_out_what_it_cannot_see():
    whole = Attention(1, 1, 256, 256, 16, 0.25, 1)
    causal = Attention(1, 1, 256, 256, 16, 0.25, 1, causal=True)
    point = {"tiles": (32, 1, 32, 32, 32, 1)}
    cycles = [run(SPACE, op, machine("edge"), sample(op), point)[1].counters.cycles for op in (whole, causal)]
    assert cycles[1] < 0.75 * cycles[0]


def test_keys_that_do_not_fit_pass_through_in_tiles():
    """The smallest machine; queries of several tiles, a mask, shared heads."""
    op, mach = Attention(1, 2, 9, 600, 64, 0.125, 1, mask=(1, 1, 1, 600)), machine("edge")
    point = SPACE.default(op, mach)
    assert Tiles.of(point).block < op.kv_len
    assert_close(SPACE, op, mach, masked(op))


@pytest.mark.parametrize("dim", [128, 160, 256])
def test_wide_heads_fit_the_smallest_machine(dim):
    op, mach = Attention(1, 2, 20, 40, dim, 0.1, 1, causal=True), machine("edge")
    assert SPACE.refuses(op, mach) is None
    assert_close(SPACE, op, mach)
