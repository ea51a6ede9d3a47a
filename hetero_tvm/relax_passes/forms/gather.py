"""Lookups by several indices as lookups of rows by one, for targets that have those alone; lookups at places
that are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hetero_tvm.host.tvm import Call, Expr, Var, relax, te
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule

MOST_ELEMENTS = 1 << 31
"""Elements of a tensor whose positions int32 still counts."""


def lookup_in_one_row(graph: Graph, table: Expr, index: Expr, axis: int) -> Call:
    """``take`` of non-negative indices along an axis of extent 1, by a kernel that reads them.

    TVM's reads no index that can be but 0: it would pass for a view of the table, and with it the check of
    the indices for dead code.
    """
    shape, places = shape_of(table), shape_of(index)
    x = te.placeholder(shape, dtype_of(table), "table")
    at = te.placeholder(places, dtype_of(index), "index")
    end = axis + len(places)
    result = (*shape[:axis], *places, *shape[axis + 1 :])
    y = te.compute(result, lambda *i: x(*i[:axis], at(*i[axis:end]), *i[end:]), name="taken")
    function = te.create_prim_func([x, at, y], "int64").without_attr("global_symbol")
    out = relax.TensorType(list(result), dtype_of(table))
    return relax.call_tir(graph.add_function(function, "lookup"), [table, index], out_ty=out)


class _Found(NamedTuple):
    x: Expr
    places: Expr
    shape: tuple[int, ...]
    axis: int | None
    """Axis of ``gather_elements``; None for ``gather_nd``."""


class GatherAsTake(Rule):
    """``gather_elements`` and ``gather_nd`` -> ``take`` from the flat tensor by one computed index."""

    name = "gather"
    counted = False
    anchors = ("relax.gather_elements", "relax.gather_nd")

    def match(self, graph: Graph, var: Var) -> _Found | None:
        call = graph.value(var)
        x, places = call.args
        shape = shape_of(x)
        if not math.prod(shape_of(var)) or math.prod(shape) >= MOST_ELEMENTS:
            return None
        if graph.op_name(var) == "relax.gather_elements":
            return _Found(x, places, shape, int(call.attrs.axis) % len(shape))
        if int(call.attrs.batch_dims) != 0:
            raise Miss("gather_nd with batch dimensions")
        return _Found(x, places, shape, None)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        x, places, shape, axis = found
        bind = graph.binder(var, [var])
        strides = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
        if axis is not None:
            index, run = self._scaled(graph, bind, places, strides[axis], axis), 1
            base = _origins(shape_of(places), strides, axis)
            if base.any():
                index = bind(relax.op.add(index, relax.const(base)), "flat")
        else:
            depth = shape_of(places)[-1]
            run, index = strides[depth - 1], None
            for n in range(depth):
                one = relax.op.strided_slice(places, [-1], [n], [n + 1])
                one = bind(relax.op.squeeze(bind(one, f"index{n}"), [-1]), f"index{n}")
                one = self._scaled(graph, bind, one, strides[n] // run, n)
                index = one if index is None else bind(relax.op.add(index, one), "flat")
        table = bind(relax.op.reshape(x, (-1, run) if run > 1 else (-1,)), "table")
        if (known := array_of(graph.value(index))) is not None:
            index = relax.const(known.reshape(-1))  # in one row, which may be a slice
        if math.prod(shape) == run and array_of(graph.value(index)) is None:
            taken = bind(lookup_in_one_row(graph, table, index, 0), "taken")
        else:
            taken = bind(relax.op.take(table, index, axis=0, mode="wrap"), "taken")
        graph.replace(var, relax.op.reshape(taken, shape_of(var)))

    @staticmethod
    def _scaled(graph: Graph, bind: Callable[[Expr, str], Var], places: Expr, stride: int, n: int) -> Expr:
        """Positions times a stride, as int32."""
        if (known := array_of(graph.value(places))) is not None:
            return relax.const(known.astype(np.int32) * np.int32(stride))
        if dtype_of(places) != "int32":
            places = bind(relax.op.astype(places, "int32"), f"places{n}")
        if stride == 1:
            return places
        return bind(relax.op.multiply(places, relax.const(stride, "int32")), f"scaled{n}")


class TakeOfKnownPlaces(Rule):
    """``take`` at constant places counts none of them from the end, and divides by no extent."""

    name = "known_places"
    counted = False
    anchors = ("relax.take",)

    def match(self, graph: Graph, var: Var) -> np.ndarray | None:
        call = graph.value(var)
        places, shape = array_of(graph.value(call.args[1])), shape_of(call.args[0])
        if places is None or not places.size or call.attrs.axis is None or str(call.attrs.mode) != "wrap":
            return None
        axis = int(call.attrs.axis) % len(shape)
        if not axis:
            return None  # whole rows hide the division, and fusions look for them
        extent = shape[axis]
        if not 0 < extent < MOST_ELEMENTS or places.min() < -extent or places.max() >= extent:
            return None
        return np.mod(places.astype(np.int64), extent).astype(np.int32)

    def rewrite(self, graph: Graph, var: Var, found: np.ndarray) -> None:
        call = graph.value(var)
        places = relax.const(found)
        graph.replace(var, relax.op.take(call.args[0], places, axis=int(call.attrs.axis), mode="clip"))


def _origins(shape: tuple[int, ...], strides: list[int], axis: int) -> np.ndarray:
    """Flat position of the first element along ``axis``, by the other indices."""
    total = np.zeros((1,) * len(shape), np.int32)
    for n, extent in enumerate(shape):
        if n != axis and extent > 1:
            along = [1] * len(shape)
            along[n] = extent
            total = total + (np.arange(extent, dtype=np.int32) * np.int32(strides[n])).reshape(along)
    return total.astype(np.int32)
