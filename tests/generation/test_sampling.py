import numpy as np
import pytest

from hetero_tvm.errors import UsageError
from hetero_tvm.generation.sampling import GREEDY, Sampling, drawn

LOGITS = np.array([1.0, 3.0, 2.0, -1.0, 2.5], np.float32)


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def test_greedy_takes_the_first_of_the_largest():
    assert GREEDY.choose(np.array([1.0, 2.0, 2.0]), (), None) == 1
    np.testing.assert_array_equal(GREEDY.distribution(LOGITS), [0, 1, 0, 0, 0])


def test_temperature_and_cuts():
    np.testing.assert_allclose(
        Sampling(temperature=0.5).distribution(LOGITS), softmax(LOGITS / 0.5), rtol=1e-6
    )
    two = Sampling(temperature=1.0, top_k=2).distribution(LOGITS)
    np.testing.assert_allclose(two[[1, 4]], softmax(LOGITS[[1, 4]]), rtol=1e-6)
    assert two[[0, 2, 3]].sum() == 0
    whole = softmax(LOGITS.astype(np.float64))
    most = whole[1] + whole[4]
    kept = Sampling(temperature=1.0, top_p=most - 1e-9).distribution(LOGITS)
    assert set(np.flatnonzero(kept)) == {1, 4}
    kept = Sampling(temperature=1.0, top_p=most + 1e-9).distribution(LOGITS)
    assert set(np.flatnonzero(kept)) == {1, 4, 2}
    for least in (1e-9, 0):  # clients of OpenAI's API write 0
        assert set(np.flatnonzero(Sampling(temperature=1.0, top_p=least).distribution(LOGITS))) == {1}
    kept = Sampling(temperature=1.0, min_p=0.5).distribution(LOGITS)
    assert set(np.flatnonzero(kept)) == {1, 4}
    assert Sampling(temperature=1.0, top_k=99).distribution(LOGITS).all()


def test_penalties_of_what_was_generated_and_biases():
    text = [0, 1, 1, 1, 4]  # the first two were given
    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.25).behind(2)
    np.testing.assert_allclose(sampling.adjusted(LOGITS, text), LOGITS - [0, 1.0, 0, 0, 0.75])
    assert sampling.adjusted(LOGITS, text[:2]) == pytest.approx(LOGITS)
    assert Sampling(bias=((3, 100.0),)).choose(LOGITS, (), None) == 3
    assert Sampling(bias=((1, -100.0),)).choose(LOGITS, (), None) == 4
    with pytest.raises(UsageError, match="presence_penalty is 3.0"):
        Sampling(presence_penalty=3.0)


def test_repetition_penalty():
    adjusted = Sampling(2.0).adjusted(LOGITS, [1, 1, 3])
    np.testing.assert_array_equal(adjusted, [1.0, 1.5, 2.0, -2.0, 2.5])
    assert Sampling(2.0).choose(LOGITS, [1], None) == 4
    assert LOGITS[1] == 3.0


def test_the_penalty_of_the_checkpoint_counts_where_none_is_asked_for():
    assert Sampling().behind(1, 2.0).choose(LOGITS, [1], None) == 4
    assert Sampling(1.0).behind(1, 2.0).choose(LOGITS, [1], None) == 1
    assert Sampling().choose(LOGITS, [1], None) == 1


def test_draws_follow_the_distribution():
    """20,000 draws: within five standard deviations of each probability."""
    sampling, random = Sampling(temperature=1.3), np.random.default_rng(0)
    wanted = sampling.distribution(LOGITS)
    counts = np.bincount([drawn(wanted, random) for _ in range(20_000)], minlength=5) / 20_000
    assert np.all(np.abs(counts - wanted) < 5 * np.sqrt(wanted * (1 - wanted) / 20_000))
    assert drawn(np.array([0.0, 1.0, 0.0]), random) == 1


def test_impossible_options_are_listed():
    with pytest.raises(UsageError) as caught:
        Sampling(0, -1, -2, 1.5, 2)
    assert len(caught.value.problems) == 5


def test_the_least_of_temperatures_is_greedy():
    for temperature in (1e-30, 1e-320):
        np.testing.assert_array_equal(Sampling(temperature=temperature).distribution(LOGITS), [0, 1, 0, 0, 0])


def test_seeds_and_biases_of_callers():
    assert Sampling(seed=-1).random().random() == Sampling(seed=(1 << 64) - 1).random().random()
    assert Sampling(bias={3: 100.0}) == Sampling(bias=((3, 100.0),))
    wrong = {"seed": 1.5, "top_k": 2.5, "bias": ((3, float("nan")),)}
    with pytest.raises(UsageError) as caught:
        Sampling(**wrong)
    assert len(caught.value.problems) == 3
    with pytest.raises(UsageError, match="bias"):
        Sampling(bias=(3, 4))
