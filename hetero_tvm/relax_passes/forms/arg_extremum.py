"""Positions of extrema by comparison with the extremum: every step is one that targets have in vectors.

TVM's reduction of pairs begins with a place outside of the tensor, and ends there where nothing is larger
than the least number.
"""

from __future__ import annotations

import math

import numpy as np

from hetero_tvm.host.tvm import Call, Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule

_MOST_ELEMENTS = 1 << 31
"""Elements of a tensor whose positions int32 still counts."""


class ArgAsExtremum(Rule):
    """``argmax(x)`` -> the least position where x is its maximum (``argmin`` with the minimum).

    NaN is larger and smaller than every number, as in NumPy and PyTorch.
    """

    name = "arg_extremum"
    counted = False
    anchors = ("relax.argmax", "relax.argmin")

    def match(self, graph: Graph, var: Var) -> tuple[Call, int | None] | None:
        call = graph.value(var)
        shape = shape_of(call.args[0])
        if not math.prod(shape) or math.prod(shape) >= _MOST_ELEMENTS or dtype_of(call.args[0]) == "float64":
            return None
        return call, None if call.attrs.axis is None else int(call.attrs.axis) % len(shape)

    def rewrite(self, graph: Graph, var: Var, found: tuple[Call, int | None]) -> None:
        call, axis = found
        x = call.args[0]
        bind = graph.binder(var, [var])
        if axis is None:  # positions count through the whole tensor
            x, axis = bind(relax.op.reshape(x, (-1,)), "flat"), 0
        shape = shape_of(x)
        extremum = relax.op.max if graph.op_name(var) == "relax.argmax" else relax.op.min
        best = bind(extremum(x, axis, keepdims=True), "best")
        along = [1] * len(shape)
        along[axis] = shape[axis]
        positions = relax.const(np.arange(shape[axis], dtype=np.int32).reshape(along))
        hits = bind(relax.op.equal(x, best), "hits")
        if "float" in dtype_of(x):  # a maximum is NaN if anything is, and NaN equals nothing
            hits = bind(relax.op.logical_or(hits, bind(relax.op.isnan(x), "nan")), "hits_or_nan")
        least = bind(relax.op.where(hits, positions, relax.const(shape[axis] - 1, "int32")), "positions")
        first = bind(relax.op.min(least, axis, keepdims=True), "first")
        first = bind(relax.op.astype(first, dtype_of(var)), "typed") if dtype_of(var) != "int32" else first
        graph.replace(var, relax.op.reshape(first, shape_of(var)))
