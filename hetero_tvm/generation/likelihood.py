"""Log-probabilities of tokens, as the model gives them: before penalties, temperature and cuts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MOST = 20
"""Likeliest tokens that can be asked for at each place: as many as OpenAI's API gives."""

_IMPOSSIBLE = -9999.0


class Likelihood(NamedTuple):
    """A token of a text beside what could have stood in its place.

    Attributes
    ----------
    token, logprob : the token, and the logarithm of its probability after what stands before it; None for the
        first of a text, before which there is nothing.
    top : the likeliest tokens there with theirs, likeliest first.
    """

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


def in_json(logprob: float | None) -> float | None:
    """A log-probability as JSON can say it, which has no infinity: -9999 for a probability of 0."""
    return _IMPOSSIBLE if logprob is not None and not math.isfinite(logprob) else logprob


def likelihoods(logits: np.ndarray, tokens: Sequence[int], count: int) -> list[Likelihood]:
    """Likelihoods of ``tokens``, one after each row of ``logits`` [rows, vocab], with ``count`` likeliest."""
    return [_likelihood(row, int(token), count) for row, token in zip(logits, tokens, strict=True)]


def _likelihood(row: np.ndarray, token: int, count: int) -> Likelihood:
    scores = row.astype(np.float64)
    scores -= scores.max()
    scores -= np.log(np.exp(scores).sum())
    count = min(count, len(scores))
    # Of equal ones the first, also where not all have room: a greedy choice is always among them.
    least = np.partition(scores, -count)[-count] if count else np.inf
    best = np.flatnonzero(scores >= least)
    best = best[np.argsort(-scores[best], kind="stable")][:count]
    return Likelihood(token, float(scores[token]), tuple((int(n), float(scores[n])) for n in best))
