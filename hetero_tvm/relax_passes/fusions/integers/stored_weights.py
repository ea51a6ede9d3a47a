"""Products with constant weights -> ``ops.StoredMatmul``: weights of 16, 8 or 4 bits, float32 arithmetic.

The rule comes after the epilogues and takes each product as it is then, gated ones too.  Integers serve
every number of rows: with few the weights' way from memory is what takes the time, and with many their place
in memory is still a fourth or an eighth.  Halves serve few rows only: with many each of them would be
converted once for every register tile, which costs more time than their half of the memory saves.  But where
the machine multiplies bfloat16, rows of X are rounded to it too, and any number of them is faster.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Call, Var
from hetero_tvm.ops.decoding.storage import GROUPS, QuantizedWeight, Storage, stored
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.ops.integers.stored_matmul import StoredMatmul
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.relax_passes.fusions.integers.dynamic_quantization import float_product
from hetero_tvm.relax_passes.rewriting.fused import Claims
from hetero_tvm.relax_passes.rewriting.graph import Graph
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule

LEAST_WEIGHTS = 1024
"""Weights of a product from which their memory counts."""
MOST_ROWS_OF_HALVES = 8
"""Rows up to which halves are faster than float32."""
_LARGEST = {"f16": 65504.0, "bf16": 3.38e38}

RoundedBits = Callable[[str, int], int]
"""(form, rows) -> bits that X is rounded to beside weights of that form."""


@dataclass
class _Found:
    op: StoredMatmul
    call: Call
    weights: np.ndarray
    storage: Storage


class StoreWeights(Rule):
    """Weights in few bits, wherever the target has a kernel.

    Parameters
    ----------
    claims : whether the target has a kernel for an operator.
    storage : form of the weights; groups are smaller where columns are shorter.
    rounded : bits that X is rounded to.
    kept : source nodes whose products stay in float32.
    """

    name = "stored_weights"
    anchors = ("relax.call_tir",)

    def __init__(
        self,
        claims: Claims,
        storage: Storage,
        rounded: RoundedBits = lambda form, rows: 0,
        kept: frozenset[str] = frozenset(),
    ):
        self._claims, self._storage, self._rounded, self._kept = claims, storage, rounded, kept

    def match(self, graph: Graph, var: Var) -> _Found | None:
        if (product := float_product(graph, var, self._kept)) is None:
            return None
        call, found, weights = product
        if weights.size < LEAST_WEIGHTS:
            raise Miss(f"{found.k} x {found.n} weights are too few to count in memory")
        storage = fitting_storage(self._storage, found.k)
        if storage is None:
            raise Miss(f"{found.k} weights of a column are less than a group")
        x_bits = self._rounded(storage.name, found.m)
        if not storage.bits and not x_bits and found.m > MOST_ROWS_OF_HALVES:
            raise Miss(
                f"{found.m} rows: float32 weights are faster, halves up to {MOST_ROWS_OF_HALVES} rows only"
            )
        if not np.isfinite(weights).all():
            raise Miss("a weight is not finite")
        if (largest := float(np.abs(weights).max())) > _LARGEST.get(storage.name, np.inf):
            raise Miss(f"a weight of {largest:.3g} is beyond the range of {storage.name}")
        op = stored_form(found, storage, x_bits)
        if not self._claims(op):
            raise Miss("the target has no kernel for it")
        return _Found(op, call, weights, storage)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        x, _, *extra = found.call.args[1].fields
        weights = [constant(array) for array in stored_weights(found.weights, found.storage)]
        args = [x, *weights, *extra]
        graph.replace(var, graph.call_function(found.op.workload(), found.op.label, args, var), [var])


def fitting_storage(storage: Storage, k: int) -> Storage | None:
    """``storage`` in the largest groups that columns of ``k`` weights fill; None where they fill none."""
    if not storage.bits or k >= storage.group:
        return storage
    groups = [group for group in GROUPS if group <= k]
    return dataclasses.replace(storage, group=groups[-1]) if groups else None


def stored_form(op: Matmul | GatedMatmul, storage: Storage, x_bits: int) -> StoredMatmul:
    """The product with stored weights that stands for one of floats."""
    form = (storage.name, storage.group, storage.zero_points)
    more = {"x_bits": x_bits, "scales": storage.scales}
    if isinstance(op, GatedMatmul):
        return StoredMatmul(op.lead, op.n, op.k, ("bias",) * op.biased, *form, op.activation, **more)
    return StoredMatmul(op.lead, op.n, op.k, op.epilogue, *form, **more)


def stored_weights(w: np.ndarray, storage: Storage) -> list[np.ndarray]:
    """Operands that float weights [k, columns] become: integers with scales and zero points, or halves."""
    weight = stored(np.ascontiguousarray(w.T), storage)
    if not isinstance(weight, QuantizedWeight):
        return [weight]
    return [part for part in (weight.q, weight.scale, weight.zero) if part is not None]
