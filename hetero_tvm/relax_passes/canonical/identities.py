"""Operators that return their operand are dropped: casts, reshapes, slices, ``x * 1``, ``x + 0``, ...

Only what is exact for every value, NaN and infinities included, counts as nothing: ``x * 0`` is
computed, and ``x + 0`` is dropped although it turns -0 into 0.
"""

from __future__ import annotations

from collections.abc import Callable

from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, is_tensor, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule
from hetero_tvm.relax_passes.rewriting.views import order_of


class DropIdentities(Rule):
    """A binding with the value of one of its operands -> that operand."""

    name = "drop_identities"
    counted = False

    def match(self, graph: Graph, var: Var) -> Var | None:
        same = _SAME_OPERAND[graph.op_name(var)](graph, graph.value(var))
        if same is None or not isinstance(same, relax.Var) or not is_tensor(var):
            return None
        # Broadcasting by a neutral constant, or a cast, makes it another tensor.
        alike = shape_of(same) == shape_of(var) and dtype_of(same) == dtype_of(var)
        return same if alike else None

    def rewrite(self, graph: Graph, var: Var, found: Var) -> None:
        graph.forward(var, found)


def _first(graph: Graph, call: Call) -> Expr:
    return call.args[0]


def _permuted(graph: Graph, call: Call) -> Expr | None:
    extents = shape_of(call.args[0])
    long = [axis for axis in order_of(call) if extents[axis] != 1]  # moving extents of 1 moves no data
    return call.args[0] if long == sorted(long) else None


def _neutral(value: float, *, either: bool) -> Callable[[Graph, Call], Expr | None]:
    def look(graph: Graph, call: Call) -> Expr | None:
        left, right = call.args
        for operand, other in ((left, right), (right, left))[: 2 if either else 1]:
            array = array_of(graph.value(other))
            if array is not None and array.size and bool((array == value).all()):
                return operand
        return None

    return look


def _single(graph: Graph, call: Call) -> Expr | None:
    fields = graph.fields(call.args[0])
    return fields[0] if len(fields) == 1 else None


def _where(graph: Graph, call: Call) -> Expr | None:
    condition = array_of(graph.value(call.args[0]))
    if condition is None or not condition.size or bool(condition.any()) != bool(condition.all()):
        return None
    return call.args[1] if condition.any() else call.args[2]


def _slice(graph: Graph, call: Call) -> Expr | None:
    """A slice with the operand's shape takes all of it, unless it runs backwards."""
    steps = getattr(call.args[4], "fields", ()) if len(call.args) > 4 else ()
    return call.args[0] if all(int(getattr(step, "value", step)) > 0 for step in steps) else None


_SAME_OPERAND: dict[str, Callable[[Graph, Call], Expr | None]] = {
    "relax.reshape": _first,
    "relax.astype": _first,
    "relax.broadcast_to": _first,
    "relax.squeeze": _first,
    "relax.flatten": _first,
    "relax.permute_dims": _permuted,
    "relax.concat": _single,
    "relax.where": _where,
    "relax.strided_slice": _slice,
    "relax.add": _neutral(0.0, either=True),
    "relax.subtract": _neutral(0.0, either=False),
    "relax.multiply": _neutral(1.0, either=True),
    "relax.divide": _neutral(1.0, either=False),
    "relax.power": _neutral(1.0, either=False),
}
"""Operator -> its operand with the same value; None when there is none."""

DropIdentities.anchors = tuple(_SAME_OPERAND)
