import itertools

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.errors import CapacityError, InputError, UsageError
from hetero_tvm.generation.beams import BeamSearch, search_beams
from tests import tiny_llama

PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def model():
    return hetero_tvm.load_language_model(tiny_llama.built(), cache_tokens=12 * tiny_llama.PAGE)


def chances(text):
    """Logarithms of the probabilities of what follows each token, by NumPy."""
    logits = tiny_llama.logits(text)
    top = logits.max(-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))


def likelihood(tokens):
    rows = chances([*PROMPT, *tokens])
    return sum(rows[len(PROMPT) - 1 + n, token] for n, token in enumerate(tokens))


def test_many_beams_find_the_likeliest_text(model):
    """The best of all pairs of tokens, by brute force: what the search cuts off is less likely than these."""
    first = chances(PROMPT)[-1]
    pairs = {}
    for token in range(tiny_llama.CONFIG["vocab_size"]):
        for other, chance in enumerate(chances([*PROMPT, token])[-1]):
            pairs[token, other] = first[token] + chance
    best = sorted(pairs, key=pairs.get, reverse=True)[:3]
    count = model.facts.rows
    assert np.sort(first)[-count - 1] < pairs[best[-1]]
    wide = hetero_tvm.load_language_model(tiny_llama.built(), cache_tokens=(count + 1) * tiny_llama.PAGE)
    found = search_beams(wide, PROMPT, search=BeamSearch(count), max_new_tokens=2, stop=())[:3]
    assert [tuple(beam.tokens) for beam in found] == best
    # Sums of float32 logits beside float64: a few units in the last place of numbers near 10.
    np.testing.assert_allclose([2 * beam.score for beam in found], [pairs[p] for p in best], atol=2e-5)
    assert wide.pool.free == wide.pool.pages


def test_scores_are_those_of_the_texts_and_in_order(model):
    found = search_beams(model, PROMPT, search=BeamSearch(3, length_penalty=0.5), max_new_tokens=20, stop=())
    assert [beam.reason for beam in found] == ["length"] * 3
    for beam in found:
        assert beam.score == pytest.approx(likelihood(beam.tokens) / 20**0.5, abs=2e-4)
    assert all(a.score >= b.score for a, b in itertools.pairwise(found))
    assert model.pool.free == model.pool.pages


def test_one_beam_is_greedy(model):
    [beam] = search_beams(model, PROMPT, search=BeamSearch(1), max_new_tokens=12, stop=())
    assert beam.tokens == tiny_llama.greedy(PROMPT, 12)


def test_texts_that_end_are_kept_beside_those_that_go_on(model):
    likeliest = int(np.argmax(chances(PROMPT)[-1]))
    every = search_beams(model, PROMPT, search=BeamSearch(3), max_new_tokens=8, stop=[likeliest])
    assert {beam.reason for beam in every} <= {"stop", "length"}
    assert [likeliest] in [beam.tokens for beam in every]
    early = search_beams(model, PROMPT, search=BeamSearch(3, early=True), max_new_tokens=8, stop=[likeliest])
    assert len(early) == 3
    assert all(likeliest not in beam.tokens[:-1] for beam in (*every, *early))


def test_a_search_that_never_ends_early_counts_the_length_that_texts_may_have(model):
    """Long texts are favoured so much that those which go on can overtake, whatever has ended."""
    likeliest = int(np.argmax(chances(PROMPT)[-1]))

    def search(early):
        rules = BeamSearch(2, length_penalty=3.0, early=early)
        return search_beams(model, PROMPT, search=rules, max_new_tokens=24, stop=[likeliest, 3, 8])

    last = {early: max(len(beam.tokens) for beam in search(early)) for early in (True, "never")}
    assert last["never"] >= last[True] and last["never"] == 24
    with pytest.raises(UsageError, match="'never'"):
        BeamSearch(2, early="always")


def test_room_for_all_beams_or_an_error(model):
    with pytest.raises(CapacityError, match="cache is full"):
        search_beams(model, list(range(40)), search=BeamSearch(12), max_new_tokens=40, stop=())
    assert model.pool.free == model.pool.pages
    assert search_beams(model, PROMPT, search=BeamSearch(2), max_new_tokens=1)


@pytest.mark.parametrize("bad", [{"count": 0}, {"length_penalty": float("nan")}, {"repetition_penalty": 0}])
def test_impossible_rules(bad):
    with pytest.raises(UsageError, match=next(iter(bad))):
        BeamSearch(**bad)


def test_impossible_searches(model):
    with pytest.raises(UsageError, match="beams; a step of the model"):
        search_beams(model, PROMPT, search=BeamSearch(model.facts.rows + 1))
    with pytest.raises(InputError, match="0 new tokens"):
        search_beams(model, PROMPT, max_new_tokens=0)
    with pytest.raises(InputError, match="token"):
        search_beams(model, [1000])
