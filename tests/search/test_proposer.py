import pytest

from hetero_tvm.records.candidates import candidate_key
from hetero_tvm.search.cost_model import SpaceModel
from hetero_tvm.search.proposer import PointProposer, StockProposer
from tests.search.spaces import MACHINE, IdleKnob, ScaleSpace, SinglePoint, TinySpace, generic_matmul, task

TARGET = MACHINE.codegen_target()


def proposer(space=None, seed=0):
    return PointProposer(task(space or ScaleSpace()), MACHINE, TARGET, SpaceModel(seed), seed, batch=4)


def seconds(candidate):
    return 1e-3 * candidate["point"]["repeat"] * (1 + 0.1 * candidate["point"]["pieces"])


def explore(proposer, most=100):
    order = [proposer.default()]
    proposer.learn(order[0], seconds(order[0]))
    while len(order) < most and (proposed := proposer.propose(4)):
        for candidate in proposed:
            proposer.learn(candidate, seconds(candidate))
        order += proposed
    return [candidate_key(candidate) for candidate in order]


def test_every_point_once():
    keys = explore(proposer())
    assert len(keys) == len(set(keys)) == 12
    assert len(explore(proposer(TinySpace()))) == 3
    assert len(explore(proposer(SinglePoint()))) == 1


def test_one_kernel_under_several_points_is_proposed_once():
    keys = explore(proposer(IdleKnob()))
    assert len(keys) == len(set(keys)) == 10
    assert sum('"repeat": 1' in key for key in keys) == 1
    known = proposer(IdleKnob())
    known.learn({"point": {"repeat": 1, "pieces": 4}}, 1e-3)
    assert not any('"repeat": 1' in key for key in explore(known))


def test_the_same_seed_proposes_the_same():
    assert explore(proposer(seed=5)) == explore(proposer(seed=5))


def test_good_points_early():
    """The estimate says that little repetition is fast: such points are proposed first."""
    keys = explore(proposer(), most=5)
    assert sum('"repeat": 1' in key for key in keys[1:]) >= 2


def test_known_points_are_not_proposed():
    first = proposer()
    for pieces in (1, 2, 4):
        for repeat in (1, 2, 4):
            first.learn({"point": {"repeat": repeat, "pieces": pieces}}, 1e-3 * repeat)
    keys = {candidate_key(candidate) for _ in range(3) for candidate in first.propose(4)}
    assert all('"repeat": 8' in key for key in keys)


def test_points_of_another_version_of_the_space_are_ignored():
    first = proposer()
    first.learn({"point": {"repeat": 3, "pieces": 1}}, 1e-3)
    first.learn({"point": {"other": 3}}, 1e-3)
    assert len(explore(first)) == 12


@pytest.mark.parametrize("failed", [False, True])
def test_stock_rules(failed):
    stock = StockProposer(generic_matmul(), TARGET, 0, batch=4)
    seen = set()
    for _ in range(3):
        proposed = stock.propose(4)
        for candidate in proposed:
            assert candidate["trace"] not in seen
            seen.add(candidate["trace"])
            stock.learn(candidate, None if failed else 1e-3)
    assert len(seen) >= 6
    again = StockProposer(generic_matmul(), TARGET, 0, batch=4)
    for trace in seen:
        again.learn({"trace": trace}, 1e-3)
    assert all(candidate["trace"] not in seen for candidate in again.propose(4))
