"""Weights of mixtures of experts: of each expert by name, or of all in one array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero_tvm.errors import ModelError
from hetero_tvm.language.weights import DecoderWeights
from hetero_tvm.ops.decoding.storage import QuantizedWeight, Weight, storage_of, stored, taken

_IN_ONE_ARRAY = {("gate_proj", "up_proj"): "gate_up_proj", ("w1", "w3"): "gate_up_proj", ("w2",): "down_proj"}
"""Names of matrices of one expert -> that of the array of all experts."""


def expert_matrices(
    weights: DecoderWeights, base: str, matrices: Sequence[str], n: int, k: int, rows: tuple[int, ...] = ()
) -> tuple[list[Weight], np.ndarray | None]:
    """A matrix [n, k] of each expert in its stored form, and their biases float32 [experts, n].

    Parameters
    ----------
    base : what the names of the layer begin with.
    matrices : names of what is stacked to one matrix.
    rows : rows of it, in the order of the result.
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
    if len({storage_of(part) for part in parts}) > 1:
        raise ModelError(f"experts of {base.rstrip('.')} are stored in different forms")
    return parts, biases


def _of_one_array(
    weights: DecoderWeights, name: str, n: int, k: int, rows: tuple[int, ...]
) -> tuple[list[Weight], np.ndarray | None]:
    experts = weights.decoder.experts
    assert experts is not None
    full = weights.find(name, "") or weights.need(name)
    whole = weights.checkpoint.matrix(full)
    turned = weights.names.expert_transposed
    expected = (experts.count, k, n) if turned else (experts.count, n, k)
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
