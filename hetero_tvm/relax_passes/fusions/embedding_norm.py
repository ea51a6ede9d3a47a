"""Embedding lookups that are added and normalised -> ``ops.EmbeddingNorm``.

From a norm the rule walks back over the additions to lookups in constant tables (LayoutLM has nine) and
constants (positions and token types that never change).  The sum must go to the norm alone: where it
is the residual of what follows as well (GPT-2, Llama), it is another pattern, not a near miss.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.ops.embedding_norm import EmbeddingNorm, Lookup
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.relax_passes.rewriting.fused import contract
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.polynomial import scalings
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule

_MOST_LOOKUPS = 16
"""Most lookups in one kernel: each holds an index in a register."""


@dataclass
class _Terms:
    """Terms of the sum: (factor, table, indices) of lookups, constants, others; the bindings seen."""

    lookups: list[tuple[float, Expr, Expr]] = field(default_factory=list)
    constants: list[np.ndarray] = field(default_factory=list)
    absorbed: list[Var] = field(default_factory=list)
    others: list[Expr] = field(default_factory=list)


class FuseEmbeddingNorm(Rule):
    """Lookups, additions and layer or RMS norm as one operator."""

    name = "embedding_norm"
    anchors = ("relax.call_tir",)

    def match(self, graph: Graph, var: Var) -> tuple[Normalization, _Terms, list[Expr]] | None:
        norm = contract(graph.functions(), graph.value(var))
        if not isinstance(norm, Normalization) or norm.trail:  # one over an axis before the embedding's
            return None
        x, *vectors = graph.value(var).args[1].fields
        if graph.only_user(x) is None:
            return None
        terms = _Terms()
        _collect(graph, x, terms)
        if not terms.lookups:
            return None
        if terms.others:
            names = ", ".join(
                graph.node(v) if isinstance(v, relax.Var) else "a constant" for v in terms.others
            )
            raise Miss(f"{names} is added to the embeddings, and is neither a lookup nor a constant")
        if len(terms.lookups) > _MOST_LOOKUPS:
            raise Miss(f"{len(terms.lookups)} embeddings are added, expected at most {_MOST_LOOKUPS}")
        for _, table, _ in terms.lookups:
            if dtype_of(table) != "float32":
                raise Miss(f"a table is of dtype {dtype_of(table)}, expected float32")
        return norm, terms, vectors

    def rewrite(self, graph: Graph, var: Var, found: tuple[Normalization, _Terms, list[Expr]]) -> None:
        norm, terms, vectors = found
        rank, operands, lookups = len(norm.lead), [], []
        for factor, table, indices in terms.lookups:
            shape = shape_of(indices)
            if len(shape) != rank:
                shape = (1,) * (rank - len(shape)) + shape
                name = f"{var.name}#indices{len(lookups)}"
                indices = graph.insert_before(var, relax.op.reshape(indices, shape), name, [])
            lookups.append(Lookup(shape_of(table)[0], shape, dtype_of(indices), factor))
            operands += [indices, table]
        added: tuple[int, ...] = ()
        if terms.constants:
            # float64: the sum should round once.
            constant = sum(array.astype("float64") for array in terms.constants)
            added = (*np.shape(constant)[:-1], norm.n)
            operands.append(
                relax.const(np.ascontiguousarray(np.broadcast_to(constant, added)).astype("float32"))
            )
        op = EmbeddingNorm(norm.lead, norm.n, tuple(lookups), added, norm.eps, norm.centered, norm.shifted)
        call = graph.call_function(op.workload(), op.label, [*operands, *vectors], var)
        graph.replace(var, call, absorbs=terms.absorbed)


def _collect(graph: Graph, expr: Expr, terms: _Terms) -> None:
    """Sort the terms of the sum ``expr``; a sum or lookup that is used elsewhere as well is another term."""
    array = array_of(graph.value(expr))
    if array is not None:
        terms.constants.append(array)
        return
    own = graph.only_user(expr) is not None
    call = graph.call(expr, "relax.add")
    if own and call is not None:
        terms.absorbed.append(expr)
        for arg in call.args:
            _collect(graph, arg, terms)
        return
    for base, factor in scalings(graph, expr) if own else ():
        take = graph.call(base, "relax.take")
        if take is not None and _is_lookup(graph, take) and graph.only_user(base) is not None:
            terms.absorbed += [expr, base]
            terms.lookups.append((factor, graph.value(take.args[0]), take.args[1]))
            return
    terms.others.append(expr)


def _is_lookup(graph: Graph, take: Call) -> bool:
    table = array_of(graph.value(take.args[0]))
    if table is None or table.ndim != 2 or not isinstance(take.args[1], relax.Var):
        return False
    # "wrap" is how the importer writes ONNX Gather: negative indices count from the end.
    wraps = str(take.attrs.mode) == "wrap" and take.attrs.axis is not None
    return wraps and int(take.attrs.axis) == 0 and dtype_of(take.args[1]) in ("int32", "int64")
