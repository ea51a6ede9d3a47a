"""Indices and divisors that a device checks: clamped where they are used, and reported behind the results.

A kernel on a device cannot raise an error, and waiting for it would cost more than most kernels.  So what is
wrong is made harmless, and a number that says so follows the results of the model: whoever takes the results
reads it (``CHECKS_ATTR`` holds the texts, in the order of those numbers).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.relax_passes.forms.run_time_checks import (
    DIVISIONS,
    Ranges,
    division_message,
    index_message,
    lookups,
    with_operand,
    within,
)
from hetero_tvm.relax_passes.rewriting.fused import CHECKS_ATTR
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import GraphPass, Report


class FlagAtRunTime(GraphPass):
    """Indices -> indices inside of the tensor, and a result that is not 0 where they were not.

    Integer divisors get such a result alone: kernels divide by 1 where they are 0.
    """

    name = "run_time_flags"

    def run(self, graph: Graph, report: Report) -> None:
        functions = graph.functions()
        known: dict[tuple[Var, object], Var] = {}
        messages: list[str] = []
        for var in graph.bindings():
            for operand, ranges, message in _checks(graph, functions, var):
                if not isinstance(operand, relax.Var) or array_of(graph.value(operand)) is not None:
                    continue  # the import has checked constants
                if 0 in shape_of(operand):
                    continue
                if (operand, ranges) not in known:
                    known[operand, ranges] = _flagged(graph, var, operand, ranges)
                    messages.append(message)
                if ranges is not None:
                    graph.replace(var, with_operand(graph.value(var), operand, known[operand, ranges]))
        if messages:
            graph.set_attribute(CHECKS_ATTR, json.dumps(messages))


def _checks(graph: Graph, functions: object, var: Var) -> Iterator[tuple[Expr, Ranges | None, str]]:
    """Operands of a binding to check, each with its ranges (None: of a divisor) and what to say."""
    value, name, node = graph.value(var), graph.op_name(var), graph.node(var)
    if DIVISIONS.get(name) == "Div" and "int" in dtype_of(value.args[1]):  # by 0 a remainder is 0
        yield value.args[1], None, division_message(DIVISIONS[name], node)
        return
    for indices, ranges, valid in lookups(functions, value, name, graph.sources(var)):
        yield indices, ranges, index_message(node, valid)


def _flagged(graph: Graph, var: Var, operand: Var, ranges: Ranges | None) -> Var:
    """``operand`` inside of ``ranges``; a scalar that is 1 where it was not becomes a result."""
    bind, dtype = graph.binder(var, [var]), dtype_of(operand)
    if ranges is None:
        clamped = operand
        wrong = bind(relax.op.equal(operand, relax.const(0, dtype)), "wrong")
    else:
        limits = within(ranges, dtype)
        least, end = (np.array([limit[n] for limit in limits], dtype) for n in (0, 1))
        if len(limits) == 1:
            least, end = least.reshape(()), end.reshape(())
        first, last = relax.const(least, dtype), relax.const(end - 1, dtype)
        clamped = bind(relax.op.maximum(operand, first), "not_before")
        clamped = bind(relax.op.minimum(clamped, last), "inside")
        wrong = bind(relax.op.not_equal(clamped, operand), "wrong")
    number = bind(relax.op.astype(wrong, "int32"), "number")
    graph.add_result(relax.op.max(number), f"{var.name}#flag", [var])
    return clamped
