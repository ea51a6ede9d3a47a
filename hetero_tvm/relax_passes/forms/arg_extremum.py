"""Positions of extrema by comparison with the extremum: every step is one that targets have in vectors.

TVM's reduction of pairs begins with a place outside of the tensor, and ends there where nothing is larger
than the least number.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from hetero_tvm.host.tvm import Call, PrimFunc, Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule

_MOST_ELEMENTS = 1 << 31
"""Elements of a tensor whose positions int32 still counts."""

_LONG = 32
"""Elements along the last axis, or behind another, from which a kernel is worth it."""


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
        if not math.prod(shape) or math.prod(shape) >= _MOST_ELEMENTS:
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


class ArgAsKernel(Rule):
    """``argmax(x)`` of float32 along an axis -> a kernel that is scheduled already.

    Parameters
    ----------
    kernel : makes it, from the extents before the axis, along it and behind it, whether the greatest is
        wanted, and the dtype of the positions.
    """

    name = "arg_kernel"
    counted = False
    anchors = ("relax.argmax", "relax.argmin")

    def __init__(self, kernel: Callable[[tuple[int, int, int], bool, str], PrimFunc]):
        self.kernel = kernel

    def match(self, graph: Graph, var: Var) -> tuple[int, int, int] | None:
        call = graph.value(var)
        shape = shape_of(call.args[0])
        if not math.prod(shape) or dtype_of(call.args[0]) != "float32" or call.attrs.axis is None:
            return None
        axis = int(call.attrs.axis) % len(shape)
        extents = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        long = max(extents[2], extents[1] if axis == len(shape) - 1 else 0) >= _LONG
        return extents if long and math.prod(shape) < _MOST_ELEMENTS else None

    def rewrite(self, graph: Graph, var: Var, found: tuple[int, int, int]) -> None:
        bind = graph.binder(var, [var])
        function = self.kernel(found, graph.op_name(var) == "relax.argmax", dtype_of(var))
        name = (graph.op_name(var) or "").removeprefix("relax.")
        x = bind(relax.op.reshape(graph.value(var).args[0], found), "axes")
        out = relax.TensorType(found[::2], dtype_of(var))
        call = bind(relax.call_tir(graph.add_function(function, name), [x], out_ty=out), "places")
        graph.replace(var, relax.op.reshape(call, shape_of(var)))
