"""Numbers that follow from the sizes, kept from passes that would compute with them.

A sum that is divided by the rows it has is a product of a constant at each size.  Passes would multiply it
into the weights of the layer behind it, and these then follow from the sizes by no rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from hetero_tvm.frontend import ImportedModel
from hetero_tvm.host.tvm import Call, Expr, Var, relax, tvm
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of
from hetero_tvm.schedules.extents import Sizes

_SCALING = frozenset({"relax.multiply", "relax.divide", "relax.add", "relax.subtract"})
"""Operators of which passes compute numbers together."""

Places = Mapping[int, Sequence[int]]
"""Operands by the number of their call among those of operators."""


def with_held_numbers(model: ImportedModel) -> ImportedModel:
    """The model with open sizes, in which no pass computes with numbers that other sizes have others of."""
    opened = model.open
    assert opened is not None
    several = [_calls(Graph(one.module)) for one in (model, *opened.others)]
    if len(set(map(len, several))) > 1:
        return model
    places = {
        n: differing
        for n, calls in enumerate(zip(*several, strict=True))
        if (differing := _differing([call for _, call in calls]))
    }
    if not places:
        return model
    count = len(several[0])

    def at(sizes: Sizes) -> ImportedModel:
        return _held(opened.at(sizes), places, count)

    others = tuple(_held(one, places, count) for one in opened.others)
    held = dataclasses.replace(opened, others=others, at=at)
    return dataclasses.replace(_held(model, places, count), open=held)


def _calls(graph: Graph) -> list[tuple[Var, Call]]:
    calls = ((var, graph.value(var)) for var in graph.bindings())
    return [(v, c) for v, c in calls if isinstance(c, tvm.ir.Call) and isinstance(c.op, tvm.ir.Op)]


def _differing(calls: Sequence[Call]) -> list[int]:
    """Operands that are one number, another one at other sizes."""
    if {call.op.name for call in calls} - _SCALING or len({call.op.name for call in calls}) > 1:
        return []
    numbers = [[_number(arg) for arg in call.args] for call in calls]
    return [n for n, each in enumerate(zip(*numbers, strict=True)) if None not in each and len(set(each)) > 1]


def _number(expr: Expr) -> float | None:
    """The number that a constant is, in every place; None where it has several, or is none."""
    array = array_of(expr)
    if array is None or not array.size or (array.size > 1 and (array != array.flat[0]).any()):
        return None
    return float(array.flat[0])


def _held(model: ImportedModel, places: Places, count: int) -> ImportedModel:
    """The model with what stands at ``places`` held; as it is where it has other calls than ``count``."""
    graph = Graph(model.module)
    calls = _calls(graph)
    if len(calls) != count:
        return model
    for n, operands in places.items():
        var, call = calls[n]
        args = list(call.args)
        for operand in operands:
            held = relax.op.builtin.stop_lift_params(args[operand])
            args[operand] = graph.insert_before(var, held, f"{var.name}#held", [var])
        graph.replace(var, relax.Call(call.op, args, call.attrs, call.ty_args))
    return dataclasses.replace(model, module=graph.rebuild()[0])
