"""A language model: its library, its cache, and the step that runs new tokens of any sessions together."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence

import numpy as np

from hetero_tvm.errors import InputError, UsageError, shortened
from hetero_tvm.generation.facts import LanguageFacts
from hetero_tvm.generation.pages import PagePool, StatePool
from hetero_tvm.generation.session import Session
from hetero_tvm.generation.source import Source, SourceEncoder
from hetero_tvm.generation.tokens import Tokens, is_count, token_list
from hetero_tvm.runtime.library import Library
from hetero_tvm.runtime.opening import load

_DEFAULT_CONTEXTS = 4
_DEFAULT_LONGEST = 4096
_SHARE_OF_MEMORY = 4
_DEFAULT_SOURCES = 32
_MOST_STATES = 4096
_MOST_NUMBERS = 1 << 31
"""Numbers of a pool that a kernel counts in 32 bits."""


class LanguageModel:
    """A loaded language model.

    >>> model = hetero_tvm.load_language_model("out")
    >>> with model.session() as session:
    ...     logits = session.append([5, 6, 7])

    Parameters
    ----------
    library : the library, loaded.
    cache_tokens : tokens that all sessions may hold together; default four times the context, at most 4 x
        4096 and a quarter of the machine's memory.  Memory is taken when it is first used.
    facts : of the model; default those that the library tells.
    """

    def __init__(self, library: Library, cache_tokens: int | None = None, facts: LanguageFacts | None = None):
        self.library = library
        self.facts = facts or LanguageFacts.from_json(library.manifest.language, library.path.name)
        page = self.facts.page
        most = max(1, _memory() // _SHARE_OF_MEMORY // max(self.facts.page_bytes, 1))
        if cache_tokens is None:
            longest = min(self.facts.context, _DEFAULT_LONGEST) if self.facts.layers else self.facts.context
            pages = _DEFAULT_CONTEXTS * -(-longest // page)
            pages = min(pages, most)
        else:
            if not is_count(cache_tokens):
                raise UsageError(f"cache_tokens is {cache_tokens!r}, expected a positive whole number")
            pages = -(-cache_tokens // page)
        try:
            self.pool = PagePool(self.facts, pages)
            self.states = StatePool(self.facts, _slots(self.facts)) if self.facts.state else None
            self.sources = None
            if self.facts.source is not None:
                each = -(-self.facts.source.longest // page)
                room = max(each, min(_DEFAULT_SOURCES * each, most))
                self.sources = SourceEncoder(library, self.facts, room)
        except MemoryError:
            size = pages * self.facts.page_bytes
            raise UsageError(
                f"there is no memory for a cache of {pages * page} tokens ({size:,} bytes)",
                hint="load the model with fewer cache_tokens",
            ) from None
        self.context = min(self.facts.context, pages * page)
        """Largest number of tokens of a session."""
        rows = self.context if self.facts.rotated else 1
        self._ropes = [self.facts.rope_table(rows)]
        if self.facts.short_texts:
            self._ropes.append(self.facts.rope_table(rows, long=True))

    def __repr__(self) -> str:
        f = self.facts
        return f"<LanguageModel {f.architecture} {f.precision}, context {self.context}>"

    def __reduce__(self) -> tuple[type[LanguageModel], tuple[Library, int, LanguageFacts]]:
        """A pickle loads the library again, with an empty cache of the same size."""
        return type(self), (self.library, self.pool.pages * self.facts.page, self.facts)

    @property
    def limit(self) -> str:
        """The number of tokens that a text may have, in words, and whether the cache is what sets it."""
        if self.context == self.facts.context:
            return f"the context is {self.context}"
        return (
            f"the context is {self.context}, as many as the cache has "
            f"(the model's own is {self.facts.context}: --cache-tokens, in Python cache_tokens=, makes "
            "it larger)"
        )

    def session(self, source: Source | None = None) -> Session:
        """A new, empty text; of an encoder-decoder, one about a source that :meth:`encode` gave.

        Raises
        ------
        UsageError : a source is missing, or the model takes none, or it is another model's.
        """
        if (source is None) != (self.sources is None):
            raise UsageError(
                "the model takes no source" if self.sources is None else "the text needs a source",
                hint=None if self.sources is None else "model.session(model.encode(source))",
            )
        if source is not None and self.sources is not None and source.pool is not self.sources.pool:
            raise UsageError("the source was encoded by another model")
        return Session(self, source)

    def encode(self, source: np.ndarray | Sequence[int]) -> Source:
        """Encode a source for texts about it: tokens, or features of audio float32 ``[mels, frames]``.

        Raises
        ------
        UsageError : the model has no encoder.
        InputError : what no source of this model can be; lists all.
        CapacityError : there is no room for another source.
        """
        if self.sources is None:
            raise UsageError(f"a {self.facts.architecture} model has no encoder: it takes no source")
        return self.sources.encode(source)

    def step(self, work: Sequence[tuple[Session, Tokens]], last: Sequence[int] | None = None) -> np.ndarray:
        """Add new tokens to sessions, all together; gives the logits of what follows each, [sessions, vocab].

        Each weight is read once for all sessions.  Prompts longer than the step's rows go in pieces.

        Parameters
        ----------
        work : sessions with their new tokens: lists, arrays or tensors.
        last : number of its last tokens after which each session wants logits (default: one); the result is
            [sum of them, vocab] then, session by session.

        Raises
        ------
        InputError : tokens that are not in the vocabulary, or sessions without new tokens; lists all.
        CapacityError : a text is longer than the context, or the cache is full; nothing has changed.
        """
        listed = [(session, token_list(tokens)) for session, tokens in work]
        self._check(listed)
        if last is not None and [
            n for n, (_, new) in zip(last, listed, strict=True) if not 0 < n <= len(new)
        ]:
            raise InputError(
                f"logits after {list(last)} tokens are wanted, of sessions that have not so many new"
            )
        before = [len(session) for session, _ in listed]
        done = 0
        try:
            for session, tokens in listed:
                done += 1
                session.make_room(len(tokens))
                if session.long != self._is_long(len(session) + len(tokens)):
                    session.own_pages()
            return self._run(listed, before, [1] * len(listed) if last is None else last)
        except BaseException:
            # Rooms that were made, and tokens of a call that did not end, are taken back.
            for (session, _), length in zip(listed[:done], before, strict=False):
                del session.tokens[length:]
                session.rewind(length)
            raise

    def _check(self, work: Sequence[tuple[Session, Sequence[int]]]) -> None:
        problems = []
        if not work:
            raise InputError("no session was given")
        if len({id(session) for session, _ in work}) != len(work):
            problems.append("a session is given twice")
        if len(work) > self.facts.rows:
            problems.append(f"{len(work)} sessions; a step takes {self.facts.rows}")
        for number, (session, tokens) in enumerate(work):
            session.check_open()
            if session.model is not self:
                problems.append(f"session {number} belongs to another model")
            problems += [f"session {number}: {text}" for text in self.token_problems(tokens)]
        if problems:
            raise InputError(
                "wrong tokens for the model", problems=shortened(problems), hint="see model.facts.vocab"
            )

    def token_problems(self, tokens: Sequence[int]) -> list[str]:
        """Problems of new tokens; empty when there are none."""
        if not len(tokens):
            return ["there are no tokens"]
        vocab = self.facts.vocab
        return [
            f"token {token!r} at {place} is not a whole number from 0 to {vocab - 1}"
            for place, token in enumerate(tokens)
            if isinstance(token, (bool, np.bool_))
            or not isinstance(token, (int, np.integer))
            or not 0 <= token < vocab
        ]

    def _run(
        self, work: Sequence[tuple[Session, Sequence[int]]], before: Sequence[int], last: Sequence[int]
    ) -> np.ndarray:
        logits = np.empty((sum(last), self.facts.results or self.facts.vocab), np.float32)
        firsts = [b + len(tokens) - n for b, (_, tokens), n in zip(before, work, last, strict=True)]
        places = np.cumsum([0, *last])
        # Number of the session, position, token; of short texts and of long ones.
        forms: list[list[tuple[int, int, int]]] = [[] for _ in self._ropes]
        for number, (session, tokens) in enumerate(work):
            long, at = self._is_long(before[number] + len(tokens)), before[number]
            if session.long != long:  # its keys have the positions of the other form
                tokens, at, session.long = [*session.tokens, *tokens], 0, None
            elif self.states is not None:  # until all rows have gone through, it is nobody's
                session.long = None
            forms[long] += [(number, at + n, int(token)) for n, token in enumerate(tokens)]
        for rope, rows in zip(self._ropes, forms, strict=True):
            for start in range(0, len(rows), self.facts.rows):
                piece = rows[start : start + self.facts.rows]
                ends = [at for at, (number, position, _) in enumerate(piece) if position >= firsts[number]]
                wanted = [places[n] + position - firsts[n] for n, position, _ in (piece[at] for at in ends)]
                logits[wanted] = self._call(work, piece, ends, rope)[: len(ends)]
        for (session, tokens), length in zip(work, before, strict=True):
            session.tokens += map(int, tokens)
            session.long = self._is_long(length + len(tokens))
        return logits

    def _is_long(self, length: int) -> bool:
        """Whether a text of so many tokens has the positions of a long one."""
        return 0 < self.facts.short_texts < length

    def _call(
        self,
        work: Sequence[tuple[Session, Sequence[int]]],
        rows: Sequence[tuple[int, int, int]],
        ends: Sequence[int],
        rope: np.ndarray,
    ) -> np.ndarray:
        """One call of the library."""
        numbers = sorted({number for number, _, _ in rows})
        slots = {number: slot for slot, number in enumerate(numbers)}
        pages = [work[number][0].pages for number in numbers]
        tables = np.zeros((len(pages), max(map(len, pages))), np.int32)
        for slot, own in enumerate(pages):
            tables[slot, : len(own)] = own
        sequences, positions, ids = np.array(
            [(slots[number], position, token) for number, position, token in rows], np.int32
        ).T.copy()
        # A few sizes only, so that the virtual machine keeps a few buffers for results.
        count = min(1 << max(len(ends) - 1, 0).bit_length(), self.facts.rows)
        picked = np.full(count, ends[0] if ends else len(rows) - 1, np.int32)
        picked[: len(ends)] = ends
        pools = [self.pool.keys, self.pool.values]
        if self.sources is not None:
            held = [work[number][0].source for number in numbers]
            source_tables = np.zeros((len(held), max(len(source.pages) for source in held)), np.int32)
            for slot, source in enumerate(held):
                source_tables[slot, : len(source.pages)] = source.pages
            ends_of = np.array([source.length - 1 for source in held], np.int32)
            pools += [ends_of[sequences], source_tables, self.sources.pool.keys, self.sources.pool.values]
        if self.states is not None:
            pools += [np.array([work[number][0].slot for number in numbers], np.int32), self.states.states]
        return self.library(ids, positions, sequences, tables, picked, rope, *pools)


def load_language_model(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    pin: bool | Iterable[int] | None = None,
    cache_tokens: int | None = None,
) -> LanguageModel:
    """Load what ``python -m hetero_tvm.build CHECKPOINT --out DIR`` wrote; needs no compiler.

    Parameters
    ----------
    path : the folder, or the ``.so`` in it.
    threads, pin : as of :func:`hetero_tvm.load`.
    cache_tokens : see :class:`LanguageModel`.

    Raises
    ------
    LibraryError : it cannot be loaded here, or is no language model.
    UsageError : an argument is wrong.
    """
    return LanguageModel(load(path, threads=threads, pin=pin), cache_tokens)


def _slots(facts: LanguageFacts) -> int:
    """Texts whose states there is room for."""
    room = min(_memory() // _SHARE_OF_MEMORY // (4 * facts.state), (_MOST_NUMBERS - 1) // facts.state)
    return max(1, min(_MOST_STATES, room))


def _memory() -> int:
    """Bytes of memory of this machine."""
    with contextlib.suppress(ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 8 << 30
