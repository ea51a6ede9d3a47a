"""Texts as tokens and back, by the tokenizer that lies beside a library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetero_tvm.errors import LibraryError

FILE = "tokenizer.json"
_UNFINISHED = "�"


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
                hint="give --prompt-ids, or copy the checkpoint's tokenizer.json there",
            )
        try:
            import tokenizers
        except ImportError:
            raise LibraryError(
                "the package tokenizers is not installed", hint="pip install 'hetero-tvm[generate]'"
            ) from None
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # what its native code raises has no type of its own
            raise LibraryError(f"cannot read {path}: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, with those that the model wants at its start."""
        return list(self._tokenizer.encode(text).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, without those that only mark its structure."""
        return str(self._tokenizer.decode(list(tokens)))


class Words:
    """Text of tokens that come one by one: letters may take several, and words have a space before them."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._start, self._given = (
            0,
            0,
        )  # tokens from the first on give the context, up to the second are told

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
