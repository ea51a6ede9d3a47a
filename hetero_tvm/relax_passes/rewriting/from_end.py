"""Indices that the import has counted from the end of an axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero_tvm.host.tvm import Expr
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, shape_of


def counted_from_end(graph: Graph, indices: Expr, extents: Sequence[int] | None = None) -> Expr | None:
    """Given indices, where ``indices`` are these with the extents added to what is below zero; else None.

    ``extents`` : what must be added, by column; None where any number does, as no index is below zero.
    """
    where = graph.call(indices, "relax.where")
    below = None if where is None else graph.call(where.args[0], "relax.less")
    if below is None or not below.args[0].same_as(where.args[2]):
        return None
    given = where.args[2]
    if extents is not None:
        total = graph.call(where.args[1], "relax.add")
        if total is None or not total.args[0].same_as(given) or shape_of(given) != shape_of(indices):
            return None
        if not _is(graph, below.args[1], [0] * len(extents)) or not _is(graph, total.args[1], extents):
            return None
    return given


def _is(graph: Graph, number: Expr, wanted: Sequence[int]) -> bool:
    """Whether a constant is ``wanted``, or each of it."""
    known = array_of(graph.value(number))
    return known is not None and set(np.broadcast_to(known.reshape(-1), len(wanted)) - wanted) == {0}
