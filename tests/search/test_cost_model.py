import numpy as np

from hetero_tvm.search.cost_model import SpaceModel


def correlation(a, b):
    return np.corrcoef(np.argsort(np.argsort(a)), np.argsort(np.argsort(b)))[0, 1]


def points(rng, count):
    knobs = [rng.integers(0, 8, count), rng.integers(0, 4, count)]
    return np.column_stack([*knobs, rng.uniform(0.5, 1.0, count)])


def seconds(features, scale=1.0):
    """The estimate (last column) holds, but for an effect of the first two that it does not know."""
    return scale * (1 + 0.3 * np.abs(features[:, 0] - 5) + (features[:, 1] == 2)) / features[:, 2]


def test_without_data_the_estimate_ranks():
    features = points(np.random.default_rng(0), 20)
    assert correlation(SpaceModel().score(features), features[:, 2]) > 0.999


def test_it_learns_what_the_estimate_misses():
    rng = np.random.default_rng(0)
    model, train, test = SpaceModel(), points(rng, 60), points(rng, 200)
    before = correlation(model.score(test), -seconds(test))
    for row, s in zip(train, seconds(train), strict=True):
        model.add("task", row, s)
    after = correlation(model.score(test), -seconds(test))
    assert after > 0.9 > before


def test_what_is_learnt_on_one_task_serves_another():
    rng = np.random.default_rng(1)
    model, test = SpaceModel(), points(rng, 200)
    for task, scale in (("small", 1e-5), ("large", 1.0)):
        train = points(rng, 30)
        for row, s in zip(train, seconds(train, scale), strict=True):
            model.add(task, row, s)
    assert correlation(model.score(test), -seconds(test)) > 0.85


def test_failures_rank_last_and_scores_repeat():
    rng = np.random.default_rng(2)

    def trained():
        model, features = SpaceModel(seed=3), points(np.random.default_rng(2), 80)
        for row in features:
            model.add("task", row, None if row[1] == 0 else 1.0)
        return model

    test = points(rng, 100)
    scores = trained().score(test)
    assert scores[test[:, 1] == 0].max() < scores[test[:, 1] != 0].min()
    assert (scores == trained().score(test)).all()


def test_only_failures():
    model = SpaceModel()
    for row in points(np.random.default_rng(0), 20):
        model.add("task", row, None)
    assert np.isfinite(model.score(points(np.random.default_rng(1), 5))).all()
