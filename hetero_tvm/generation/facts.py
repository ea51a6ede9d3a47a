"""Facts of a language model, in the manifest of its library: what its step takes, and what a text may be."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_tvm.errors import LibraryError
from hetero_tvm.generation.rules import TextRules
from hetero_tvm.generation.sampling import Sampling

VERSION = 2
EMBEDDING = "embedding"
"""Entry of a manifest's ``language`` of a library that embeds texts, in the place of these facts."""
_KEYS = 16
_SCALES = 4


@dataclass(frozen=True)
class SourceFacts:
    """Facts of the source of an encoder-decoder: what its encoder takes, and what its texts begin with.

    Parameters
    ----------
    longest : largest number of rows of a source.
    vocab : number of tokens of its texts; 0 for audio.
    mels : channels of audio, ``2 * longest`` frames of which are a source; 0 for text.
    start : tokens that every text begins with.
    """

    longest: int
    vocab: int
    mels: int
    start: tuple[int, ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SourceFacts:
        """Facts from JSON values."""
        values = {field.name: data[field.name] for field in dataclasses.fields(cls)}
        return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})


@dataclass(frozen=True)
class LanguageFacts:
    """Facts that the run time needs of a model.

    Parameters
    ----------
    architecture, precision : names, for people.
    vocab : number of tokens.
    context : largest number of tokens of a sequence.
    rows : largest number of new tokens of one step.
    layers, kv_heads, dim, page, cache : shape and type of the pools of keys and values.
    ropes : angles per position and channel, and the factor of their cosines and sines.
    rotated : channels that are rotated.
    stop : tokens that end a text.
    read : bytes of weights that a step of one token reads.
    source : of an encoder-decoder; None for other models.
    repetition_penalty : of :class:`~hetero_tvm.generation.sampling.Sampling`, where nobody asks for another.
    rules : about the tokens that may come next.
    values : channels of a value; 0 where they are as many as a key's.
    results : channels of what a step gives of a row, where these are no logits; 0 for logits.
    state : numbers of the state that layers keep of a text, beside or in the place of keys; 0 for none.
    long_ropes, short_texts : like ``ropes``, of texts of more than so many tokens; 0 where there are none.
    """

    architecture: str
    precision: str
    vocab: int
    context: int
    rows: int
    layers: int
    kv_heads: int
    dim: int
    page: int
    cache: str
    ropes: tuple[tuple[tuple[float, ...], float], ...]
    rotated: int
    stop: tuple[int, ...]
    read: int
    source: SourceFacts | None = None
    long_ropes: tuple[tuple[tuple[float, ...], float], ...] = ()
    short_texts: int = 0
    values: int = 0
    results: int = 0
    repetition_penalty: float = 1.0
    rules: TextRules = TextRules()
    state: int = 0

    def bias_problems(self, asked: Sampling) -> list[str]:
        """Problems of the biases that are asked for; empty when there are none."""
        outside = [token for token, _ in asked.bias if not 0 <= token < self.vocab]
        return [f"the bias of token {token}, which is not in the vocabulary" for token in outside[:1]]

    def sampling(
        self, asked: Sampling, given: int, most: int, stop: Collection[int], least: int = 0
    ) -> Sampling:
        """``asked`` with the model's own penalty and rules, for a text of ``given`` tokens and ``most`` new
        ones at most, which those of ``stop`` end behind ``least`` new ones."""
        rules = self.rules
        if least > rules.least_new:
            rules = dataclasses.replace(rules, least_new=least)
        return asked.behind(given, self.repetition_penalty, rules.of_text(given, most, stop))

    def to_json(self) -> dict[str, Any]:
        """JSON values; :meth:`from_json` reads them back."""
        return {"version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], name: str) -> LanguageFacts:
        """Facts of the library ``name``; :class:`LibraryError` when it is no language model."""
        if not data:
            raise LibraryError(
                f"{name} is no language model",
                hint="build one: python -m hetero_tvm.build CHECKPOINT_FOLDER --out DIR",
            )
        if EMBEDDING in data:
            raise LibraryError(
                f"{name} embeds texts, and continues none",
                hint="python -m hetero_tvm.serve_text DIR, or in Python hetero_tvm.load_embedding_model",
            )
        if data.get("version") != VERSION:
            raise LibraryError(f"{name} was built by another hetero_tvm", hint="build the model again")
        values = {"long_ropes": (), "short_texts": 0, "values": 0, "results": 0, "repetition_penalty": 1.0}
        values |= {"state": 0}
        values["rules"] = TextRules()
        values |= {
            f.name: data[f.name] for f in dataclasses.fields(cls) if f.name in data or f.name not in values
        }
        for name in ("ropes", "long_ropes"):
            values[name] = tuple((tuple(inverse), float(factor)) for inverse, factor in values[name])
        values["stop"] = tuple(values["stop"])
        source = values["source"]
        if "rules" in data:
            values["rules"] = TextRules.from_json(data["rules"])
        elif source is not None:  # libraries of before
            hidden = (tuple(source[name]) for name in ("suppressed", "suppressed_first"))
            values["rules"] = TextRules(*hidden)
        values["source"] = None if source is None else SourceFacts.from_json(source)
        return cls(**values)

    @property
    def page_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the keys and of the values of one page."""
        lead, values = (self.layers, self.kv_heads), self.values or self.dim
        if self.cache == "int8":
            panels = (*lead, self.page // _KEYS)
            return (*panels, self.dim + _SCALES, _KEYS), (*panels, values + _SCALES, _KEYS)
        return (*lead, self.page // _KEYS, self.dim, _KEYS), (*lead, self.page, values)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page in both pools."""
        return sum(math.prod(shape) for shape in self.page_shapes) * np.dtype(self.cache).itemsize

    def rope_table(self, positions: int, long: bool = False) -> np.ndarray:
        """Cosines and sines, float32 [positions, tables, rotated]: half of the channels each.

        ``long`` : of texts of more than :attr:`short_texts` tokens.
        """
        table = np.zeros((positions, max(len(self.ropes), 1), max(self.rotated, 1)), np.float32)
        half = self.rotated // 2
        for number, (inverse, factor) in enumerate(self.long_ropes if long else self.ropes):
            angles = np.arange(positions, dtype=np.float32)[:, None] * np.asarray(inverse, np.float32)
            table[:, number, :half] = np.cos(angles) * np.float32(factor)
            table[:, number, half : 2 * half] = np.sin(angles) * np.float32(factor)
        return table
