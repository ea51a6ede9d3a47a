"""One text that is generated for a client, as pieces of text with the likelihoods of their tokens."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from hetero_tvm.generation.likelihood import Likelihood
from hetero_tvm.generation.text import StopText, Tokenizer, Words
from hetero_tvm.serving.engine import Text
from hetero_tvm.serving.tools import CallReader


class Told(NamedTuple):
    """A token with its likelihood; ``at`` is where it begins in the client's text, in letters."""

    likelihood: Likelihood
    at: int


class Piece(NamedTuple):
    """Part of a text, and the tokens that begin in it where they are scored."""

    text: str
    told: list[Told]


class Answer:
    """One text that is generated, as pieces of text.

    Parameters
    ----------
    stop : texts that end it.
    echo : the prompt, where it comes first; None where the text begins behind it.
    silent : whether nothing comes behind the prompt.
    calls : reader of the calls of tools in it, where it may have some.
    """

    def __init__(
        self,
        index: int,
        text: Text,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        echo: str | None = None,
        silent: bool = False,
        calls: CallReader | None = None,
    ):
        self.index, self.text, self.calls = index, text, calls
        self._tokenizer, self._echo, self._silent = tokenizer, echo, silent
        self._words = Words(tokenizer, text.request.prompt if echo is not None else ())
        self._stop = StopText(stop)
        self._read = 0
        self._written, self._given = 0, 0
        """Letters that the tokens have, and those of them that the client has."""
        self._waiting: list[Told] = []

    async def pieces(self) -> AsyncIterator[Piece]:
        """Pieces, as they come."""
        async with contextlib.aclosing(self.text.tokens()) as tokens:
            async for token in tokens:
                if self._echo is not None and not self._read:
                    yield self._echoed(self._echo)
                if self._silent:
                    return
                self._read += 1
                if token in self.text.request.stop:
                    break
                if self.text.request.logprobs is not None:
                    self._waiting.append(Told(self.text.request.likelihoods[self._read - 1], self._written))
                if piece := self._add(self._words.add(token)):
                    yield self._piece(piece)
                if self._stop.stopped:
                    return
        piece = self._add(self._words.finish())
        if not self._stop.stopped:
            piece += self._stop.finish()
        if piece or self._waiting and not self._stop.stopped:
            yield self._piece(piece, last=not self._stop.stopped)

    def _add(self, text: str) -> str:
        """The text that can be told when this comes too."""
        self._written += len(text)
        return self._stop.add(text)

    def _piece(self, text: str, last: bool = False) -> Piece:
        """A piece with the tokens that begin in what is told by now; with all of them when it is the last."""
        self._given += len(text)
        told = [one for one in self._waiting if last or one.at < self._given]
        self._waiting = self._waiting[len(told) :]
        return Piece(text, told)

    def _echoed(self, prompt: str) -> Piece:
        """The prompt as a piece."""
        words, at, told = Words(self._tokenizer), 0, []
        for likelihood in self.text.request.prompt_likelihoods:
            told.append(Told(likelihood, min(at, len(prompt))))
            at += len(words.add(likelihood.token))
        self._written = self._given = len(prompt)
        return Piece(prompt, told)

    @property
    def likelihood(self) -> float:
        """Log-probability of a token of the text, on average; nothing is as likely as can be."""
        scored = self.text.request.likelihoods[: self.tokens]
        return sum(one.logprob or 0.0 for one in scored) / max(len(scored), 1)

    @property
    def tokens(self) -> int:
        """Number of tokens up to the end of the text; the model may be further before it hears of a stop."""
        return self._read if self._stop.stopped or self._silent else len(self.text.request.tokens)

    @property
    def reason(self) -> str:
        """Reason for the end, in OpenAI's words."""
        ran_out = self.text.request.reason == "length" and not self._stop.stopped
        return "length" if ran_out or self._silent else "stop"
