import numpy as np

from hetero_tvm.search import cost_model
from hetero_tvm.search.cost_model import Description, SpaceModel


def correlation(a, b):
    return np.corrcoef(np.argsort(np.argsort(a)), np.argsort(np.argsort(b)))[0, 1]


def points(rng, count):
    knobs = [rng.integers(0, 8, count), rng.integers(0, 4, count)]
    return np.column_stack([*knobs, rng.uniform(0.5, 1.0, count)])


def described(features):
    """Points whose estimate is the last column, a share of the peak."""
    return [Description(tuple(row[:-1]), 1 / row[-1]) for row in features]


def seconds(features, scale=1.0):
    """The estimate (last column) holds, but for an effect of the first two that it does not know."""
    return scale * (1 + 0.3 * np.abs(features[:, 0] - 5) + (features[:, 1] == 2)) / features[:, 2]


def test_without_data_the_estimate_ranks():
    features = points(np.random.default_rng(0), 20)
    assert correlation(SpaceModel().score(described(features)), features[:, 2]) > 0.999


def test_it_learns_what_the_estimate_misses():
    rng = np.random.default_rng(0)
    model, train, test = SpaceModel(), points(rng, 60), points(rng, 200)
    before = correlation(model.score(described(test)), -seconds(test))
    for row, s in zip(described(train), seconds(train), strict=True):
        model.add("task", row, s)
    after = correlation(model.score(described(test)), -seconds(test))
    assert after > 0.9 > before


def test_what_is_learnt_on_one_task_serves_another():
    rng = np.random.default_rng(1)
    model, test = SpaceModel(), points(rng, 200)
    for task, scale in (("small", 1e-5), ("large", 1.0)):
        train = points(rng, 30)
        for row, s in zip(described(train), seconds(train, scale), strict=True):
            model.add(task, row, s)
    assert correlation(model.score(described(test)), -seconds(test)) > 0.85


def test_failures_rank_last_and_scores_repeat():
    rng = np.random.default_rng(2)

    def trained():
        model, features = SpaceModel(seed=3), points(np.random.default_rng(2), 80)
        for row, one in zip(features, described(features), strict=True):
            model.add("task", one, None if row[1] == 0 else 1.0)
        return model

    test = points(rng, 100)
    scores = trained().score(described(test))
    assert scores[test[:, 1] == 0].max() < scores[test[:, 1] != 0].min()
    assert (scores == trained().score(described(test))).all()


def test_only_failures():
    model = SpaceModel()
    for one in described(points(np.random.default_rng(0), 20)):
        model.add("task", one, None)
    assert np.isfinite(model.score(described(points(np.random.default_rng(1), 5)))).all()


def test_trees_of_an_earlier_run_are_where_a_model_begins():
    rng = np.random.default_rng(4)
    earlier, test = SpaceModel(), points(rng, 200)
    train = points(rng, 60)
    for one, s in zip(described(train), seconds(train), strict=True):
        earlier.add("task", one, s)
    begun = SpaceModel(base=earlier.booster())
    assert correlation(begun.score(described(test)), -seconds(test)) > 0.9
    other = points(rng, 40)  # a machine on which the first knob means nothing
    for one, row in zip(described(other), other, strict=True):
        begun.add("task", one, (1 + (row[1] == 2)) / row[2])
    truth = (1 + (test[:, 1] == 2)) / test[:, 2]
    assert correlation(begun.score(described(test)), -truth) > 0.8


def test_nothing_measured_gives_no_trees():
    assert SpaceModel().booster() is None


def test_without_xgboost_measurements_still_bend_the_estimate(monkeypatch):
    """Ridge regression finds which of two features the estimate is wrong about."""
    monkeypatch.setattr(cost_model, "has_trees", lambda: False)
    rng = np.random.default_rng(0)
    points = [Description((float(a), float(b)), 1.0) for a, b in rng.random((60, 2))]
    seconds = [np.exp(-3 * point.features[0]) for point in points]
    model = SpaceModel()
    assert np.ptp(model.score(points)) == 0  # all estimates are equal
    for point, one in zip(points[:30], seconds, strict=False):
        model.add("task", point, one)
    scores = model.score(points[30:])
    assert np.corrcoef(scores, -np.log(seconds[30:]))[0, 1] > 0.95
    for point in points[:3]:
        model.add("failed", point, None)
    assert np.isfinite(model.score(points)).all()
