"""Embeddings of texts: the rows that an encoder gives of a text's tokens, pooled to one vector."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_tvm.errors import CapacityError, InputError, LibraryError, UsageError, did_you_mean, shortened
from hetero_tvm.generation.facts import EMBEDDING, LanguageFacts
from hetero_tvm.generation.model import LanguageModel
from hetero_tvm.generation.text import Tokenizer
from hetero_tvm.runtime.library import Library
from hetero_tvm.runtime.opening import load
from hetero_tvm.runtime.signature import TensorSpec

VERSION = 1
NORMALIZE = "normalize"
DENSE_ENTRY = "main_dense_{}"
"""Function of a library that maps pooled rows; ``{}`` is its number among the steps behind the pooling."""
_LEAST_NORM = 1e-12


def _weighted(rows: np.ndarray) -> np.ndarray:
    """Mean of rows, each weighted by its place."""
    places = np.arange(1, len(rows) + 1, dtype=np.float32)
    return (places @ rows) / places.sum()


POOLINGS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "cls": lambda rows: rows[0],
    "max": lambda rows: rows.max(axis=0),
    "mean": lambda rows: rows.mean(axis=0),
    "mean_sqrt_len": lambda rows: rows.sum(axis=0) / np.float32(len(rows) ** 0.5),
    "weightedmean": _weighted,
    "lasttoken": lambda rows: rows[-1],
}
"""Name -> one vector of the rows of a text, in the order in which several are joined."""


@dataclass(frozen=True)
class EmbeddingFacts:
    """Facts that the run time needs of a model that embeds texts.

    Parameters
    ----------
    architecture, precision : names, for people.
    vocab : number of tokens.
    channels : of a row of the encoder.
    width : numbers of an embedding.
    context : largest number of tokens of a text.
    poolings : names in :data:`POOLINGS`, whose vectors are joined.
    steps : what follows the pooling, in order: ``normalize``, or the width that a dense layer gives.
    lower : texts are written in small letters first.
    prompts : texts that may stand before a text, by name.
    prompt : name of the one that does where nobody asks for another; empty for none.
    """

    architecture: str
    precision: str
    vocab: int
    channels: int
    width: int
    context: int
    poolings: tuple[str, ...]
    steps: tuple[str | int, ...]
    lower: bool = False
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    prompt: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON values; :meth:`from_json` reads them back."""
        return {"version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, language: Mapping[str, Any], name: str) -> EmbeddingFacts:
        """Facts of the library ``name``; :class:`LibraryError` when it embeds no texts."""
        if EMBEDDING not in language:
            raise LibraryError(
                f"{name} embeds no texts",
                hint="build one that does: python -m hetero_tvm.build SENTENCE_TRANSFORMERS_FOLDER --out DIR",
            )
        data = language[EMBEDDING]
        if data.get("version") != VERSION:
            raise LibraryError(f"{name} was built by another hetero_tvm", hint="build the model again")
        try:
            values = {field.name: data[field.name] for field in dataclasses.fields(cls)}
            for entry in ("poolings", "steps"):
                values[entry] = tuple(values[entry])
        except (KeyError, TypeError) as error:
            raise LibraryError(
                f"the facts of {name} are damaged: {error}", hint="build the model again"
            ) from error
        return cls(**values)


class EmbeddingModel:
    """A loaded model that embeds texts.

    >>> model = hetero_tvm.generation.embedding.load_embedding_model("out")
    >>> model.embed(["How are you?", "Fine."]).shape
    (2, 384)
    """

    def __init__(self, library: Library):
        self.library = library
        self.facts = EmbeddingFacts.from_json(library.manifest.language, library.path.name)
        language = {name: value for name, value in library.manifest.language.items() if name != EMBEDDING}
        self._decoder: LanguageModel | None = None
        if language:
            self._decoder = LanguageModel(library, facts=LanguageFacts.from_json(language, library.path.name))
            most = min(self.facts.context, self._decoder.context)
            self.facts = dataclasses.replace(self.facts, context=most)
        self._steps: list[Callable[[np.ndarray], np.ndarray]] = []
        width = self.facts.channels * len(self.facts.poolings)
        for number, step in enumerate(self.facts.steps):
            if isinstance(step, int):
                spec = TensorSpec("rows", ("texts", width), "float32")
                self._steps.append(library.function(DENSE_ENTRY.format(number), [spec], "float32"))
                width = step
            else:
                self._steps.append(_normalized)

    def __repr__(self) -> str:
        f = self.facts
        return f"<EmbeddingModel {f.architecture} {f.precision}, {f.width} numbers, context {f.context}>"

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer beside the library; :class:`LibraryError` when there is none."""
        return Tokenizer(self.library.path.parent)

    def tokens(self, text: str, prompt: str | None = None, longest: int | None = None) -> list[int]:
        """Tokens of a text.

        Parameters
        ----------
        prompt : name of the text that stands before it; None for the model's own choice, "" for none.
        longest : the end of a text of more tokens is cut off; None for all of it.

        Raises
        ------
        UsageError : there is no prompt of this name.
        InputError : half of a surrogate pair is in it.
        """
        f = self.facts
        name = f.prompt if prompt is None else prompt
        if name and name not in f.prompts:
            there = ", ".join(map(repr, f.prompts)) or "none"
            raise UsageError(
                f"there is no prompt {name!r}; there are: {there}", hint=did_you_mean(name, f.prompts)
            )
        text = f.prompts.get(name, "") + text
        text = text.strip().lower() if f.lower else text.strip()
        return self.tokenizer.encode(text, longest=longest)

    def embed(
        self, texts: Sequence[str], *, prompt: str | None = None, dimensions: int | None = None
    ) -> np.ndarray:
        """Embeddings of texts, float32 [texts, width]; one that is too long loses its end, as with
        sentence-transformers.

        Parameters
        ----------
        prompt : see :meth:`tokens`.
        dimensions : so many numbers of each only, which are normalised again where the model normalises.

        Raises
        ------
        UsageError : an argument is wrong.
        InputError : texts are no list of texts.
        """
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise InputError("texts are a list of str", hint="for one text: model.embed([text])[0]")
        longest = self.facts.context
        return self.embed_tokens([self.tokens(text, prompt, longest) for text in texts], dimensions)

    def embed_tokens(self, texts: Sequence[Sequence[int]], dimensions: int | None = None) -> np.ndarray:
        """Embeddings of texts that are tokens already, with those that mark beginning and end.

        Raises
        ------
        InputError : tokens that the model has not; lists all.
        CapacityError : a text is longer than the context.
        """
        f = self.facts
        if dimensions is not None and (
            isinstance(dimensions, bool) or not isinstance(dimensions, int) or not 0 < dimensions <= f.width
        ):
            raise UsageError(f"dimensions is {dimensions!r}, expected 1 to {f.width}")
        self._check(texts)
        pooled = np.empty((len(texts), f.channels * len(f.poolings)), np.float32)
        for number, rows in enumerate(self._rows(texts)):
            pooled[number] = np.concatenate([POOLINGS[name](rows) for name in f.poolings])
        for step in self._steps if len(texts) else ():
            pooled = step(pooled)
        if dimensions is None or dimensions == f.width:
            return pooled.reshape(len(texts), f.width)
        cut = np.ascontiguousarray(pooled[:, :dimensions])
        return _normalized(cut) if f.steps[-1:] == (NORMALIZE,) else cut

    def _rows(self, texts: Sequence[Sequence[int]]) -> Iterator[np.ndarray]:
        """Rows of each text, those that the pooling looks at."""
        decoder = self._decoder
        if decoder is None:
            for tokens in texts:
                yield self.library(np.asarray(tokens, np.int32), np.arange(len(tokens), dtype=np.int32))
            return
        last_only = self.facts.poolings == ("lasttoken",)
        page, done = decoder.facts.page, 0
        while done < len(texts):  # as many together as the cache has room for
            room, count = decoder.pool.pages, 0
            while done + count < len(texts) and count < decoder.facts.rows:
                room -= -(-len(texts[done + count]) // page)
                if room < 0:
                    break
                count += 1
            group = texts[done : done + count]
            last = [1 if last_only else len(tokens) for tokens in group]
            with contextlib.ExitStack() as stack:
                work = [(stack.enter_context(decoder.session()), tokens) for tokens in group]
                found = decoder.step(work, last)
            yield from np.split(found, np.cumsum(last)[:-1])
            done += count

    def _check(self, texts: Sequence[Sequence[int]]) -> None:
        f, problems = self.facts, []
        for number, tokens in enumerate(texts):
            if not len(tokens):
                problems.append(f"text {number} has no tokens")
            problems += [
                f"text {number}: token {token!r} at {place} is not a whole number from 0 to {f.vocab - 1}"
                for place, token in enumerate(tokens)
                if isinstance(token, (bool, np.bool_))
                or not isinstance(token, (int, np.integer))
                or not 0 <= token < f.vocab
            ]
        if problems:
            raise InputError("wrong tokens for the model", problems=shortened(problems))
        long = [f"text {n} has {len(tokens)}" for n, tokens in enumerate(texts) if len(tokens) > f.context]
        if long:
            raise CapacityError(
                f"a text has {f.context} tokens at most", problems=shortened(long), hint="cut it into pieces"
            )


def load_embedding_model(
    path: str | os.PathLike[str], *, threads: int | None = None, pin: bool | Iterable[int] | None = None
) -> EmbeddingModel:
    """Load what :func:`hetero_tvm.build_embedding_model` wrote; needs no compiler.

    Parameters
    ----------
    path : the folder, or the ``.so`` in it.
    threads, pin : as of :func:`hetero_tvm.load`.

    Raises
    ------
    LibraryError : it cannot be loaded here, or embeds no texts.
    UsageError : an argument is wrong.
    """
    return EmbeddingModel(load(path, threads=threads, pin=pin))


def _normalized(rows: np.ndarray) -> np.ndarray:
    """Rows of length one; zeros stay."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(_LEAST_NORM))
