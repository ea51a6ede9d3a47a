"""Texts that follow a grammar (JSON by a schema, a regular expression, a choice), by the package llguidance.

A :class:`Grammar` says what texts there are; :class:`Grammars` knows the tokens of a model and begins a
:class:`GrammarOfText`, which takes the tokens from the logits that no text of the grammar goes on with.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hetero_tvm.errors import InputError, LibraryError
from hetero_tvm.generation.text import Tokenizer
from hetero_tvm.host.install import extra_command

# Between the parts of a document.  Schemas allow any number, and small models write lines without end.
JSON_FORM = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,40}"}
"""Options of llguidance for JSON (``x-guidance`` in a schema)."""


@dataclass(frozen=True)
class Grammar:
    """Set of texts.

    Parameters
    ----------
    kind : what ``source`` is: a JSON schema, a regular expression, a JSON list of texts, or a grammar in
        Lark's notation (``grammar``: or in llama.cpp's, GBNF).
    """

    kind: Literal["json", "regex", "choice", "grammar", "lark"]
    source: str

    @classmethod
    def of_schema(cls, schema: Any) -> Grammar:
        """Documents that a JSON schema describes."""
        return cls("json", json.dumps(schema, ensure_ascii=False))


class Grammars:
    """Grammars over the tokens of a model.

    Parameters
    ----------
    vocab : tokens that have logits.
    stop : tokens that end a text.

    Raises
    ------
    LibraryError : the package llguidance is missing.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int, stop: Collection[int]):
        try:
            import llguidance
        except ImportError:
            raise LibraryError(
                "grammars and schemas need the package llguidance", hint=extra_command("grammar")
            ) from None
        self._vocab = vocab
        # Where no token ends a text, one that has no logit does.
        ends = sorted(token for token in stop if 0 <= token < vocab) or [vocab]
        table = _Table(tokenizer, vocab, ends)
        self._tokens: Any = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(table), n_vocab=len(table.tokens), eos_token=ends
        )

    def begin(self, grammar: Grammar) -> GrammarOfText:
        """The grammar at the beginning of a text.

        Raises
        ------
        InputError : it is damaged, or says what cannot be followed.
        """
        import llguidance

        source, name = grammar.source, _NAMES.get(grammar.kind, "grammar")
        try:
            if grammar.kind == "json":
                form = llguidance.LLMatcher.grammar_from_json_schema(source, defaults=JSON_FORM)
            else:
                form = llguidance.grammar_from(grammar.kind, source)
            matcher = llguidance.LLMatcher(self._tokens, form, log_level=0)
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"the {name} cannot be followed: {_line(error)}") from error
        if matcher.is_error():
            raise InputError(
                f"the {name} cannot be followed: {_line(matcher.get_error())}",
                hint="write it in parts that are known, or leave it out",
            )
        return GrammarOfText(matcher, self._vocab)


_NAMES = {"json": "JSON schema", "regex": "regular expression", "choice": "choice"}


class GrammarOfText:
    """A grammar, and the text so far."""

    def __init__(self, matcher: Any, vocab: int):
        self._matcher, self._vocab = matcher, vocab
        self.ended = False
        """Whether nothing can follow the text."""

    def applied(self, logits: np.ndarray) -> np.ndarray:
        """Logits [vocab]: minus infinity for tokens that cannot come next.

        Raises
        ------
        InputError : the grammar has become too large to follow.
        """
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = bits[: self._vocab].astype(bool)
        if not allowed.any() or "NoExtension" in self._matcher.get_error():
            raise InputError("no token of the model goes on with the text that the grammar asks for")
        self._check()
        return np.where(allowed, logits, np.float32(-np.inf))

    def add(self, token: int) -> None:
        """Note the token that came.

        Raises
        ------
        InputError : it is none of those that could come, as where a rule of the checkpoint forces another.
        """
        if not self._matcher.consume_token(token):
            self._check()
            raise InputError(f"token {token} is not in the grammar")
        self.ended = bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InputError(f"the grammar cannot be followed: {_line(self._matcher.get_error())}")


_GUARD, _GUARD_TOKENS = "\x02", 4
"""A letter that stands before a text, so that what tokenizers put there is no part of it; tokens that it and
this may be."""


class _Table:
    """Tokens as llguidance reads them from a tokenizer: by its attributes."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab: int, ends: Sequence[int]):
        self._tokenizer = tokenizer
        known = min(tokenizer.size, vocab)
        self.eos_token_id = ends[0]
        self.tokens = [tokenizer.piece(token) for token in range(known)]
        self.tokens += [b""] * (max(vocab, ends[-1] + 1) - known)
        self.special_token_ids = sorted({token for token in tokenizer.special if token < vocab} | {*ends})
        for token in self.special_token_ids:  # those without a name need one
            self.tokens[token] = self.tokens[token] or b"<end of text>"
        plain = set(range(known)).difference(self.special_token_ids)
        self._by_bytes = {self.tokens[token]: token for token in plain if self.tokens[token]}
        self._most = max(map(len, self._by_bytes), default=0)

    def __call__(self, text: str) -> list[int]:
        """Tokens with exactly the bytes of a text: tokenizers may put a space before it, and leave letters
        out that they have no token for."""
        wanted = text.encode()
        found = self._tokenizer.encode(_GUARD + text, special=False)
        for start in range(min(len(found), _GUARD_TOKENS) + 1):
            if b"".join(self.tokens[token] for token in found[start:]) == wanted:
                return found[start:]
        return self._longest(wanted)

    def _longest(self, text: bytes) -> list[int]:
        """The longest token at each place, as far as there is one."""
        tokens, at = [], 0
        while at < len(text):
            ends = range(min(self._most, len(text) - at), 0, -1)
            size = next((size for size in ends if text[at : at + size] in self._by_bytes), 0)
            if not size:
                break
            tokens.append(self._by_bytes[text[at : at + size]])
            at += size
        return tokens


def _line(error: Any) -> str:
    """The first line of a message that goes on with an excerpt, and the error that it may announce."""
    first, *rest = str(error).strip().splitlines() or [""]
    told = next((line.strip() for line in rest if line.startswith("error: ")), "")
    return f"{first} {told.removeprefix('error: ')}" if first.endswith(":") and told else first
