"""SiLU ``x * sigmoid(x)`` and CLIP's quick GELU ``x * sigmoid(1.702 x)`` -> one operator each.

The sigmoid may be an operator or written ``1 / (1 + exp(-x))``, also with x as the numerator.
"""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, Var
from hetero_tvm.relax_passes.fusions.elementwise import replace_by_elementwise
from hetero_tvm.relax_passes.rewriting.graph import Graph, scalar_of, shape_of
from hetero_tvm.relax_passes.rewriting.polynomial import is_polynomial, polynomial
from hetero_tvm.relax_passes.rewriting.rule import Rule, check_float32


class _Gated(Rule):
    """``x * sigmoid(slope x)``."""

    function = ""
    slope = 1.0
    anchors = ("relax.multiply", "relax.divide", "relax.nn.silu")

    def match(self, graph: Graph, var: Var) -> tuple[Expr, list[Var]] | None:
        call = graph.value(var)
        if call.op.name == "relax.nn.silu":
            if self.function != "silu":
                return None
            check_float32(var)
            return call.args[0], []
        pairs = [tuple(call.args), tuple(call.args)[::-1]]
        for x, gate in pairs if call.op.name == "relax.multiply" else pairs[:1]:
            if call.op.name == "relax.multiply":
                inner = _sigmoid_argument(graph, gate)
            else:
                inner = _denominator_argument(graph, gate)
            if inner is None or shape_of(x) != shape_of(var):
                continue
            argument, absorbed = inner
            if is_polynomial(polynomial(graph, argument, x), {1: self.slope}):
                check_float32(var)
                return x, absorbed
        return None

    def rewrite(self, graph: Graph, var: Var, found: tuple[Expr, list[Var]]) -> None:
        x, absorbed = found
        replace_by_elementwise(graph, var, self.function, x, absorbed)


class FuseSilu(_Gated):
    """``x * sigmoid(x)``, also called swish."""

    name = "silu"
    function = "silu"


class FuseQuickGelu(_Gated):
    """``x * sigmoid(1.702 x)``."""

    name = "quick_gelu"
    function = "quick_gelu"
    slope = 1.702


def _sigmoid_argument(graph: Graph, gate: Expr) -> tuple[Expr, list[Var]] | None:
    """Argument of the sigmoid that ``gate`` is, and the sigmoid's bindings; None when it is none."""
    call = graph.call(gate, "relax.sigmoid")
    if call is not None:
        return call.args[0], [gate]
    quotient = graph.call(gate, "relax.divide")
    if quotient is None or scalar_of(graph.value(quotient.args[0])) != 1.0:
        return None
    inner = _denominator_argument(graph, quotient.args[1])
    return None if inner is None else (inner[0], [*inner[1], gate])


def _denominator_argument(graph: Graph, expr: Expr) -> tuple[Expr, list[Var]] | None:
    """y of ``1 + exp(-y)``, and its bindings; None for anything else."""
    total = graph.call(expr, "relax.add")
    if total is None:
        return None
    for one, power in (total.args, reversed(list(total.args))):
        exponential = graph.call(power, "relax.exp")
        if exponential is None or scalar_of(graph.value(one)) != 1.0:
            continue
        negated = graph.call(exponential.args[0], "relax.negative")
        if negated is not None:
            return negated.args[0], [exponential.args[0], power, expr]
    return None
