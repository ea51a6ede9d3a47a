"""Speed of a language model: decoding as a share of the time to read its weights; prompts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_tvm.errors import UsageError
from hetero_tvm.generation.model import LanguageModel
from hetero_tvm.host.peaks import measure_bandwidth
from hetero_tvm.host.terminal import figure


@dataclass(frozen=True)
class Decoding:
    """Measured speed.

    Parameters
    ----------
    weights : bytes that one token reads.
    seconds : per token, the median of all.
    bandwidth : GB/s of reads by as many threads, measured between the tokens.
    shares : per round, ``weights / bandwidth / seconds``: 1 is as fast as memory allows.
    prompts : length of a prompt -> tokens per second, the best of its turns.
    """

    weights: int
    seconds: float
    bandwidth: float
    shares: tuple[float, ...]
    prompts: dict[int, float]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "weight_bytes": self.weights,
            "seconds_per_token": self.seconds,
            "tokens_per_second": 1 / self.seconds,
            "read_gbytes_per_second": self.bandwidth,
            "share_of_bandwidth": statistics.median(self.shares),
            "shares": list(self.shares),
            "prompt_tokens_per_second": {str(n): rate for n, rate in self.prompts.items()},
        }

    def __str__(self) -> str:
        share, least, most = statistics.median(self.shares), min(self.shares), max(self.shares)
        text = f"{figure(1e3 * self.seconds)} ms a token, {1 / self.seconds:,.0f} tokens/s; each reads "
        text += f"{self.weights / 1e6:.1f} MB of weights\n{share:.0%} of what memory allows "
        text += f"({self.bandwidth:.1f} GB/s), {least:.0%} to {most:.0%} in {len(self.shares)} rounds"
        for length, rate in self.prompts.items():
            text += f"\nprompt of {length} tokens: {rate:,.0f} tokens/s"
        return text


def measure_decoding(
    model: LanguageModel,
    tokens: int = 16,
    rounds: int = 5,
    context: int = 16,
    prompts: Sequence[int] = (),
) -> Decoding:
    """Measure a model; bandwidth and tokens take turns, since machines drift.

    Parameters
    ----------
    tokens, rounds : tokens per round, and rounds.
    context : tokens that stand before the measured ones.
    prompts : lengths of prompts to measure as well.

    Raises
    ------
    UsageError : a length does not fit into the model's context, or is not positive.
    """
    longest = max([context + tokens, *prompts])
    if min([context, tokens, rounds, *prompts]) < 1 or longest > model.context:
        raise UsageError(f"texts of {longest} tokens; the context is {model.context}, and 1 is the least")
    random = np.random.default_rng(0)
    shares, times, rates = [], [], []
    with model.session() as session:
        session.append(random.integers(0, model.facts.vocab, context).tolist())
        for _ in range(rounds):
            before = measure_bandwidth(model.library.threads)
            taken = []
            for token in random.integers(0, model.facts.vocab, tokens).tolist():
                start = time.perf_counter()
                session.append(token)
                taken.append(time.perf_counter() - start)
            rates.append(max(before, measure_bandwidth(model.library.threads)))
            session.rewind(context)
            times += taken
            shares.append(model.facts.read / (rates[-1] * 1e9) / statistics.median(taken))
    speeds = {length: _prompt_speed(model, length, random) for length in prompts}
    return Decoding(
        model.facts.read, statistics.median(times), statistics.median(rates), tuple(shares), speeds
    )


@contextmanager
def one_token(model: LanguageModel, context: int = 16) -> Iterator[Callable[[], None]]:
    """A call that adds one token after ``context`` others, the same at each call: one call of the library.

    Raises
    ------
    UsageError : the model takes a source.
    """
    if model.facts.source is not None:
        raise UsageError(
            "the texts of an encoder-decoder need a source",
            hint="name the sizes of a call with --shape, or give arrays with --inputs FILE.npz",
        )
    random = np.random.default_rng(0)
    context = min(context, model.context - 1)
    *before, token = random.integers(0, model.facts.vocab, context + 1).tolist()
    with model.session() as session:
        session.append(before)

        def call() -> None:
            session.rewind(context)
            session.append(token)

        yield call


def _prompt_speed(model: LanguageModel, length: int, random: np.random.Generator, turns: int = 2) -> float:
    tokens = random.integers(0, model.facts.vocab, length).tolist()
    best = float("inf")
    for _ in range(turns):
        with model.session() as session:
            start = time.perf_counter()
            session.append(tokens)
            best = min(best, time.perf_counter() - start)
    return length / best
