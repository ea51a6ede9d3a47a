"""Attention as an operator in its products and its softmax, from which fusions make their own."""

from __future__ import annotations

import numpy as np

from hetero_tvm.host.tvm import Call, Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


class AttentionAsProducts(Rule):
    """``attention(q [B, S, H, D], k, v)`` -> ``softmax(q k^T scale + bias) v`` of [B, H, S, D]."""

    name = "attention_operator"
    counted = False
    anchors = ("relax.nn.attention", "relax.nn.attention_bias")

    def match(self, graph: Graph, var: Var) -> Call | None:
        call = graph.value(var)
        mask = call.attrs.causal_mask
        if dtype_of(var) != "float32" or 0 in shape_of(var) or call.attrs.window_size is not None:
            return None
        return call if mask is None or str(mask) in ("TopLeft", "BottomRight") else None

    def rewrite(self, graph: Graph, var: Var, found: Call) -> None:
        q, k, v, *bias = found.args
        bind = graph.binder(var, [var])
        query_BHSD = bind(relax.op.permute_dims(q, [0, 2, 1, 3]), "query")
        key_BHDT = bind(relax.op.permute_dims(k, [0, 2, 3, 1]), "key")
        value_BHTD = bind(relax.op.permute_dims(v, [0, 2, 1, 3]), "value")
        scale = found.attrs.scale
        factor = shape_of(q)[-1] ** -0.5 if scale is None else float(scale)
        scores = bind(relax.op.matmul(query_BHSD, key_BHDT), "scores")
        scores = bind(relax.op.multiply(scores, relax.const(factor, "float32")), "scaled")
        for term in bias:
            scores = bind(relax.op.add(scores, term), "biased")
        if found.attrs.causal_mask is not None:
            rows, columns = shape_of(q)[1], shape_of(k)[1]
            first = columns - rows if str(found.attrs.causal_mask) == "BottomRight" else 0
            seen = np.tri(rows, columns, first, dtype=bool)
            hidden = np.where(seen, 0, -np.inf).astype("float32")
            scores = bind(relax.op.add(scores, relax.const(hidden.reshape(1, 1, rows, columns))), "causal")
        weights = bind(relax.op.nn.softmax(scores, -1), "weights")
        mixed = bind(relax.op.matmul(weights, value_BHTD), "mixed")
        graph.replace(var, relax.op.permute_dims(mixed, [0, 2, 1, 3]))
