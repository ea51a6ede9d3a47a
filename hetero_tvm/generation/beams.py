"""Beam search: the likeliest texts among several that are continued together.

The rules are those of transformers' ``generate(num_beams=...)``, so that the texts are the same.  All beams
go through the model in one step, which reads each weight once; a beam that two continuations share is forked,
so that they share the pages of the cache that are full, and nothing is moved when beams change places.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from hetero_tvm.errors import InputError, UsageError
from hetero_tvm.generation.model import LanguageModel
from hetero_tvm.generation.sampling import Sampling
from hetero_tvm.generation.session import Session
from hetero_tvm.generation.source import Source
from hetero_tvm.generation.tokens import is_count, stop_tokens, token_list


@dataclass(frozen=True)
class Beam:
    """A text that a search found.

    Parameters
    ----------
    tokens : that were generated; a stop token is the last one.
    score : logarithm of their probability over ``length ** length_penalty``.
    reason : ``stop`` or ``length``.
    """

    tokens: list[int]
    score: float
    reason: str


@dataclass(frozen=True)
class BeamSearch:
    """Rules of a search.

    Parameters
    ----------
    count : texts that are continued at a time, and results at most.
    length_penalty : power of the length that a score is divided by; more than 0 favours long texts.
    early : end as soon as ``count`` texts have ended; otherwise when none that goes on has a better score
        than the last of these by its length so far, or, where early is ``never``, by the greatest length that
        it may have and that favours it.
    repetition_penalty : as of :class:`~hetero_tvm.generation.sampling.Sampling`.
    """

    count: int = 4
    length_penalty: float = 1.0
    early: bool | str = False
    repetition_penalty: float | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.count < 1:
            problems.append(f"count is {self.count}, expected 1 or more")
        if not np.isfinite(self.length_penalty):
            problems.append(f"length_penalty is {self.length_penalty}, expected a finite number")
        if self.early not in (False, True, "never"):
            problems.append(f"early is {self.early!r}, expected True, False or 'never'")
        if self.repetition_penalty is not None and not 0 < self.repetition_penalty < float("inf"):
            problems.append(f"repetition_penalty is {self.repetition_penalty}, expected more than 0")
        if problems:
            raise UsageError("options that no search can have", problems=problems)

    def score(self, chance: float, length: int) -> float:
        """Score of a text of this length and this logarithm of its probability."""
        return chance / length**self.length_penalty


def search_beams(
    model: LanguageModel,
    prompt: Sequence[int],
    *,
    search: BeamSearch | None = None,
    max_new_tokens: int = 128,
    stop: Collection[int] | None = None,
    source: np.ndarray | Sequence[int] | Source | None = None,
) -> list[Beam]:
    """Continue a text; gives the best continuations, the best first.

    Parameters
    ----------
    prompt, stop, source : as of :func:`hetero_tvm.generation.generate.generate`.

    Raises
    ------
    InputError : a token that is not in the vocabulary, or none.
    UsageError : more beams than a step of the model has rows.
    CapacityError : the texts are longer than the context, or the cache has no room for all beams.
    """
    search = search or BeamSearch()
    if search.count > model.facts.rows:
        raise UsageError(f"{search.count} beams; a step of the model takes {model.facts.rows} texts")
    if not is_count(max_new_tokens):
        raise InputError(f"{max_new_tokens} new tokens are asked for")
    ends = stop_tokens(stop, model.facts.stop)
    text = list(token_list(prompt))
    if model.sources is not None and not text:
        text = list(model.sources.facts.start)
    with _session(model, source) as first:
        return _Search(model, text, search, max_new_tokens, ends).run(first)


@contextmanager
def _session(model: LanguageModel, source: np.ndarray | Sequence[int] | Source | None) -> Iterator[Session]:
    with ExitStack() as stack:
        if source is not None and not isinstance(source, Source):
            source = stack.enter_context(model.encode(source))
        yield stack.enter_context(model.session(source))


@dataclass(frozen=True)
class _Running:
    """A text that goes on: the session that holds all of it but its last token."""

    session: Session
    tokens: list[int]
    chance: float


class _Search:
    def __init__(
        self, model: LanguageModel, prompt: list[int], search: BeamSearch, most: int, stop: frozenset[int]
    ):
        self._model, self._prompt, self._search = model, prompt, search
        self._most, self._stop = most, stop
        asked = Sampling(repetition_penalty=search.repetition_penalty)
        self._changes = model.facts.sampling(asked, len(prompt), most, stop)
        self._kept = max(2, 1 + len(stop)) * search.count
        self._ended: list[Beam] = []

    def run(self, first: Session) -> list[Beam]:
        running = [_Running(first, [], 0.0)]
        try:
            while running:
                new = [beam.tokens[-1:] or self._prompt for beam in running]
                logits = self._model.step(
                    [(beam.session, tokens) for beam, tokens in zip(running, new, strict=True)]
                )
                running = self._next(running, self._continuations(running, logits))
        finally:
            for session in {id(beam.session): beam.session for beam in running}.values():
                session.close()
        return self._ended

    def _continuations(self, running: list[_Running], logits: np.ndarray) -> list[tuple[float, int, int]]:
        """The likeliest continuations, the best first: chance, number of the beam, token."""
        chances = np.empty((len(running), logits.shape[1]))
        for n, (beam, row) in enumerate(zip(running, logits, strict=True)):
            values = row - row.max()
            values = values - np.log(np.exp(values, dtype=np.float64).sum())
            values = self._changes.adjusted(values, [*self._prompt, *beam.tokens])
            chances[n] = beam.chance + values
        flat = chances.ravel()
        most = min(self._kept, len(flat))
        best = np.argpartition(-flat, most - 1)[:most] if most < len(flat) else np.arange(len(flat))
        best = best[np.lexsort((best, -flat[best]))]
        return [(float(flat[at]), int(at) // logits.shape[1], int(at) % logits.shape[1]) for at in best]

    def _next(self, running: list[_Running], found: list[tuple[float, int, int]]) -> list[_Running]:
        """Note which texts end; gives those that go on."""
        length = len(running[0].tokens) + 1
        going: list[tuple[float, int, int]] = []
        for place, (chance, number, token) in enumerate(found):
            if token in self._stop or length == self._most:
                # Others than the best are there so that enough can go on.
                if place < self._search.count:
                    reason = "stop" if token in self._stop else "length"
                    score = self._search.score(chance, length)
                    self._ended.append(Beam([*running[number].tokens, token], score, reason))
            elif len(going) < self._search.count and chance > -np.inf:
                going.append((chance, number, token))
        self._ended = sorted(self._ended, key=lambda beam: -beam.score)[: self._search.count]
        if len(self._ended) == self._search.count and going:
            never = self._search.early == "never"
            longest = self._most if never and self._search.length_penalty > 0 else length
            best = self._search.score(going[0][0], longest)
            if self._search.early is True or best <= self._ended[-1].score:
                going = []
        return self._moved(running, going)

    def _moved(self, running: list[_Running], going: list[tuple[float, int, int]]) -> list[_Running]:
        """Texts that go on, each with a session of its own."""
        made: list[_Running] = []
        given: set[int] = set()
        for chance, number, token in going:
            beam = running[number]
            session = beam.session if number not in given else beam.session.fork()
            given.add(number)
            made.append(_Running(session, [*beam.tokens, token], chance))
        for number, beam in enumerate(running):
            if number not in given:
                beam.session.close()
        return made
