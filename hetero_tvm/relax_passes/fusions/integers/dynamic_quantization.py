"""Products with constant weights -> ``ops.DynamicMatmul``: 8-bit weights, rows quantised at run time.

The rule is part of ``--precision int8``.  It comes after the epilogues and takes each product as it is then,
gated ones too, with its bias, activation and residual, which stay float32.  Products that would lose more
than they win stay in float32: with few columns or a short reduction, quantising the rows costs as much as the
product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hetero_tvm.host.tvm import Call, Var, relax
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.ops.integers.dynamic_matmul import DynamicGatedMatmul, DynamicMatmul, quantized_weights
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.relax_passes.rewriting.fused import Claims, contract
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule

LEAST_COLUMNS = 32
"""Columns from which quantising a row costs less than what its product gains."""
LEAST_DEPTH = 32
"""Reduction length from which it does."""


@dataclass
class _Found:
    op: FusedOp
    call: Call
    weights: np.ndarray
    factors: np.ndarray | None


class QuantizeDynamically(Rule):
    """Products in 8 bits, wherever the target has a kernel.

    Parameters
    ----------
    claims : whether the target has a kernel for an operator.
    pairs_safe : pairs of weights that are scaled so that they cannot saturate 16 bits where they meet.
    kept : source nodes whose products stay in float32.
    factors : vectors [k] by source node of a product: X is divided by its vector before it is rounded, and
        the rows of the weights are multiplied with it (SmoothQuant).
    """

    name = "dynamic_quantization"
    anchors = ("relax.call_tir",)

    def __init__(
        self,
        claims: Claims,
        pairs_safe: int,
        kept: frozenset[str] = frozenset(),
        factors: Mapping[str, np.ndarray] | None = None,
    ):
        self._claims, self._pairs_safe, self._kept = claims, pairs_safe, kept
        self._factors = factors or {}

    def match(self, graph: Graph, var: Var) -> _Found | None:
        if (product := float_product(graph, var, self._kept)) is None:
            return None
        call, found, weights = product
        if found.n < LEAST_COLUMNS or found.k < LEAST_DEPTH:
            raise Miss(f"{found.k} x {found.n} weights are too few to win by 8 bits")
        if not np.isfinite(weights).all():
            raise Miss("a weight is not finite")
        names = [name for name in graph.sources(var) if name in self._factors]
        factors = self._factors[names[-1]] if names else None
        op = dynamic_form(found, self._pairs_safe, factors is not None)
        if not self._claims(op):
            raise Miss("the target has no kernel for it")
        return _Found(op, call, weights, factors)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        x, _, *extra = found.call.args[1].fields
        operands = [relax.const(array) for array in dynamic_weights(found.weights, found.op, found.factors)]
        args = [x, *operands, *extra]
        graph.replace(var, graph.call_function(found.op.workload(), found.op.label, args, var), [var])


def float_product(
    graph: Graph, var: Var, kept: frozenset[str]
) -> tuple[Call, Matmul | GatedMatmul, np.ndarray] | None:
    """A float32 product at ``var``: its call, its contract, its weights [k, columns]; None for other kernels.

    Raises
    ------
    Miss : one of its source nodes is among ``kept``, or its weights are not constant.
    """
    call = graph.value(var)
    found = contract(graph.functions(), call)
    if not isinstance(found, Matmul | GatedMatmul) or found.dtype != "float32":
        return None
    if chosen := kept.intersection(graph.sources(var)):
        raise Miss(f"{min(chosen)} is kept in float32")
    weights = array_of(graph.value(call.args[1].fields[1]))
    if weights is None:
        raise Miss("the weights are not constant")
    return call, found, weights


def dynamic_form(
    op: Matmul | GatedMatmul, pairs_safe: int, smoothed: bool = False
) -> DynamicMatmul | DynamicGatedMatmul:
    """The product of 8-bit integers that stands for one of floats."""
    size = (op.lead, op.n, op.k)
    if isinstance(op, GatedMatmul):
        return DynamicGatedMatmul(*size, op.activation, op.biased, pairs_safe, smoothed=smoothed)
    return DynamicMatmul(*size, op.epilogue, pairs_safe, smoothed=smoothed)


def dynamic_weights(
    w: np.ndarray, op: DynamicMatmul | DynamicGatedMatmul, factors: np.ndarray | None = None
) -> list[np.ndarray]:
    """Operands of ``op`` that the float weights [k, columns] become: integers, scales, and what smooths X."""
    if factors is None:
        return [*quantized_weights(w, op.pairs_safe)]
    factors = factors.astype(np.float32)
    return [*quantized_weights(w * factors[:, None], op.pairs_safe), 1 / factors]
