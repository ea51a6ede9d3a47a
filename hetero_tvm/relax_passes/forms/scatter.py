"""Scatters as kernels, or as concatenations, selections and products for targets without loops over data.

Models write into tensors at places that they know (an assignment to a slice), at one place of each row that
they compute (a cache of keys), or add rows to the rows that edges of a graph lead to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hetero_tvm.host.tvm import Call, Expr, PrimFunc, Var, relax
from hetero_tvm.relax_passes.forms.gather import MOST_ELEMENTS
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule

_FEW_PLACES = 4
"""Most places that are compared with every position, one after another."""
_PRODUCT_ELEMENTS = 1 << 18
"""Most elements of the matrix of ones and zeros that adds rows to rows; a larger one costs more than the way
to the host."""


Bind = Callable[[Expr, str], Var]


@dataclass
class _Write:
    """A write of slices of ``updates`` along ``axis`` to slices of ``data``.

    Parameters
    ----------
    places : known positions; None when they are computed.
    whole : slices go to their places as they are, and there is one index for each; else one for every
        element.
    """

    data: Expr
    indices: Expr
    updates: Expr
    axis: int
    count: int
    add: bool
    whole: bool
    places: np.ndarray | None

    @property
    def extent(self) -> int:
        return shape_of(self.data)[self.axis]

    @property
    def as_product(self) -> bool:
        """Whether slices are added that a product can gather."""
        affordable = self.extent * self.count <= _PRODUCT_ELEMENTS
        return self.whole and self.add and affordable and dtype_of(self.data) == "float32"

    def along(self, values: np.ndarray) -> Expr:
        """A constant with an element for each position along the axis."""
        shape = [1] * len(shape_of(self.data))
        shape[self.axis] = len(values)
        return relax.const(values.reshape(shape))


class ScatterAsSelection(Rule):
    """``scatter_elements`` and ``scatter_nd`` (replacing or adding) ->

    - ``concat`` of what is before, the new slices, and what is behind, at known places in a row;
    - ``where(known mask, take(updates, known places), data)`` at other known places;
    - ``where(position == place, update, data)`` at few computed places;
    - ``data + (positions == places) @ updates`` where rows are added at many computed places.
    """

    name = "scatter"
    counted = False
    anchors = ("relax.scatter_elements", "relax.scatter_nd")

    def match(self, graph: Graph, var: Var) -> _Write | None:
        call = graph.value(var)
        data, indices, updates = call.args
        reduction, shape, given = str(call.attrs.reduction), shape_of(data), shape_of(indices)
        if reduction not in ("update", "add"):
            raise Miss(f"a scatter that combines by {reduction}")
        if not math.prod(shape_of(updates)) or not math.prod(given):
            return None
        known = array_of(graph.value(indices))
        if graph.op_name(var) == "relax.scatter_nd":
            if given[-1] != 1:
                raise Miss("a scatter to places of several indices")
            places = None if known is None else known.reshape(-1)
            write = _Write(data, indices, updates, 0, math.prod(given), reduction == "add", True, places)
        else:
            axis = int(call.attrs.axis) % len(shape)
            if any(given[n] != shape[n] for n in range(len(shape)) if n != axis):
                raise Miss("a scatter to a part of the rows")
            places = None if known is None else _same_everywhere(known, axis)
            write = _Write(data, indices, updates, axis, given[axis], reduction == "add", False, places)
        if write.places is not None:
            write.places = np.where(write.places < 0, write.places + write.extent, write.places)
            if len(set(write.places.tolist())) < write.count:
                raise Miss("a scatter to one place twice")
        elif write.count > _FEW_PLACES and not write.as_product:
            raise Miss("a scatter to many computed places")
        return write

    def rewrite(self, graph: Graph, var: Var, found: _Write) -> None:
        bind = graph.binder(var, [var])
        write = found
        if write.whole:
            shape = (write.count, *shape_of(write.data)[1:])
            if shape_of(write.updates) != shape:
                write.updates = bind(relax.op.reshape(write.updates, shape), "rows")
        if write.places is not None:
            result = _known(write, bind)
        elif write.count <= _FEW_PLACES:
            result = _compared(write, bind)
        else:
            result = _product(write, bind)
        graph.replace(var, result)


def _same_everywhere(indices: np.ndarray, axis: int) -> np.ndarray:
    """The places along ``axis``, which must not depend on the other indices."""
    rows = np.moveaxis(indices, axis, 0).reshape(indices.shape[axis], -1)
    if (rows != rows[:, :1]).any():
        raise Miss("a scatter of elements to known places")
    return rows[:, 0]


def _known(write: _Write, bind: Bind) -> Expr:
    """Result of a write to known places, each of which occurs once."""
    places, data, updates, axis = write.places, write.data, write.updates, write.axis
    assert places is not None
    begin, end = int(places[0]), int(places[0]) + write.count

    def part(x: Expr, first: int, last: int, name: str) -> Expr:
        return bind(relax.op.strided_slice(x, [axis], [first], [last]), name)

    if (places == np.arange(begin, end)).all():
        if write.add:
            updates = bind(relax.op.add(part(data, begin, end, "there"), updates), "sum")
        before = [part(data, 0, begin, "before")] if begin else []
        behind = [part(data, end, write.extent, "behind")] if end < write.extent else []
        if not before and not behind:
            return relax.op.reshape(updates, shape_of(data))
        return relax.op.concat([*before, updates, *behind], axis)
    source = np.zeros(write.extent, np.int32)
    source[places] = np.arange(write.count, dtype=np.int32)
    written = np.zeros(write.extent, np.bool_)
    written[places] = True
    spread = bind(relax.op.take(updates, relax.const(source), axis, mode="wrap"), "spread")
    if write.add:
        spread = bind(relax.op.add(data, spread), "sum")
    return relax.op.where(write.along(written), spread, data)


def _compared(write: _Write, bind: Bind) -> Expr:
    """Result of comparing every position with each of the places."""
    axis, rank, result = write.axis, len(shape_of(write.data)), write.data
    positions = write.along(np.arange(write.extent, dtype=np.int32))
    places = _positive(write, bind)
    for n in range(write.count):
        if write.whole:
            place = bind(relax.op.strided_slice(places, [0], [n], [n + 1]), f"place{n}")
            place = bind(relax.op.reshape(place, (1,) * rank), f"place{n}")
        else:
            place = bind(relax.op.strided_slice(places, [axis], [n], [n + 1]), f"place{n}")
        new = bind(relax.op.strided_slice(write.updates, [axis], [n], [n + 1]), f"update{n}")
        if write.add:
            new = bind(relax.op.add(result, new), f"sum{n}")
        here = bind(relax.op.equal(positions, place), f"here{n}")
        result = relax.op.where(here, new, result)
        if n + 1 < write.count:
            result = bind(result, f"after{n}")
    return result


def _product(write: _Write, bind: Bind) -> Expr:
    """Result of a product with ones where a place is a position."""
    shape = shape_of(write.data)
    places = bind(relax.op.reshape(_positive(write, bind), (1, write.count)), "places")
    positions = relax.const(np.arange(write.extent, dtype=np.int32).reshape(-1, 1))
    here = bind(relax.op.astype(bind(relax.op.equal(positions, places), "here"), "float32"), "ones")
    rows = bind(relax.op.reshape(write.updates, (write.count, math.prod(shape[1:]))), "updates")
    gathered = bind(relax.op.matmul(here, rows), "gathered")
    return relax.op.add(write.data, bind(relax.op.reshape(gathered, shape), "added"))


def _positive(write: _Write, bind: Bind) -> Expr:
    """The places as int32, counted from the beginning; in one row if there is one for each slice."""
    places = write.indices
    if dtype_of(places) != "int32":
        places = bind(relax.op.astype(places, "int32"), "typed")
    if write.whole:
        places = bind(relax.op.reshape(places, (write.count,)), "flat")
    behind = bind(relax.op.add(places, relax.const(write.extent, "int32")), "behind")
    negative = bind(relax.op.less(places, relax.const(0, "int32")), "negative")
    return bind(relax.op.where(negative, behind, places), "positive")


# as kernels ---------------------------------------------------------------------------------------------
REDUCTION = "hetero_tvm.reduction"
"""Attribute of the kernel of a scatter: what it does with a value, ``update`` or ``add`` ..."""
REDUCTIONS = ("update", "add", "mul", "max", "min")


class _Rows(NamedTuple):
    call: Call
    count: int
    depth: int
    reduction: str


class ScatterAsKernel(Rule):
    """``scatter_nd`` -> one kernel.  Its places must have been checked.

    Parameters
    ----------
    kernel : makes it from the shape, (count, depth) of the places, the dtypes, and one of ``REDUCTIONS``.
    """

    name = "scatter_rows"
    counted = False
    anchors = ("relax.scatter_nd",)

    def __init__(self, kernel: Callable[..., PrimFunc]):
        self.kernel = kernel

    def match(self, graph: Graph, var: Var) -> _Rows | None:
        call = graph.value(var)
        data, places, updates = call.args
        reduction = str(call.attrs.reduction)
        if reduction not in REDUCTIONS or dtype_of(data) not in ("float32", "int32", "int64"):
            return None
        sizes = [math.prod(shape_of(x)) for x in (data, places, updates)]
        if not all(sizes) or max(sizes) >= MOST_ELEMENTS or dtype_of(places) not in ("int32", "int64"):
            return None
        depth = shape_of(places)[-1]
        return _Rows(call, sizes[1] // depth, depth, reduction)

    def rewrite(self, graph: Graph, var: Var, found: _Rows) -> None:
        call, count, depth, reduction = found
        data, places, updates = call.args
        bind = graph.binder(var, [var])

        def as_shape(x: Expr, shape: tuple[int, ...], name: str) -> Expr:
            return x if shape_of(x) == shape else bind(relax.op.reshape(x, shape), name)

        shape = shape_of(data)
        places = as_shape(places, (count, depth), "places")
        updates = as_shape(updates, (count, *shape[depth:]), "updates")
        function = self.kernel(shape, (count, depth), dtype_of(data), dtype_of(places), reduction)
        function = function.with_attr(REDUCTION, reduction)
        graph.replace(var, graph.call_function(function, "scatter", [data, places, updates], var))
