"""Continuous batching: texts come and go between steps, and every step reads the weights once for all of
them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from hetero_tvm.errors import CapacityError, HeteroTVMError, InputError, UsageError
from hetero_tvm.generation.grammar import GrammarOfText
from hetero_tvm.generation.likelihood import MOST, Likelihood, likelihoods
from hetero_tvm.generation.model import LanguageModel
from hetero_tvm.generation.sampling import GREEDY, Sampling
from hetero_tvm.generation.session import Session
from hetero_tvm.generation.source import Source
from hetero_tvm.generation.tokens import is_count, token_list


@dataclass(eq=False)
class Request:
    """A text to be continued, and what came of it.

    Parameters
    ----------
    prompt : tokens of the text so far.
    max_new_tokens : tokens to generate at most.
    sampling : way to choose them.
    stop : tokens that end the text; the last token is one of them then.
    source : what the text is about, of an encoder-decoder: tokens, features of audio, or a
        :class:`~hetero_tvm.generation.source.Source`.  An empty prompt stands for the model's own then.
    on_token : called with every token as it comes.  When it raises, this text ends with that error.
    logprobs : number of likeliest tokens to note beside each that is generated; None notes no likelihoods.
    score_prompt : whether to note those of the prompt as well.
    least_new_tokens : tokens that are generated before one of ``stop``.
    grammar : that the text follows, at its beginning; the text ends where nothing can follow it.
    """

    prompt: Sequence[int]
    max_new_tokens: int
    sampling: Sampling = GREEDY
    stop: Collection[int] = ()
    on_token: Callable[[int], None] | None = None
    source: np.ndarray | Sequence[int] | Source | None = None
    logprobs: int | None = None
    score_prompt: bool = False
    least_new_tokens: int = 0
    grammar: GrammarOfText | None = None
    tokens: list[int] = field(default_factory=list)
    """Tokens that were generated."""
    likelihoods: list[Likelihood] = field(default_factory=list)
    """Log-probabilities of the tokens, where ``logprobs`` asks for them."""
    prompt_likelihoods: list[Likelihood] = field(default_factory=list)
    """Log-probabilities of the prompt's tokens, where ``score_prompt`` asks for them."""
    reason: str | None = None
    """Reason for the end: ``length``, ``stop``, ``cancelled`` or ``error``; None while it goes on."""
    error: Exception | None = None
    prefill_s: float = 0.0
    """Seconds from the first step with this text to its first token."""
    decode_s: float = 0.0
    """Seconds from the first token to the last."""
    _session: Session | None = None
    _started: float = 0.0
    _done: int = 0
    _pages: int = 0
    _random: np.random.Generator | None = None

    def cancel(self) -> None:
        """End the text before the next step."""
        if self.reason is None:
            self.reason = "cancelled"

    def add(self, token: int) -> None:
        """Note a token that was generated, and tell who waits for it."""
        self.tokens.append(token)
        if self.on_token is not None:
            self.on_token(token)


class Batch:
    """Texts that are generated together.

    A text is let in when the cache has room for its prompt and all that it may generate, so no text fails in
    the middle of another's; until then it waits.  Prompts go through in pieces beside the texts that are
    being generated, so a long prompt does not stop them.

    Parameters
    ----------
    most : texts that are generated at once.
    piece : tokens of prompts in one step.
    """

    def __init__(self, model: LanguageModel, most: int = 32, piece: int = 256):
        if most < 1 or piece < 1:
            raise UsageError(f"a batch of {most} texts with {piece} tokens of prompts per step")
        self.model = model
        self._most, self._piece = min(most, model.facts.rows), min(piece, model.facts.rows)
        self._waiting: deque[Request] = deque()
        self._active: list[Request] = []

    def __repr__(self) -> str:
        waiting = len(self._waiting)
        return f"<Batch of {self.model.facts.architecture}: {len(self._active)} generated, {waiting} waiting>"

    def __len__(self) -> int:
        return len(self._waiting) + len(self._active)

    def submit(self, request: Request) -> Request:
        """Add a text.

        Raises
        ------
        InputError : a token that is not in the vocabulary.
        CapacityError : it can never fit into the context.
        """
        sources = self.model.sources
        request.prompt = token_list(request.prompt)
        if sources is not None and not len(request.prompt):
            request.prompt = sources.facts.start
        if (sources is None) != (request.source is None):
            raise UsageError(
                "the model takes no source" if sources is None else "the text needs a source",
                hint="leave it out"
                if sources is None
                else "give --source, --source-ids, --features or --audio (in Python: source=...)",
            )
        if sources is not None and not isinstance(request.source, Source):
            sources.check(request.source)
        problems = self.model.token_problems(request.prompt)
        if not is_count(request.max_new_tokens):
            problems.append(f"{request.max_new_tokens!r} new tokens are asked for")
        if request.logprobs is not None and not 0 <= request.logprobs <= MOST:
            problems.append(f"logprobs is {request.logprobs}, expected 0 to {MOST}")
        problems += self.model.facts.bias_problems(request.sampling)
        if problems:
            raise InputError("the prompt cannot be continued", problems=problems)
        request.sampling = self.model.facts.sampling(
            request.sampling,
            len(request.prompt),
            request.max_new_tokens,
            request.stop,
            request.least_new_tokens,
        )
        total = self._total(request)
        if total > self.model.context:
            raise CapacityError(
                f"{len(request.prompt)} tokens and {request.max_new_tokens} new ones do not fit: "
                + self.model.limit,
                hint="shorten the prompt, or ask for fewer new tokens",
            )
        request._pages = -(-total // self.model.facts.page)
        self._waiting.append(request)
        return request

    def run(self) -> None:
        """Generate until all texts have ended."""
        while len(self):
            self.step()

    def step(self) -> None:
        """One step of the model for all texts that are in."""
        self._leave()
        self._enter()
        work: list[tuple[Request, Sequence[int]]] = []
        left = self._piece
        for request in self._active:
            if request._done == len(request.prompt):
                work.append((request, request.tokens[-1:]))
            elif left:
                part = request.prompt[request._done : request._done + left]
                left -= len(part)
                work.append((request, part))
        if not work:
            return
        try:
            counts = [len(tokens) if self._scores(request) else 1 for request, tokens in work]
            logits = self.model.step([(request._session, tokens) for request, tokens in work], counts)
        except HeteroTVMError as error:
            # Sessions of others took the room: the text that needs most of it ends, the rest goes on.
            largest = max((request for request, _ in work), key=lambda r: len(r.prompt) + len(r.tokens))
            self._end(largest, "error", error)
            return
        for (request, tokens), rows in zip(work, np.split(logits, np.cumsum(counts)[:-1]), strict=True):
            if request._done < len(request.prompt):
                if self._scores(request):
                    self._score(request, rows)
                request._done += len(tokens)
                if request._done < len(request.prompt):
                    continue
                request.prefill_s = time.perf_counter() - request._started
            self._take(request, rows[-1])

    @staticmethod
    def _scores(request: Request) -> bool:
        """Whether the tokens of the prompt that go through next are to be scored."""
        return request.score_prompt and request.logprobs is not None and request._done < len(request.prompt)

    @staticmethod
    def _score(request: Request, rows: np.ndarray) -> None:
        """Note the log-probabilities of what follows the tokens that went through, in the prompt."""
        assert request.logprobs is not None
        if not request._done:
            request.prompt_likelihoods.append(Likelihood(int(request.prompt[0]), None))
        following = request.prompt[request._done + 1 : request._done + 1 + len(rows)]
        request.prompt_likelihoods += likelihoods(rows[: len(following)], following, request.logprobs)

    def _take(self, request: Request, logits: np.ndarray) -> None:
        """The next token of a text."""
        text = [*request.prompt, *request.tokens] if request.sampling.reads_text else ()
        grammar = request.grammar
        try:
            possible = logits if grammar is None else grammar.applied(logits)
            token = request.sampling.choose(possible, text, request._random)
            if grammar is not None:
                grammar.add(token)
            if request.logprobs is not None:
                request.likelihoods += likelihoods(logits[None], [token], request.logprobs)
            request.decode_s = time.perf_counter() - request._started - request.prefill_s
            request.add(token)
        except Exception as error:
            self._end(request, "error", error)
            return
        if token in request.stop or grammar is not None and grammar.ended:
            self._end(request, "stop")
        elif len(request.tokens) == request.max_new_tokens:
            self._end(request, "length")

    def _enter(self) -> None:
        """Let texts in, first come, first served."""
        promised = sum(request._pages - len(request._session.pages) for request in self._active)
        while self._waiting and len(self._active) < self._most:
            request = self._waiting[0]
            if self._active and request._pages > self.model.pool.free - promised:
                return
            if self._active and not (self._has_room(request.source) and self._has_slot()):
                return
            self._waiting.popleft()
            request._started = time.perf_counter()
            try:
                request._session = self._session(request.source)
            except HeteroTVMError as error:
                self._end(request, "error", error)
                continue
            promised += request._pages
            request._random = request.sampling.random()
            self._active.append(request)

    def _has_slot(self) -> bool:
        """Whether there is a state for one more text."""
        states = self.model.states
        return states is None or states.free > sum(request._session.slot is None for request in self._active)

    def _has_room(self, source: np.ndarray | Sequence[int] | Source | None) -> bool:
        sources = self.model.sources
        if sources is None or isinstance(source, Source):
            return True
        return sources.pages_of(source) <= sources.pool.free

    def _session(self, source: np.ndarray | Sequence[int] | Source | None) -> Session:
        """The session of a text, which holds its source."""
        if source is None or isinstance(source, Source):
            return self.model.session(source)
        with self.model.encode(source) as encoded:
            return self.model.session(encoded)

    def _leave(self) -> None:
        """Take out texts that were cancelled."""
        for request in [*self._active, *self._waiting]:
            if request.reason is not None:
                self._end(request, request.reason)

    def _end(self, request: Request, reason: str, error: Exception | None = None) -> None:
        request.reason, request.error = reason, error
        if request in self._waiting:
            self._waiting.remove(request)
        if request in self._active:
            self._active.remove(request)
        if request._session is not None:
            request._session.close()

    @staticmethod
    def _total(request: Request) -> int:
        return len(request.prompt) + request.max_new_tokens - 1  # the last token is never read
