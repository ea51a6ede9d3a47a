"""Weights of a checkpoint in the shapes that the step wants: stacked, the right way round, in their stored
form; of mixtures of experts each by name, or all in one array."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hetero_tvm.errors import ModelError
from hetero_tvm.language.checkpoints.checkpoint import Checkpoint
from hetero_tvm.language.families.decoder import Decoder, Names
from hetero_tvm.ops.decoding.storage import (
    QuantizedWeight,
    Storage,
    Weight,
    joined,
    storage_of,
    stored,
    taken,
)


@dataclass(frozen=True)
class DecoderWeights:
    """Weights of a decoder by role; read from the checkpoint when they are asked for."""

    decoder: Decoder
    names: Names
    checkpoint: Checkpoint
    storage: Storage

    def find(self, name: str, suffix: str = ".weight") -> str | None:
        """Full name of a tensor; None when there is none."""
        known = [name, *(name.replace(*pair) for pair in self.names.aliases if pair[0] in name)]
        full = (prefix + one + suffix for one in known for prefix in self.names.prefixes)
        return next((one for one in full if one in self.checkpoint), None)

    def need(self, name: str, suffix: str = ".weight") -> str:
        """Full name of a tensor; :class:`ModelError` when there is none."""
        found = self.find(name, suffix)
        if found is None:
            raise ModelError(
                f"the checkpoint has no tensor {self.names.prefixes[0]}{name}{suffix}",
                hint="is config.json that of these weights?",
            )
        return found

    def matrix(self, names: list[str], n: int, k: int, rows: tuple[int, ...] = (), total: int = 0) -> Weight:
        """Matrices below one another in the stored form, [n, k] together.

        Parameters
        ----------
        rows : rows of them, in this order; empty for all.
        total : rows that they have, where that is not ``n``.
        """
        parts = []
        for name in names:
            weight = self.checkpoint.matrix(self.need(name))
            weight = self._scaled(weight, name)
            if self.names.transposed:
                weight = np.ascontiguousarray(weight.T)
            if len(weight.shape) != 2 or weight.shape[1] != k:
                raise ModelError(f"{self.need(name)} is {list(weight.shape)}, expected [.., {k}]")
            parts.append(weight)
        forms = {part.storage if isinstance(part, QuantizedWeight) else None for part in parts}
        if len(forms) > 1:  # parts of one product in one form
            parts = [p.dequantized() if isinstance(p, QuantizedWeight) else p for p in parts]
        whole = joined([stored(part, self.storage) for part in parts])
        if whole.shape != (total or n, k):
            expected = [total or n, k]
            raise ModelError(f"{', '.join(names)} are {list(whole.shape)} together, expected {expected}")
        return taken(whole, rows) if rows else whole

    def _scaled(self, weight: Weight, name: str) -> Weight:
        """The matrix of a name with its rows multiplied as the architecture says."""
        runs = next((runs for end, runs in self.names.factors.items() if name.endswith(end)), ())
        if all(factor == 1.0 for _, factor in runs):
            return weight
        weight = weight.dequantized() if isinstance(weight, QuantizedWeight) else weight
        if sum(rows for rows, _ in runs) != weight.shape[0]:
            raise ModelError(f"{self.need(name)} is {list(weight.shape)}, and its rows have other factors")
        factors = np.concatenate([np.full(rows, factor, np.float32) for rows, factor in runs])
        return weight.astype(np.float32) * factors[:, None]

    def bias(self, names: list[str], n: int, rows: tuple[int, ...] = (), total: int = 0) -> np.ndarray | None:
        """Biases of stacked matrices, float32 [n]; zeros where only some have one; None where none has."""
        found = [self.find(name, ".bias") for name in names]
        if not any(found):
            return None
        parts = []
        for name, full in zip(names, found, strict=True):
            count = self.checkpoint.matrix(self.need(name)).shape[1 if self.names.transposed else 0]
            parts.append(np.zeros(count, np.float32) if full is None else self.checkpoint.array(full))
        whole = np.concatenate(parts)
        if whole.shape != (total or n,):
            expected = [total or n]
            raise ModelError(f"the biases of {', '.join(names)} are {list(whole.shape)}, expected {expected}")
        return whole[list(rows)] if rows else whole

    def norm(self, name: str, n: int) -> list[np.ndarray]:
        """Scale, and shift of a centered norm, each float32 [n]."""
        if self.decoder.plain_norms:
            return [np.ones(n, np.float32), np.zeros(n, np.float32)][: 1 + self.decoder.centered]
        arrays = [self.checkpoint.array(self.need(name)) + np.float32(self.decoder.norm_offset)]
        if self.decoder.centered:
            shift = self.find(name, ".bias")
            arrays.append(np.zeros(n, np.float32) if shift is None else self.checkpoint.array(shift))
        for array in arrays:
            if array.shape != (n,):
                raise ModelError(f"{name} is {list(array.shape)}, expected [{n}]")
        return arrays

    def sinks(self, base: str) -> np.ndarray:
        """Scores of no key of each head of a layer, float32 [heads]."""
        name = self.need(base + self.names.sinks, "")
        scores = self.checkpoint.array(name)
        if scores.shape != (self.decoder.heads,):
            raise ModelError(f"{name} is {list(scores.shape)}, expected [{self.decoder.heads}]")
        return scores

    def table(self, name: str, rows: int, width: int, spare: int = 0) -> np.ndarray:
        """The table of this full name, float32 or float16 [rows, width], without the ``spare`` rows that it
        may have behind these."""
        weight = self.checkpoint.matrix(name)
        if isinstance(weight, QuantizedWeight):
            weight = weight.dequantized()
        if spare and weight.shape == (rows + spare, width):
            weight = np.ascontiguousarray(weight[:rows])
        if weight.shape != (rows, width):
            raise ModelError(f"{name} is {list(weight.shape)}, expected [{rows}, {width}]")
        return weight

    def embeddings(self) -> str:
        """Full name of the table of embeddings; :class:`ModelError` when there is none."""
        return self.find(self.names.embed) or self.find(self.names.shared) or self.need(self.names.embed)

    def positions(self) -> np.ndarray:
        """Table of positions, float32 [rows, width]: the checkpoint's, or sinusoids."""
        d = self.decoder
        if not d.sinusoids:
            table = self.table(self.need(self.names.positions), d.learned, d.width).astype(np.float32)
            if self.names.segments:
                table = table + self.checkpoint.array(self.need(self.names.segments))[0]
            return table
        half = -(-d.width // 2)
        at = np.arange(d.learned)[:, None]
        table = np.zeros((d.learned, d.width), np.float32)
        if d.sinusoids == "marian":
            angles = at / 10000.0 ** (2 * np.arange(half) / d.width)
            table[:, :half], table[:, half:] = np.sin(angles), np.cos(angles)[:, : d.width - half]
        else:
            half = d.width // 2
            angles = at * np.exp(np.arange(half) * (-math.log(10000.0) / (half - 1)))
            table[:, :half], table[:, half : 2 * half] = np.sin(angles), np.cos(angles)
        return table

    def slopes(self, longest: int) -> np.ndarray:
        """Biases by distance of ALiBi, float32 [heads, distances], in the order of :meth:`relative`."""
        ahead = np.arange(1 - longest, 1, dtype=np.float32)
        return np.asarray(self.decoder.slopes, np.float32)[:, None] * ahead

    def relative(self, longest: int, both: bool) -> np.ndarray:
        """Biases by distance, float32 [heads, distances]: of the tokens ``longest - 1`` before a token to the
        token itself; of those behind it as well where a token sees ``both`` sides."""
        relative = self.decoder.relative
        assert relative is not None
        table = self.checkpoint.array(self.need(self.names.relative))
        if table.shape != (relative.buckets, self.decoder.heads):
            raise ModelError(
                f"{self.need(self.names.relative)} is {list(table.shape)}, "
                f"expected [{relative.buckets}, {self.decoder.heads}]"
            )
        ahead = np.arange(1 - longest, longest if both else 1)
        buckets = relative.buckets // 2 if both else relative.buckets
        exact = buckets // 2
        far = np.abs(ahead)
        grown = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(exact))
        grown = grown / np.float32(math.log(relative.distance / exact)) * np.float32(buckets - exact)
        bucket = np.where(far < exact, far, np.minimum(exact + grown.astype(np.int64), buckets - 1))
        return np.ascontiguousarray(table[bucket + np.where(both & (ahead > 0), buckets, 0)].T)

    def convolution(self, name: str, n: int, k: int, size: int) -> Weight:
        """A convolution over rows as a matrix [n, size * k] in the stored form."""
        array = self.checkpoint.array(self.need(name))
        if array.shape != (n, k, size):
            raise ModelError(f"{self.need(name)} is {list(array.shape)}, expected [{n}, {k}, {size}]")
        return stored(np.ascontiguousarray(array.transpose(0, 2, 1).reshape(n, size * k)), self.storage)

    def head_bias(self) -> np.ndarray | None:
        """Biases of the logits, float32 [vocab]; None where there are none."""
        name = self.names.head_bias
        found = next((p + name for p in ("", *self.names.prefixes) if p + name in self.checkpoint), None)
        if not name or found is None:
            return None
        bias = self.checkpoint.array(found).reshape(-1)
        if bias.shape != (self.decoder.vocab,):
            raise ModelError(f"{found} has {bias.size} numbers, expected {self.decoder.vocab}")
        return bias if bias.any() else None

    def head(self) -> str | None:
        """Full name of the matrix of logits; None where it is the embedding.

        :class:`ModelError` where there is none, and the configuration says that the embedding is not it.
        """
        if self.decoder.tied:
            return None
        for name in self.names.heads:
            for prefix in ("", *self.names.prefixes):
                if prefix + name + ".weight" in self.checkpoint:
                    return prefix + name + ".weight"
        config = self.checkpoint.config
        part = config.get("text_config")
        of_part = part.get("tie_word_embeddings") if isinstance(part, Mapping) else None
        if config.get("tie_word_embeddings") is False and not of_part:
            kinds = config.get("architectures")
            raise ModelError(
                f"no matrix gives the logits of tokens ({self.names.heads[0]}.weight): a model that "
                "classifies or embeds texts generates none",
                problems=[f"architectures in config.json: {', '.join(map(str, kinds))}"] if kinds else [],
                hint="export such a model to ONNX and build that file; where the embeddings are that matrix, "
                'write "tie_word_embeddings": true into config.json',
            )
        return None


_IN_ONE_ARRAY = {("gate_proj", "up_proj"): "gate_up_proj", ("w1", "w3"): "gate_up_proj", ("w2",): "down_proj"}
"""Names of matrices of one expert -> that of the array of all experts."""


def expert_matrices(
    weights: DecoderWeights,
    base: str,
    matrices: Sequence[str],
    n: int,
    k: int,
    rows: tuple[int, ...] = (),
    factors: str = "",
) -> tuple[list[Weight], np.ndarray | None]:
    """A matrix [n, k] of each expert in its stored form, and their biases float32 [experts, n].

    Parameters
    ----------
    base : what the names of the layer begin with.
    matrices : names of what is stacked to one matrix.
    rows : rows of it, in the order of the result.
    factors : name of what each is multiplied by; empty for none.
    """
    experts = weights.decoder.experts
    assert experts is not None
    path = base + weights.names.expert
    one, of_all = path.replace("{}.", ""), _IN_ONE_ARRAY.get(tuple(matrices), matrices[0])
    if "{}" in path and weights.find(path.format(0) + matrices[0]) is None and weights.find(one + of_all, ""):
        parts, biases = _of_one_array(weights, one + of_all, n, k, rows)
    elif "{}" in path:
        names = [[path.format(number) + name for name in matrices] for number in range(experts.count)]
        parts = [weights.matrix(some, n, k, rows) for some in names]
        found = [weights.bias(some, n, rows) for some in names]
        biases = None if any(bias is None for bias in found) else np.stack(found)
    else:
        parts, biases = _of_one_array(weights, path + matrices[0], n, k, rows)
    if factors:
        numbers = weights.checkpoint.array(weights.need(factors, "")).reshape(experts.count)
        parts = [_times(part, number, weights.storage) for part, number in zip(parts, numbers, strict=True)]
    if len({storage_of(part) for part in parts}) > 1:
        raise ModelError(f"experts of {base.rstrip('.')} are stored in different forms")
    return parts, biases


def _times(weight: Weight, number: np.float32, storage: Storage) -> Weight:
    """A matrix times a number; integers stay the same, and their scales grow."""
    if isinstance(weight, QuantizedWeight):
        scale = (weight.scale.astype(np.float32) * number).astype(weight.scale.dtype)
        return dataclasses.replace(weight, scale=scale)
    return stored(weight.astype(np.float32) * number, storage)


def _of_one_array(
    weights: DecoderWeights, name: str, n: int, k: int, rows: tuple[int, ...]
) -> tuple[list[Weight], np.ndarray | None]:
    experts = weights.decoder.experts
    assert experts is not None
    full = weights.find(name, "") or weights.need(name)
    whole = weights.checkpoint.matrix(full)
    shapes = ((experts.count, n, k), (experts.count, k, n))
    turned = weights.names.expert_transposed
    if whole.shape in shapes and n != k:  # files of some families have either
        turned = whole.shape == shapes[1]
    expected = shapes[turned]
    if whole.shape != expected or isinstance(whole, QuantizedWeight):
        raise ModelError(f"{full} is {list(whole.shape)}, expected {list(expected)}")
    parts: list[Weight] = []
    for one in whole:
        part = stored(np.ascontiguousarray(one.T if turned else one), weights.storage)
        parts.append(taken(part, rows) if rows else part)
    bias = weights.find(name, "_bias")
    if bias is None:
        return parts, None
    biases = weights.checkpoint.array(bias)
    if biases.shape != (experts.count, n):
        raise ModelError(f"{bias} is {list(biases.shape)}, expected [{experts.count}, {n}]")
    return parts, biases[:, list(rows)] if rows else biases
