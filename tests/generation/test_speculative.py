"""Speculative decoding gives what the large model alone would give."""

import dataclasses
from collections import Counter

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.errors import CapacityError, InputError
from hetero_tvm.generation.generate import stream
from hetero_tvm.generation.sampling import Sampling
from hetero_tvm.generation.speculative import speculate
from tests import tiny_llama

PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def model():
    return hetero_tvm.load_language_model(tiny_llama.built())


class Noisy:
    """The model with noise on its logits: a draft that is often, but not always right."""

    def __init__(self, model, noise):
        self.facts, self._model, self._noise = model.facts, model, noise

    def session(self):
        session, random = self._model.session(), np.random.default_rng(0)
        append = session.append
        session.append = lambda tokens: append(tokens) + random.normal(0, self._noise, self.facts.vocab)
        return session


@pytest.mark.parametrize("noise", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("guesses", [1, 4])
def test_greedy_tokens_are_those_of_the_model(model, noise, guesses):
    want = tiny_llama.greedy(PROMPT, 20)
    got = speculate(model, Noisy(model, noise), PROMPT, max_new_tokens=20, stop=(), guesses=guesses)
    assert list(got) == want
    got = speculate(model, Noisy(model, noise), PROMPT, max_new_tokens=20, stop=[want[7]], guesses=guesses)
    assert list(got) == want[: want.index(want[7]) + 1]
    assert model.pool.free == model.pool.pages


@pytest.mark.exhaustive
def test_draws_have_the_distribution_of_the_model(model):
    """The tokens of 1,500 texts, whatever the draft says: within 5 standard deviations for each pair."""
    sampling = Sampling(temperature=1.0, top_k=3)
    draft, counts, count = Noisy(model, 2.0), Counter(), 1500
    for seed in range(count):
        drawn = Sampling(temperature=1.0, top_k=3, seed=seed)
        counts[tuple(speculate(model, draft, PROMPT, max_new_tokens=2, sampling=drawn, stop=()))] += 1
    wanted = {}
    first = sampling.distribution(tiny_llama.logits(PROMPT)[-1])
    for one in np.flatnonzero(first):
        second = sampling.distribution(tiny_llama.logits([*PROMPT, one])[-1])
        wanted |= {(one, two): first[one] * second[two] for two in np.flatnonzero(second)}
    assert set(counts) <= set(wanted)
    for pair, chance in wanted.items():
        assert abs(counts[pair] / count - chance) < 5 * (chance * (1 - chance) / count) ** 0.5


class Padded(Noisy):
    """The model with a vocabulary of another size: of fewer tokens, or with rows that pad it."""

    def __init__(self, model, vocab):
        super().__init__(model, 0.0)
        self.facts = dataclasses.replace(model.facts, vocab=vocab)

    def session(self):
        session, vocab = self._model.session(), self.facts.vocab
        append = session.append

        def resized(tokens):
            assert max(tokens) < vocab
            return np.pad(append(tokens), (0, 1), constant_values=100.0)[:vocab]  # the pad is the likeliest

        session.append = resized
        return session


@pytest.mark.parametrize("vocab", [96, 98])
@pytest.mark.parametrize("prompt", [PROMPT, [5, 96]])
def test_a_draft_may_have_another_number_of_padded_tokens(model, vocab, prompt):
    """Also where the text has a token that the draft cannot read."""
    bias = Sampling(bias=((96, -1.0),))
    want = list(stream(model, prompt, max_new_tokens=20, sampling=bias, stop=()))
    draft = Padded(model, vocab)
    assert list(speculate(model, draft, prompt, max_new_tokens=20, sampling=bias, stop=())) == want


def test_what_cannot_be(model):
    other = Noisy(model, 0.0)
    with pytest.raises(InputError, match="97 tokens in the model, 90 in the draft"):
        next(speculate(model, Padded(model, 90), PROMPT))
    with pytest.raises(InputError, match="guesses"):
        next(speculate(model, other, PROMPT, guesses=0))
    with pytest.raises(InputError, match="no tokens"):
        next(speculate(model, other, []))
    with pytest.raises(CapacityError):
        list(speculate(model, other, [1] * 120, max_new_tokens=50, stop=()))
    assert model.pool.free == model.pool.pages
