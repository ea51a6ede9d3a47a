"""Lookups at constant, evenly spaced places become slices, which other rules read through."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetero_tvm.host.tvm import Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


class _Found(NamedTuple):
    x: Var
    axis: int
    begin: int
    end: int
    step: int


class SliceOfTake(Rule):
    """``take(x, [a, a + s, a + 2s, ...])`` -> ``strided_slice(x)``, or x itself when nothing is left out.

    The same of ``gather_nd`` with places [N, 1], a lookup along the first axis.
    """

    name = "slice_of_take"
    counted = False
    anchors = ("relax.take", "relax.gather_nd")

    def match(self, graph: Graph, var: Var) -> _Found | None:
        call = graph.value(var)
        x, places = call.args[0], array_of(graph.value(call.args[1]))
        is_take = graph.op_name(var) == "relax.take"
        along = call.attrs.axis if is_take else int(call.attrs.batch_dims)
        if places is None or along is None or (not is_take and (along or places.shape[-1:] != (1,))):
            return None
        places = places.astype(np.int64) if is_take else places[..., 0].astype(np.int64)
        if places.ndim != 1 or not places.size:
            return None
        shape = shape_of(x)
        axis = int(along) % len(shape)
        if is_take and str(call.attrs.mode) == "wrap":
            places = np.mod(places, shape[axis])
        step = int(places[1] - places[0]) if places.size > 1 else 1
        inside = 0 <= places.min() and places.max() < shape[axis]
        if not inside or step < 1 or (np.diff(places) != step).any() or not isinstance(x, relax.Var):
            return None
        return _Found(x, axis, int(places[0]), int(places[-1]) + 1, step)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        x, axis, begin, end, step = found
        if shape_of(x) == shape_of(var):
            graph.forward(var, x)
        else:
            graph.replace(var, relax.op.strided_slice(x, [axis], [begin], [end], [step]))
