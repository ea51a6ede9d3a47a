import pytest

from hetero_tvm.records.candidates import candidate_key
from hetero_tvm.search import points
from hetero_tvm.search.cost_model import SpaceModel
from hetero_tvm.search.proposer import PointProposer, StockProposer
from tests.search.spaces import MACHINE, IdleKnob, ScaleSpace, SinglePoint, TinySpace, generic_matmul, task

TARGET = MACHINE.codegen_target()


@pytest.fixture(params=["ranked", "evolved"])
def way(request, monkeypatch):
    """Both ways to find points: all of them ranked, and evolution, which larger spaces get."""
    if request.param == "evolved":
        monkeypatch.setattr(points, "MOST", 1)
    return request.param


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


def test_evolution_repeats_no_point_and_misses_few(monkeypatch):
    monkeypatch.setattr(points, "MOST", 1)
    keys = explore(proposer())
    assert len(keys) == len(set(keys)) >= 9
    assert len(set(explore(proposer(TinySpace())))) >= 2


def test_the_best_by_the_model_are_proposed():
    """Of a space that is ranked as a whole nothing is left to chance but one point in eight."""
    found = proposer()
    found.learn(found.default(), seconds(found.default()))
    repeats = [one["point"]["repeat"] for one in found.propose(3)]
    assert repeats == [1, 1, 2]  # a third neighbour of the first two would say little


def test_the_model_says_how_far_points_are_apart():
    found = proposer()
    far, near = ({"point": {"repeat": repeat, "pieces": 2}} for repeat in (8, 1))
    assert found.predicted(far, near) == pytest.approx(8)
    assert found.predicted(far, {"point": {"other": 1}}) is None


def test_one_kernel_under_several_points_is_proposed_once(way):
    keys = explore(proposer(IdleKnob()))
    assert len(keys) == len(set(keys)) and (len(keys) == 10 or way == "evolved")
    assert sum('"repeat": 1' in key for key in keys) <= 1
    known = proposer(IdleKnob())
    known.learn({"point": {"repeat": 1, "pieces": 4}}, 1e-3)
    assert not any('"repeat": 1' in key for key in explore(known))


def test_the_same_seed_proposes_the_same(way):
    assert explore(proposer(seed=5)) == explore(proposer(seed=5))


def test_good_points_early(way):
    """The estimate says that little repetition is fast: such points are proposed first."""
    keys = explore(proposer(), most=5)
    assert sum('"repeat": 1' in key for key in keys[1:]) >= 2


def test_known_points_are_not_proposed(way):
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
    keys = explore(first)
    assert len(keys) == len(set(keys)) == 12


def test_ctrl_c_while_candidates_are_ranked_is_one(monkeypatch):
    def score(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(SpaceModel, "score", score)
    with pytest.raises(KeyboardInterrupt):
        proposer().propose(4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("failed", [False, True])
def test_stock_rules(failed):
    stock = StockProposer(generic_matmul(), MACHINE, TARGET, 0, batch=4)
    seen = set()
    for _ in range(3):
        proposed = stock.propose(4)
        for candidate in proposed:
            assert candidate["trace"] not in seen
            seen.add(candidate["trace"])
            stock.learn(candidate, None if failed else 1e-3)
    assert len(seen) >= 6
    again = StockProposer(generic_matmul(), MACHINE, TARGET, 0, batch=4)
    for trace in seen:
        again.learn({"trace": trace}, 1e-3)
    assert all(candidate["trace"] not in seen for candidate in again.propose(4))
