"""Choice of the next token: greedy, or drawn from a distribution that temperature and cuts have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hetero_tvm.errors import UsageError
from hetero_tvm.generation.rules import RulesOfText


@dataclass(frozen=True)
class Sampling:
    """Way to choose tokens; the steps are applied in the order of the parameters.

    Parameters
    ----------
    repetition_penalty : logits of tokens that the text has are divided by it, or multiplied where negative;
        None for what the checkpoint's ``generation_config.json`` says.
    temperature : logits are divided by it; 0 takes the largest (greedy).
    top_k : only the k likeliest tokens remain; 0 for all.
    top_p : only the likeliest tokens that have this probability together remain; the likeliest always does.
    min_p : only tokens remain that are at least this much as likely as the likeliest.
    seed : of the random numbers, any whole number; None for new ones with every text.
    presence_penalty, frequency_penalty : taken off the logits of tokens that were generated, once and as
        often as they were (as OpenAI does); -2 to 2.
    bias : pairs of a token and what is added to its logit, or a mapping of one to the other.
    given : tokens of a text that were not generated but given.
    rules : of the checkpoint, for the text.
    """

    repetition_penalty: float | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    given: int = 0
    rules: RulesOfText | None = None

    def __post_init__(self) -> None:
        problems = []
        if isinstance(self.bias, Mapping):
            object.__setattr__(self, "bias", tuple(self.bias.items()))
        if not 0 < self._penalty < float("inf"):
            problems.append(f"repetition_penalty is {self.repetition_penalty}, expected more than 0")
        if not 0 <= self.temperature < float("inf"):
            problems.append(f"temperature is {self.temperature}, expected 0 or more")
        if not isinstance(self.top_k, (int, np.integer)) or self.top_k < 0:
            problems.append(f"top_k is {self.top_k}, expected a whole number, 0 or more")
        if not 0 <= self.top_p <= 1:
            problems.append(f"top_p is {self.top_p}, expected 0 to 1")
        if not 0 <= self.min_p <= 1:
            problems.append(f"min_p is {self.min_p}, expected 0 to 1")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                problems.append(f"{name} is {getattr(self, name)}, expected -2 to 2")
        if not all(_is_bias(pair) for pair in self.bias):
            problems.append("bias has other elements than a token with a number")
        if self.seed is not None and not isinstance(self.seed, (int, np.integer)):
            problems.append(f"seed is {self.seed!r}, expected a whole number")
        if problems:
            raise UsageError("options that no sampling can have", problems=problems)

    def for_text(self, number: int) -> Sampling:
        """The same for the ``number``-th text of a call: each draws numbers of its own."""
        return self if self.seed is None else replace(self, seed=self.seed + number)

    def random(self) -> np.random.Generator:
        """Random numbers for one text; a seed counts by its lowest 64 bits."""
        return np.random.default_rng(None if self.seed is None else int(self.seed) % (1 << 64))

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken always."""
        return self.temperature == 0

    def behind(self, given: int, penalty: float = 1.0, rules: RulesOfText | None = None) -> Sampling:
        """The same for a text that begins with so many tokens that are given.

        ``penalty`` : the model's own for repetitions, where none is asked for.
        ``rules`` : the model's own for the text.
        """
        own = penalty if self.repetition_penalty is None else self.repetition_penalty
        return replace(self, given=given, repetition_penalty=own, rules=rules)

    @property
    def _penalty(self) -> float:
        return 1.0 if self.repetition_penalty is None else self.repetition_penalty

    @property
    def reads_text(self) -> bool:
        """Whether the choice depends on the tokens so far beside the logits."""
        return bool(self._penalty != 1 or self.presence_penalty or self.frequency_penalty or self.rules)

    def adjusted(self, logits: np.ndarray, text: Sequence[int]) -> np.ndarray:
        """Logits [vocab] after penalties, biases and rules; ``text`` is all tokens so far."""
        if not self.bias and not (self.reads_text and len(text)):
            return logits
        logits = logits.copy()
        if self._penalty != 1:
            seen = np.unique(np.asarray(text, np.int64))
            values = logits[seen]
            penalty = np.float32(self._penalty)
            logits[seen] = np.where(values < 0, values * penalty, values / penalty)
        if self.presence_penalty or self.frequency_penalty:
            made, times = np.unique(np.asarray(text[self.given :], np.int64), return_counts=True)
            penalties = self.presence_penalty + self.frequency_penalty * times
            logits[made] -= penalties.astype(logits.dtype)
        for token, value in self.bias:
            logits[token] += value
        return logits if self.rules is None else self.rules.applied(logits, text)

    def distribution(self, logits: np.ndarray, text: Sequence[int] = ()) -> np.ndarray:
        """Probability of each token, float64 [vocab]; all on one token when greedy."""
        logits = self.adjusted(logits, text)
        if self.greedy:
            probabilities = np.zeros(len(logits))
            probabilities[int(np.argmax(logits))] = 1.0
            return probabilities
        scores = logits.astype(np.float64)
        with np.errstate(over="ignore"):  # of the least temperatures, where only the largest remains
            scores = (scores - scores.max()) / self.temperature
        if self.top_k and self.top_k < len(scores):
            scores[scores < np.partition(scores, -self.top_k)[-self.top_k]] = -np.inf
        probabilities = _softmax(scores)
        if self.top_p < 1:
            order = np.argsort(-probabilities, kind="stable")
            before = np.cumsum(probabilities[order]) - probabilities[order]
            probabilities[order[1:][before[1:] >= self.top_p]] = 0.0  # the likeliest always stays
        if self.min_p:
            probabilities[probabilities < self.min_p * probabilities.max()] = 0.0
        return probabilities / probabilities.sum()

    def choose(self, logits: np.ndarray, text: Sequence[int], random: np.random.Generator) -> int:
        """The next token."""
        if self.greedy:
            return int(np.argmax(self.adjusted(logits, text)))
        return drawn(self.distribution(logits, text), random)


GREEDY = Sampling()


def drawn(probabilities: np.ndarray, random: np.random.Generator) -> int:
    """A token of a distribution."""
    sums = np.cumsum(probabilities)
    return int(min(np.searchsorted(sums, random.random() * sums[-1], side="right"), len(sums) - 1))


def _is_bias(pair: Any) -> bool:
    """Whether it is a token and a number that a logit may be raised by."""
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], (int, np.integer)):
        return False
    return isinstance(pair[1], (int, float, np.number)) and pair[1] < float("inf")


def _softmax(scores: np.ndarray) -> np.ndarray:
    exponents = np.exp(scores - scores.max())
    return exponents / exponents.sum()
