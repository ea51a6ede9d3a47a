"""The order of tiles, against the keys that every query sees."""

import pytest

from hetero_tvm.host.tvm import tirx, tvm
from hetero_tvm.ops.attention import Attention
from hetero_tvm.schedules.npu.attention.tiles import Tiles
from hetero_tvm.schedules.npu.attention.walk import Walk

CASES = [
    (Attention(1, 2, 20, 20, 8, 0.3, 2), Tiles(8, 1, 20, 20, 20, 1)),
    (Attention(2, 2, 20, 33, 8, 0.3, 1), Tiles(8, 1, 16, 16, 16, 2)),
    (Attention(1, 2, 33, 70, 8, 0.3, 2, causal=True), Tiles(16, 1, 24, 24, 24, 1)),
    (Attention(1, 4, 33, 70, 8, 0.3, 2, causal=True, window=9), Tiles(16, 1, 8, 8, 8, 1)),
    (Attention(1, 4, 6, 40, 8, 0.3, 2, causal=True), Tiles(6, 2, 16, 16, 16, 0)),
    (Attention(1, 1, 7, 5, 8, 0.3, 1, causal=True), Tiles(4, 1, 5, 5, 5, 0)),
]


def label(case):
    return getattr(case, "label", "")


def number(x):
    return x if isinstance(x, int) else int(tvm.sym.Analyzer().simplify(x))


def sees(op, query, key):
    """Whether a query sees a key, without the mask that is an operand."""
    last = query + op.kv_len - op.q_len
    return not op.causal or (key <= last and (not op.window or key > last - op.window))


def steps_of(walk):
    """(round, step number, step) in the order of the loops, with plain numbers."""
    for it in range(walk.rounds):
        index = tirx.IntImm("int32", it)
        for n in range(number(walk.steps(index))):
            step = walk.step(index, tirx.IntImm("int32", n))
            yield it, n, {name: number(value) for name, value in vars(step).items()}


@pytest.mark.parametrize("op, tiles", CASES, ids=label)
def test_the_steps_of_a_round_cover_what_its_queries_see(op, tiles):
    walk, seen = Walk(op, tiles), {}
    for it, _, s in steps_of(walk):
        queries = (s["batch"], s["head"], s["row"], s["high"])
        assert s["wide"] <= tiles.block and s["kv_head"] == s["head"] // (op.heads // op.kv_heads)
        seen.setdefault((it, queries), []).append(range(s["first"], s["first"] + s["wide"]))
    assert [it for it, _ in seen] == list(range(walk.rounds)) and len({q for _, q in seen}) == walk.rounds
    assert walk.rounds == op.batch * op.heads // tiles.heads * -(-op.q_len // tiles.tq)
    for (_, (_, _, row, high)), parts in seen.items():
        keys = [key for part in parts for key in part]
        assert len(keys) == len(set(keys)) and set(keys) <= set(range(op.kv_len))
        queries = range(row, row + high)
        assert {k for k in range(op.kv_len) if any(sees(op, q, k) for q in queries)} <= set(keys)
        if len(parts) > 1:
            assert all(any(sees(op, q, k) for q in queries for k in part) for part in parts)


@pytest.mark.parametrize("op, tiles", CASES, ids=label)
def test_the_step_before_is_the_one_before(op, tiles):
    walk = Walk(op, tiles)
    order = [(it, n) for it, n, _ in steps_of(walk)]
    for before, (it, n) in zip(order, [*order[1:], (walk.rounds, 0)], strict=True):
        found = walk.previous(tirx.IntImm("int32", it), tirx.IntImm("int32", n))
        assert tuple(map(number, found)) == before


@pytest.mark.parametrize("op, tiles", [case for case in CASES if case[1].resident], ids=label)
def test_a_block_is_loaded_by_the_first_step_that_sees_it(op, tiles):
    walk, loaded = Walk(op, tiles), set()
    for it, n, s in steps_of(walk):
        block = (s["batch"], s["kv_head"], s["first"] // tiles.block)
        fresh = walk.loads(tirx.IntImm("int32", it), tirx.IntImm("int32", n))
        assert bool(fresh is True or number(fresh)) == (block not in loaded), (it, n)
        loaded.add(block)
