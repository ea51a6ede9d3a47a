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
"""Elements of a row from which a kernel of rows is worth it."""


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


class ArgAsKernel(Rule):
    """``argmax(x)`` of float32 along its last axis -> a kernel that is scheduled already.

    Parameters
    ----------
    kernel : makes it, from the shape, whether the greatest is wanted, and the dtype of the positions.
    """

    name = "arg_kernel"
    counted = False
    anchors = ("relax.argmax", "relax.argmin")

    def __init__(self, kernel: Callable[[tuple[int, ...], bool, str], PrimFunc]):
        self.kernel = kernel

    def match(self, graph: Graph, var: Var) -> Call | None:
        call = graph.value(var)
        shape = shape_of(call.args[0])
        if not shape or not math.prod(shape) or dtype_of(call.args[0]) != "float32":
            return None
        last = call.attrs.axis is not None and int(call.attrs.axis) % len(shape) == len(shape) - 1
        return call if last and shape[-1] >= _LONG and math.prod(shape) < _MOST_ELEMENTS else None

    def rewrite(self, graph: Graph, var: Var, found: Call) -> None:
        shape, dtype = shape_of(found.args[0]), dtype_of(var)
        function = self.kernel(shape, graph.op_name(var) == "relax.argmax", dtype)
        name = (graph.op_name(var) or "").removeprefix("relax.")
        call = relax.call_tir(
            graph.add_function(function, name),
            [found.args[0]],
            out_ty=relax.TensorType((math.prod(shape[:-1]),), dtype),
        )
        bind = graph.binder(var, [var])
        graph.replace(var, relax.op.reshape(bind(call, "rows"), shape_of(var)))
