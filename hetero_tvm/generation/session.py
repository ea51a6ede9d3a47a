"""One text in progress: its tokens, and the pages that hold their keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol

import numpy as np

from hetero_tvm.errors import CapacityError, UsageError
from hetero_tvm.generation.facts import LanguageFacts
from hetero_tvm.generation.pages import PagePool, StatePool
from hetero_tvm.generation.source import Source
from hetero_tvm.generation.tokens import Tokens


class Stepper(Protocol):
    """Model, as its sessions see it."""

    facts: LanguageFacts
    pool: PagePool
    states: StatePool | None
    context: int

    def step(self, work: Sequence[tuple[Session, Tokens]]) -> np.ndarray:
        """Add new tokens to sessions; gives the logits of what follows each."""


class Session:
    """Text in progress.  ``with model.session() as session:`` closes it at the end.

    Sessions of one model share its weights and its cache; what they hold of the cache is given back when they
    are closed, reset, rewound or collected.  A session is used by one thread at a time; several sessions may
    be used from several threads.
    """

    def __init__(self, model: Stepper, source: Source | None = None):
        self._closed = True
        self.model = model
        self.source = source.share() if source is not None else None
        """Source of the text, of an encoder-decoder."""
        self.tokens: list[int] = []
        """Tokens whose keys and values are in the cache."""
        self.pages: list[int] = []
        self.slot: int | None = None
        """Slot of the text's state, of a model whose layers keep one."""
        self.long: bool | None = False
        """Whether keys in the cache have the positions of a long text; None: they, and the state, are to be
        made again."""
        self._closed = False

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<Session of {self.model.facts.architecture}: length {len(self)}{state}>"

    def __len__(self) -> int:
        return len(self.tokens)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self.close()

    def append(self, tokens: Tokens) -> np.ndarray:
        """Add tokens to the text; gives the logits of what follows, float32 [vocab].

        Raises
        ------
        InputError : a token that is not in the vocabulary, or none at all.
        CapacityError : the text is longer than the model's context, or the cache is full.  The session is as
            it was before, and others go on.
        """
        return self.model.step([(self, tokens)])[0]

    def fork(self) -> Session:
        """A session with the same text; both share the pages that are full until one of them changes."""
        self.check_open()
        other = type(self)(self.model, self.source)
        self.model.pool.share(self.pages)
        other.pages, other.tokens, other.long = list(self.pages), list(self.tokens), self.long
        if self.model.states is not None and self.slot is not None:
            self.model.states.share([self.slot])
            other.slot = self.slot
        return other

    __copy__ = fork

    def __deepcopy__(self, memo: object) -> Session:
        """Fork, as transformers' users copy a cache of keys and values."""
        return self.fork()

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a session cannot be pickled: its text is in the cache of a model",
            hint="hand on session.tokens, and append them there",
        )

    def rewind(self, length: int) -> None:
        """Forget what comes after the first ``length`` tokens.

        Where layers keep a state, which cannot go back, the tokens that are left go through the model again
        before the next one does.

        Raises
        ------
        UsageError : the text is shorter.
        """
        self.check_open()
        if not isinstance(length, (int, np.integer)):
            raise UsageError(
                f"a text cannot be rewound to {length!r}", hint="give the number of tokens to keep"
            )
        if not 0 <= length <= len(self.tokens):
            raise UsageError(f"a text of {len(self.tokens)} tokens cannot be rewound to {length}")
        if self.model.states is not None:
            if length < len(self.tokens):
                self.long = None
            if not length and self.slot is not None:
                self.model.states.give_back([self.slot])
                self.slot = None
        keep = -(-length // self.model.facts.page)
        self.model.pool.give_back(self.pages[keep:])
        del self.pages[keep:], self.tokens[length:]

    def reset(self) -> None:
        """Begin a new text."""
        self.rewind(0)

    def close(self) -> None:
        """Give everything back; a closed session takes no more tokens."""
        if not self._closed:
            self.rewind(0)
            self._closed = True
            if self.source is not None:
                self.source.close()

    def check_open(self) -> None:
        """Refuse a closed session.  :class:`UsageError`."""
        if self._closed:
            raise UsageError("this session is closed", hint="open another: model.session()")

    def own_pages(self) -> None:
        """Have all pages alone, to write to them again.  :class:`CapacityError` where the cache is full."""
        for number, page in enumerate(self.pages):
            self.pages[number] = self.model.pool.own(page)

    def _own_state(self) -> None:
        """Have a slot for the state alone.  :class:`CapacityError` where there is none."""
        if self.model.states is not None:
            taken = self.model.states.take(1)[0] if self.slot is None else self.model.states.own(self.slot)
            self.slot = taken

    def make_room(self, count: int) -> None:
        """Pages for ``count`` more tokens, which this session alone may write to.

        Raises
        ------
        CapacityError : the text would be longer than the context, or the cache is full; nothing has changed.
        """
        facts, pool = self.model.facts, self.model.pool
        length = len(self.tokens)
        if length + count > self.model.context:
            raise CapacityError(
                f"a text of {length + count} tokens does not fit: {self.model.limit}",
                hint="shorten the prompt, ask for fewer new tokens, or rewind the session",
            )
        self._own_state()
        needed = -(-(length + count) // facts.page) - len(self.pages)
        fresh = pool.take(needed) if needed > 0 else []
        if length % facts.page and count:
            last = length // facts.page
            try:
                self.pages[last] = pool.own(self.pages[last])
            except CapacityError:
                pool.give_back(fresh)
                raise
        self.pages += fresh
