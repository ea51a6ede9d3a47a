"""Lookups, scans and positions of extrema as steps of whole tensors, for targets without loops over data.

A machine of matrix and vector instructions has shifted sums, comparisons, reductions and lookups of rows
by one index.  Whatever is more than that in a model becomes these, with the same results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero_tvm.host.tvm import relax, tvm
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule

_ELEMENTS = 1 << 31
"""Positions are int32."""


class _Scan(Rule):
    """``cumsum`` and ``cumprod`` along one axis as another function."""

    name = "scan"
    counted = False
    anchors = ("relax.cumsum", "relax.cumprod")

    def match(self, graph: Graph, var: Any) -> Any | None:
        call = graph.value(var)
        if dtype_of(var) not in ("float32", "int32", "int64") or not math.prod(shape_of(var)):
            return None
        shape = shape_of(call.args[0])
        axis = call.attrs.axis
        if axis is None and len(shape) > 1:
            raise Miss("a scan over several axes")
        axis = 0 if axis is None else int(axis) % max(len(shape), 1)
        return call, axis, bool(call.attrs.exclusive), graph.op_name(var) == "relax.cumprod"

    def rewrite(self, graph: Graph, var: Any, found: Any) -> None:
        call, axis, exclusive, product = found
        function = self.function(
            shape_of(var), axis, dtype_of(call.args[0]), dtype_of(var), product=product, exclusive=exclusive
        )
        name = "cumprod" if product else "cumsum"
        graph.replace(var, graph.call_function(function, name, [call.args[0]], var))

    def function(
        self, shape: tuple[int, ...], axis: int, given: str, dtype: str, *, product: bool, exclusive: bool
    ) -> Any:
        """The PrimFunc from a tensor of dtype ``given`` to one of ``dtype``."""
        raise NotImplementedError


class ScanAsKernel(_Scan):
    """``cumsum(x)`` -> a kernel that is scheduled already.

    Parameters
    ----------
    kernel : makes it, from what :meth:`function` is given.
    """

    def __init__(self, kernel: Callable[..., Any]):
        self.function = kernel


class ScanAsShifts(_Scan):
    """``cumsum(x)`` -> ``x += x shifted by 1``, then by 2, 4, ...: a step per doubling of the length.

    The same of ``cumprod`` with products.
    """

    def function(
        self, shape: tuple[int, ...], axis: int, given: str, dtype: str, *, product: bool, exclusive: bool
    ) -> Any:
        from hetero_tvm.host.tvm import te, tirx

        neutral = tirx.const(1 if product else 0, dtype)

        def shifted(x: Any, by: int, combine: bool, name: str) -> Any:
            def element(*i: Any) -> Any:
                before = x(*i[:axis], i[axis] - by, *i[axis + 1 :])
                if not combine:
                    return tirx.if_then_else(i[axis] >= by, before, neutral)
                both = x(*i) * before if product else x(*i) + before
                return tirx.if_then_else(i[axis] >= by, both, x(*i))

            return te.compute(shape, element, name=name)

        x = te.placeholder(shape, given, "x")
        y = te.compute(shape, lambda *i: x(*i).astype(dtype), name="typed")
        if exclusive:
            y = shifted(y, 1, False, "before")
        step = 1
        while step < shape[axis]:
            y = shifted(y, step, True, f"scan{step}")
            step *= 2
        return te.create_prim_func([x, y], "int64").without_attr("global_symbol")


class ArgAsExtremum(Rule):
    """``argmax(x)`` -> the least position where x is its maximum (``argmin`` with the minimum)."""

    name = "arg_extremum"
    counted = False
    anchors = ("relax.argmax", "relax.argmin")

    def match(self, graph: Graph, var: Any) -> Any | None:
        call = graph.value(var)
        shape = shape_of(call.args[0])
        if not math.prod(shape) or math.prod(shape) >= _ELEMENTS or dtype_of(call.args[0]) == "float64":
            return None
        return call, None if call.attrs.axis is None else int(call.attrs.axis) % len(shape)

    def rewrite(self, graph: Graph, var: Any, found: Any) -> None:
        call, axis = found
        x = call.args[0]

        def bind(value: Any, name: str) -> Any:
            return graph.insert_before(var, value, f"{var.name}#{name}", [var])

        if axis is None:  # positions count through the whole tensor
            x, axis = bind(relax.op.reshape(x, (-1,)), "flat"), 0
        shape = shape_of(x)
        extremum = relax.op.max if graph.op_name(var) == "relax.argmax" else relax.op.min
        best = bind(extremum(x, axis, keepdims=True), "best")
        along = [1] * len(shape)
        along[axis] = shape[axis]
        positions = relax.const(np.arange(shape[axis], dtype=np.int32).reshape(along))
        # Where nothing is equal (NaN) the last position stands, which is one of the tensor at least.
        hits = bind(relax.op.equal(x, best), "hits")
        least = bind(relax.op.where(hits, positions, relax.const(shape[axis] - 1, "int32")), "positions")
        first = bind(relax.op.min(least, axis, keepdims=True), "first")
        first = bind(relax.op.astype(first, dtype_of(var)), "typed") if dtype_of(var) != "int32" else first
        graph.replace(var, relax.op.reshape(first, shape_of(var)))


class GatherAsTake(Rule):
    """``gather_elements`` and ``gather_nd`` -> ``take`` from the flat tensor by one computed index."""

    name = "gather"
    counted = False
    anchors = ("relax.gather_elements", "relax.gather_nd")

    def match(self, graph: Graph, var: Any) -> Any | None:
        call = graph.value(var)
        x, places = call.args
        shape = shape_of(x)
        if not math.prod(shape_of(var)) or math.prod(shape) >= _ELEMENTS:
            return None
        if graph.op_name(var) == "relax.gather_elements":
            return x, places, shape, int(call.attrs.axis) % len(shape)
        if int(call.attrs.batch_dims) != 0:
            raise Miss("gather_nd with batch dimensions")
        return x, places, shape, None

    def rewrite(self, graph: Graph, var: Any, found: Any) -> None:
        x, places, shape, axis = found

        def bind(value: Any, name: str) -> Any:
            return graph.insert_before(var, value, f"{var.name}#{name}", [var])

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
        taken = bind(relax.op.take(table, index, axis=0, mode="wrap"), "taken")
        graph.replace(var, relax.op.reshape(taken, shape_of(var)))

    @staticmethod
    def _scaled(graph: Graph, bind: Any, places: Any, stride: int, n: int) -> Any:
        """Positions times a stride, as int32."""
        if (known := array_of(graph.value(places))) is not None:
            return relax.const(known.astype(np.int32) * np.int32(stride))
        if dtype_of(places) != "int32":
            places = bind(relax.op.astype(places, "int32"), f"places{n}")
        if stride == 1:
            return places
        return bind(relax.op.multiply(places, relax.const(stride, "int32")), f"scaled{n}")


def _origins(shape: tuple[int, ...], strides: list[int], axis: int) -> np.ndarray:
    """Flat position of the first element along ``axis``, by the other indices."""
    total = np.zeros((1,) * len(shape), np.int32)
    for n, extent in enumerate(shape):
        if n != axis and extent > 1:
            along = [1] * len(shape)
            along[n] = extent
            total = total + (np.arange(extent, dtype=np.int32) * np.int32(strides[n])).reshape(along)
    return total.astype(np.int32)


class TriangleAsMask(Rule):
    """``tril(x, k)`` and ``triu(x, k)`` -> ``where(constant mask, x, 0)``."""

    name = "triangle"
    counted = False
    anchors = ("relax.tril", "relax.triu")

    def match(self, graph: Graph, var: Any) -> Any | None:
        call = graph.value(var)
        diagonal = getattr(call.args[1], "value", call.args[1])
        return (call.args[0], int(diagonal)) if isinstance(diagonal, int | tvm.tirx.IntImm) else None

    def rewrite(self, graph: Graph, var: Any, found: Any) -> None:
        x, diagonal = found
        cut = np.tril if graph.op_name(var) == "relax.tril" else np.triu
        mask = cut(np.ones(shape_of(x)[-2:], np.bool_), diagonal)
        graph.replace(var, relax.op.where(relax.const(mask), x, relax.const(0, dtype_of(var))))


class SplitAsSlices(Rule):
    """``split(x)`` -> a slice for each of its parts, so that every kernel has one result."""

    name = "split"
    counted = False
    anchors = ("relax.split",)

    def match(self, graph: Graph, var: Any) -> Any | None:
        users = graph.users(var)
        values = [None if user is None else graph.value(user) for user in users]
        if not all(isinstance(value, relax.TupleGetItem) for value in values):
            return None
        call = graph.value(var)
        axis = int(call.attrs.axis) % len(shape_of(call.args[0]))
        sizes = [int(field.shape[axis]) for field in var.ty.fields]
        return call.args[0], axis, sizes, [(u, v.index) for u, v in zip(users, values, strict=True)]

    def rewrite(self, graph: Graph, var: Any, found: Any) -> None:
        x, axis, sizes, users = found
        for user, n in users:
            begin = sum(sizes[:n])
            graph.replace(user, relax.op.strided_slice(x, [axis], [begin], [begin + sizes[n]]), [var])


INDEX_FORMS = (ScanAsShifts(), ArgAsExtremum(), GatherAsTake(), TriangleAsMask())
"""Before the canonical forms, which make slices of lookups at constant places."""
