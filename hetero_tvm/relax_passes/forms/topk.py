"""Orders as kernels (the greatest values, boxes that are kept), or one after another where nothing sorts."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.host.tvm import Expr, PrimFunc, Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, scalar_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule

_MOST_VALUES = 8
"""Most values that are found one by one; each takes four passes over the tensor."""


class _Found(NamedTuple):
    x: Expr
    axis: int
    k: int
    largest: bool
    dtype: str
    """Dtype of the positions."""
    users: list[tuple[Var, int]]
    """Readers of the values (0) and of the positions (1)."""


class TopkAsExtrema(Rule):
    """``topk(x, k)`` with small k -> k times: the maximum, the first position of those that are left where
    x is that, and x without it (the minimum where the least are asked for)."""

    name = "topk"
    counted = False
    anchors = ("relax.topk",)

    def match(self, graph: Graph, var: Var) -> _Found | None:
        call = graph.value(var)
        x, attrs = call.args[0], call.attrs
        shape, k = shape_of(x), int(attrs.k)
        if dtype_of(x) != "float32" or not math.prod(shape):
            return None
        axis = int(attrs.axis) % len(shape)
        k = shape[axis] if k < 1 else min(k, shape[axis])
        if k > _MOST_VALUES:
            raise Miss(f"the greatest {k} are found by sorting")
        users: list[tuple[Var, int]] = []
        if str(attrs.ret_type) == "both":
            for user in graph.users(var):
                value = None if user is None else graph.value(user)
                if not isinstance(value, relax.TupleGetItem):
                    return None
                users.append((user, int(value.index)))
        else:
            users = [(var, int(str(attrs.ret_type) == "indices"))]
        return _Found(x, axis, k, bool(attrs.largest), str(attrs.dtype), users)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        x, axis, k, largest, dtype, users = found
        extent = shape_of(x)[axis]
        along = [1] * len(shape_of(x))
        along[axis] = extent
        positions = relax.const(np.arange(extent, dtype=np.int32).reshape(along))
        extremum = relax.op.max if largest else relax.op.min
        never = relax.const(np.float32(-np.inf if largest else np.inf))
        bind = graph.binder(var, [var])
        values, places, left = [], [], None
        for n in range(k):
            best = bind(extremum(x, axis, keepdims=True), f"best{n}")
            hits = bind(relax.op.equal(x, best), f"hits{n}")
            if left is not None:  # one that was taken may still equal the best: all others are infinite
                hits = bind(relax.op.logical_and(hits, left), f"free{n}")
            last = relax.const(extent - 1, "int32")
            candidates = bind(relax.op.where(hits, positions, last), f"candidates{n}")
            place = bind(relax.op.min(candidates, axis, keepdims=True), f"place{n}")
            values.append(best)
            places.append(place)
            if n + 1 == k:
                break
            others = bind(relax.op.not_equal(positions, place), f"others{n}")
            x = bind(relax.op.where(others, x, never), f"without{n}")
            left = others if left is None else bind(relax.op.logical_and(left, others), f"left{n}")
        fields = [(values, dtype_of(x)), (places, dtype)]
        results = []
        for name, (parts, wanted) in zip(("values", "places"), fields, strict=True):
            whole = parts[0] if k == 1 else bind(relax.op.concat(parts, axis), name)
            results.append(bind(relax.op.astype(whole, wanted), name) if wanted != dtype_of(whole) else whole)
        if users[0][0] is var:  # which has one result only
            graph.replace(var, graph.value(results[users[0][1]]))
            return
        graph.replace(var, relax.Tuple(results))
        for user, field in users:
            graph.forward(user, results[field])


class _Order(NamedTuple):
    x: Expr
    axis: int
    k: int
    largest: bool
    results: list[tuple[str, str]]
    """Names of the wanted results, ``values`` or ``indices``, each with its dtype."""


class OrderAsKernel(Rule):
    """``topk``, ``sort`` and ``argsort`` -> a kernel that is scheduled already.

    Parameters
    ----------
    kernel : makes it from shape, axis, k, whether the largest are wanted, and the results in order; and, by
        name, the dtype of what is sorted.
    dtypes : those that it takes.
    """

    name = "order"
    counted = False
    anchors = ("relax.topk", "relax.sort", "relax.argsort")

    def __init__(self, kernel: Callable[..., PrimFunc], dtypes: Collection[str] = ("float32",)):
        self.kernel, self.dtypes = kernel, dtypes

    def match(self, graph: Graph, var: Var) -> _Order | None:
        call = graph.value(var)
        x, attrs = call.args[0], call.attrs
        shape, dtype = shape_of(x), dtype_of(x)
        if dtype not in self.dtypes or not math.prod(shape) or not shape:
            return None
        x = _with_nan(graph, x)
        axis = int(attrs.axis) % len(shape)
        extent = shape[axis]
        if graph.op_name(var) == "relax.sort":
            return _Order(x, axis, extent, bool(attrs.descending), [("values", dtype)])
        if graph.op_name(var) == "relax.argsort":
            return _Order(x, axis, extent, bool(attrs.descending), [("indices", str(attrs.dtype))])
        k = extent if int(attrs.k) < 1 else min(int(attrs.k), extent)
        both = {"values": ("values", dtype), "indices": ("indices", str(attrs.dtype))}
        wanted = str(attrs.ret_type)
        results = list(both.values()) if wanted == "both" else [both[wanted]]
        return _Order(x, axis, k, bool(attrs.largest), results)

    def rewrite(self, graph: Graph, var: Var, found: _Order) -> None:
        function = self.kernel(
            shape_of(found.x), found.axis, found.k, found.largest, found.results, dtype=dtype_of(found.x)
        )
        name = (graph.op_name(var) or "").removeprefix("relax.")
        fields = var.ty.fields if isinstance(var.ty, relax.TupleType) else None
        gvar = graph.add_function(function, name)
        graph.replace(var, relax.call_tir(gvar, [found.x], out_ty=list(fields) if fields else var.ty))


def _with_nan(graph: Graph, x: Expr) -> Expr:
    """Source of ``x`` where it has infinity in the place of NaN and the largest number in that of infinity.

    That is for sorts that know no order of NaN; a kernel does, and of that number and infinity as well.
    """

    def chosen(expr: Expr, condition: str) -> tuple[Expr, ...] | None:
        """Operands of a condition by an operator, and the alternatives."""
        if not isinstance(expr, Var) or graph.op_name(expr) != "relax.where":
            return None
        asked, *values = graph.value(expr).args
        if not isinstance(asked, Var) or graph.op_name(asked) != condition:
            return None
        return (*graph.value(asked).args, *values)

    if (lost := chosen(x, "relax.isnan")) is None or (raised := chosen(lost[2], "relax.equal")) is None:
        return x
    source = lost[0]
    if not (raised[0].same_as(source) and raised[3].same_as(source)):
        return x
    known = [scalar_of(value) for value in (lost[1], *raised[1:3])]
    return source if known == [np.inf, np.inf, np.finfo(np.float32).max] else x


class _Suppression(NamedTuple):
    args: list[Expr]
    rounds: int


class SuppressionAsKernel(Rule):
    """``all_class_non_max_suppression`` of float32 -> a kernel that is scheduled already.

    Parameters
    ----------
    kernel : makes it, from the numbers of sequences, classes, boxes, and boxes of a class that may be taken;
        None where a target has none.
    """

    name = "suppression"
    counted = False
    anchors = ("relax.vision.all_class_non_max_suppression",)

    def __init__(self, kernel: Callable[[int, int, int, int], PrimFunc] | None):
        self.kernel = kernel

    def match(self, graph: Graph, var: Var) -> _Suppression | None:
        call = graph.value(var)
        args = list(call.args[:5])
        if any(dtype_of(arg) != "float32" for arg in (args[0], args[1], args[3], args[4])):
            return None
        most, count = array_of(args[2]), shape_of(args[1])[2]
        return _Suppression(args, count if most is None else max(0, min(count, int(most.reshape(-1)[0]))))

    def rewrite(self, graph: Graph, var: Var, found: _Suppression) -> None:
        batch, classes, count = shape_of(found.args[1])
        if self.kernel is None:
            raise UnsupportedOperatorError(
                f"The target has no kernel for a suppression of boxes in {found.rounds} rounds.",
                problems=[f"node {var.name.partition('/NonMaxSuppression')[0]!r} (NonMaxSuppression)"],
                hint="Build it for the CPU, export the model without what follows its network, or set "
                "max_output_boxes_per_class to a constant of at most 8.",
            )
        gvar = graph.add_function(self.kernel(batch, classes, count, found.rounds), "suppression")
        graph.replace(var, relax.call_tir(gvar, found.args, out_ty=list(var.ty.fields)))
