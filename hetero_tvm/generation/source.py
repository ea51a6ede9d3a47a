"""Sources of encoder-decoders: keys and values, of what an encoder read, for the layers of a decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero_tvm.errors import InputError, UsageError, shortened
from hetero_tvm.generation.facts import LanguageFacts, SourceFacts
from hetero_tvm.generation.pages import PagePool
from hetero_tvm.generation.tokens import token_list
from hetero_tvm.runtime.library import Library
from hetero_tvm.runtime.signature import TensorSpec

ENTRY = "main_encode"
"""Function of a library that encodes a source."""


class Source:
    """A source that was encoded; any number of texts may attend to it at once, which keep it alive.

    ``with model.encode(features) as source:`` closes it at the end.
    """

    def __init__(self, pool: PagePool, pages: list[int], length: int):
        self.pool, self.pages, self.length = pool, pages, length

    def __repr__(self) -> str:
        return f"<Source: length {self.length}{'' if self.pages else ', closed'}>"

    def __len__(self) -> int:
        return self.length

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def share(self) -> Source:
        """Another hold of the same keys and values.

        Raises
        ------
        UsageError : the source is closed.
        """
        if not self.pages:
            raise UsageError("the source is closed", hint="encode it again: model.encode(...)")
        self.pool.share(self.pages)
        return Source(self.pool, list(self.pages), self.length)

    def close(self) -> None:
        """Give this hold back; the pages are free once nobody holds them."""
        pages, self.pages = self.pages, []
        self.pool.give_back(pages)


class SourceEncoder:
    """Encoder of a library, and the pool that holds what it gives.

    Parameters
    ----------
    pages : of the pool.
    """

    def __init__(self, library: Library, facts: LanguageFacts, pages: int):
        assert facts.source is not None
        self.facts: SourceFacts = facts.source
        self.pool = PagePool(facts, pages)
        self._page = facts.page
        first: tuple[Any, ...] = (2 * self.facts.longest, self.facts.mels) if self.facts.mels else ("rows",)
        keys, values = facts.page_shapes
        shapes = [first, ("rows",), ("rows",), (1, "pages"), ("pool", *keys), ("pool", *values)]
        dtypes = ["float32" if self.facts.mels else "int32", *["int32"] * 3, *[facts.cache] * 2]
        names = ("source", "positions", "sequences", "tables", "source_keys", "source_values")
        specs = [TensorSpec(*spec) for spec in zip(names, shapes, dtypes, strict=True)]
        self._call = library.function(ENTRY, specs, "float32")

    def pages_of(self, source: np.ndarray | Sequence[int]) -> int:
        """Pages that a source takes."""
        return -(-self._rows(self._listed(source)) // self._page)

    def encode(self, source: np.ndarray | Sequence[int]) -> Source:
        """Encode tokens, or features of audio ``[mels, frames]``, also as an array or a tensor of one source.

        Raises
        ------
        InputError : what no source of this model can be; lists all.
        CapacityError : there is no room for it.
        """
        self.check(source)
        source = self._listed(source)
        rows = self._rows(source)
        held = Source(self.pool, self.pool.take(-(-rows // self._page)), rows)
        places = np.arange(rows, dtype=np.int32)
        given = np.asarray(source, np.float32 if self.facts.mels else np.int32)
        self._call(
            np.ascontiguousarray(given.T) if self.facts.mels else given,
            places,
            np.zeros(rows, np.int32),
            np.array([held.pages], np.int32),
            self.pool.keys,
            self.pool.values,
        )
        return held

    def check(self, source: np.ndarray | Sequence[int]) -> None:
        """Raise :class:`InputError` for what no source of this model can be."""
        f, source = self.facts, self._listed(source)
        if f.mels:
            shape, want = np.shape(source), (f.mels, 2 * f.longest)
            if shape != want or np.asarray(source).dtype.kind not in "fiu":
                raise InputError(
                    f"the features are {list(shape)}, expected {list(want)} (channels, frames)",
                    hint="pad or cut the audio as the model's feature extractor does",
                )
            if not np.isfinite(np.asarray(source, np.float32)).all():
                raise InputError("the features have numbers that are not finite")
            return
        problems = [
            f"token {token!r} at {place} is not a whole number from 0 to {f.vocab - 1}"
            for place, token in enumerate(source)
            if isinstance(token, (bool, np.bool_))
            or not isinstance(token, (int, np.integer))
            or not 0 <= token < f.vocab
        ]
        if not 0 < len(source) <= f.longest:
            problems.append(f"there are {len(source)} tokens, expected 1 to {f.longest}")
        if problems:
            raise InputError("wrong tokens of a source", problems=shortened(problems))

    def _listed(self, source: np.ndarray | Sequence[int]) -> np.ndarray | Sequence[int]:
        """Tokens as a list; features without the axis of one source, which feature extractors give."""
        if not self.facts.mels:
            return token_list(source)
        features = np.asarray(source)
        return features[0] if features.ndim == 3 and len(features) == 1 else features

    def _rows(self, source: np.ndarray | Sequence[int]) -> int:
        return self.facts.longest if self.facts.mels else len(source)
