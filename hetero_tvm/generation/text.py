"""Texts as tokens and back, by the tokenizer that lies beside a library."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from hetero_tvm.errors import InputError, LibraryError
from hetero_tvm.host.install import extra_command

FILE = "tokenizer.json"
_CONTEXT = 8
_UNFINISHED = "�"
_SPACE = "▁"
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")


def _letters_of_bytes() -> dict[str, int]:
    """Letters that stand for bytes in tokens of byte pairs: those that can be printed for themselves."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _letters_of_bytes()


class Tokenizer:
    """A ``tokenizer.json``, read by the package tokenizers.

    Parameters
    ----------
    path : the file, or its folder.

    Raises
    ------
    LibraryError : there is none, it is damaged, or the package is missing.
    """

    def __init__(self, path: Path):
        if path.is_dir():
            path = path / FILE
        if not path.is_file():
            raise LibraryError(
                f"{path.parent} has no {FILE}, so there are no words for its tokens",
                hint="give tokens (--prompt-ids, --stop-ids), or copy the checkpoint's tokenizer.json there "
                "(where it has none: transformers.AutoTokenizer.from_pretrained(CHECKPOINT)"
                ".save_pretrained(FOLDER) writes one)",
            )
        try:
            import tokenizers
        except ImportError:
            raise LibraryError(
                "the package tokenizers is not installed", hint=extra_command("generate")
            ) from None
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # what its native code raises has no type of its own
            raise LibraryError(f"cannot read {path}: {error}") from error
        # The file has what training cut and filled texts to, which is no part of how a text is written.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._told: frozenset[int] = frozenset()

    def __repr__(self) -> str:
        return f"<Tokenizer of {self._tokenizer.get_vocab_size():,} tokens>"

    def encode(self, text: str, special: bool = True, longest: int | None = None) -> list[int]:
        """Tokens of a text.

        Parameters
        ----------
        special : with those that the model wants at its start and end.
        longest : the end of a text of more tokens is cut off, and the special ones stay.

        Raises
        ------
        InputError : there is half of a surrogate pair in it, as where a letter was cut in two.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"character {error.start} of the text is {text[error.start]!r}, half of a surrogate pair",
                hint="cut texts between letters",
            ) from None
        tokens = list(self._tokenizer.encode(text, add_special_tokens=special).ids)
        if longest is None or len(tokens) <= longest:
            return tokens
        # The package neither cuts a text to fewer tokens than mark it, nor ever ends with as many.
        if longest <= (self._tokenizer.num_special_tokens_to_add(False) if special else 0):
            return tokens[:longest]
        cutting = type(self._tokenizer).from_str(self._tokenizer.to_str())
        cutting.enable_truncation(longest)
        return list(cutting.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, without those that only mark its structure."""
        if not self._told:
            return str(self._tokenizer.decode(list(tokens)))
        told = [token for token in tokens if token not in self.special or token in self._told]
        return str(self._tokenizer.decode(told, skip_special_tokens=False))

    def telling(self, marks: Collection[str]) -> Tokenizer:
        """The same, whose texts have these marks of structure."""
        found = copy.copy(self)
        names = {token: added.content for token, added in self._tokenizer.get_added_tokens_decoder().items()}
        found._told = frozenset(token for token in self.special if names[token] in marks)
        return found

    def piece(self, token: int) -> bytes:
        """Bytes that a token stands for inside of a text: part of a letter, a word with its space, the name
        of what marks structure."""
        name = self._tokenizer.id_to_token(token)
        if name is None:
            return b""
        if token in self._added:
            return str(name).encode()
        if "ByteLevel" in self._decoders and all(letter in _BYTES for letter in name):
            return bytes(_BYTES[letter] for letter in name)
        if "ByteFallback" in self._decoders and _BYTE.fullmatch(name):
            return bytes([int(name[3:5], 16)])
        if self._decoders & {"Metaspace", "Replace"}:
            return str(name).replace(_SPACE, " ").encode()
        twice = self.decode([token, token])  # the second has the space that the first has lost
        return twice[len(self.decode([token])) :].encode()

    @property
    def size(self) -> int:
        """Number of tokens."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @functools.cached_property
    def special(self) -> frozenset[int]:
        """Tokens that mark structure, and are no text."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(token for token, one in added.items() if one.special)

    @functools.cached_property
    def _added(self) -> frozenset[int]:
        return frozenset(self._tokenizer.get_added_tokens_decoder())

    @functools.cached_property
    def _decoders(self) -> frozenset[str]:
        """Types of the decoder and of those that it is a sequence of."""
        decoder = self._tokenizer.decoder
        stated = json.loads(decoder.__getstate__()) if decoder is not None else {}
        return frozenset(one.get("type", "") for one in (stated, *stated.get("decoders", ())))


class Words:
    """Text of tokens that come one by one: letters may take several, and words have a space before them.

    ``before`` are tokens that the text follows, where it is told behind theirs.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()):
        self._tokenizer = tokenizer
        self._tokens: list[int] = list(before[-_CONTEXT:])
        # Tokens from the first on give the context, up to the second are told.
        self._start, self._given = 0, len(self._tokens)

    def add(self, token: int) -> str:
        """The text that one more token completes; empty while a letter is unfinished."""
        self._tokens.append(token)
        text = self._fresh()
        if text.endswith(_UNFINISHED):
            return ""
        self._start, self._given = self._given, len(self._tokens)
        return text

    def finish(self) -> str:
        """Text that is left, finished or not."""
        return self._fresh() if self._given < len(self._tokens) else ""

    def _fresh(self) -> str:
        told = self._tokenizer.decode(self._tokens[self._start : self._given])
        return self._tokenizer.decode(self._tokens[self._start :])[len(told) :]


class StopText:
    """Text that comes in pieces and ends before the first of some strings.

    Parameters
    ----------
    strings : those that end it; an end of the text that may begin one of them is held back.
    """

    def __init__(self, strings: Sequence[str]):
        self._strings = [string for string in strings if string]
        self._held = ""
        self.stopped = False
        """Whether one of the strings has come."""

    def add(self, piece: str) -> str:
        """Text that can be told after one more piece."""
        if self.stopped:
            return ""
        text = self._held + piece
        places = [place for string in self._strings if (place := text.find(string)) >= 0]
        if places:
            self.stopped, self._held = True, ""
            return text[: min(places)]
        keep = max((_begun(text, string) for string in self._strings), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Text that was held back, when nothing follows."""
        held, self._held = self._held, ""
        return held


class TextUntil:
    """Text of tokens that come one by one, up to the first of some strings.

    Parameters
    ----------
    strings : those that end the text; they are no part of it.
    """

    def __init__(self, tokenizer: Tokenizer, strings: Sequence[str] = ()):
        self._words, self._stop = Words(tokenizer), StopText(strings)
        self.text = ""
        """Text that can be told by now."""

    @property
    def stopped(self) -> bool:
        """Whether one of the strings has come."""
        return self._stop.stopped

    def add(self, token: int) -> str:
        """The text that one more token brings; empty while it is unfinished, or may begin a string."""
        return self._told(self._stop.add(self._words.add(token)))

    def finish(self) -> str:
        """The text that is left when no token follows."""
        rest = self._stop.add(self._words.finish())
        return self._told(rest if self.stopped else rest + self._stop.finish())

    def _told(self, piece: str) -> str:
        self.text += piece
        return piece


def _begun(text: str, string: str) -> int:
    """Number of the last letters of a text that begin a string."""
    return next((n for n in range(min(len(string) - 1, len(text)), 0, -1) if text.endswith(string[:n])), 0)
