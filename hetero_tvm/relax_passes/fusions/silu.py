"""SiLU ``x * sigmoid(x)``, CLIP's quick GELU ``x * sigmoid(1.702 x)`` and hard swish -> one operator each.

The sigmoid may be an operator or written ``1 / (1 + exp(-x))``, also with x as the numerator.
"""

from __future__ import annotations

import math

from hetero_tvm.host.tvm import Expr, Var
from hetero_tvm.relax_passes.fusions.elementwise import replace_by_elementwise
from hetero_tvm.relax_passes.rewriting.graph import Graph, scalar_of, shape_of
from hetero_tvm.relax_passes.rewriting.polynomial import is_polynomial, polynomial, scalings
from hetero_tvm.relax_passes.rewriting.rule import Rule, check_float32

_GATE = {0: 0.5, 1: 1 / 6}
"""Line of a hard sigmoid between its bounds."""


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


class FuseHardSwish(Rule):
    """``x * clip(x + 3, 0, 6) / 6``, wherever the sixth is multiplied."""

    name = "hard_swish"
    anchors = ("relax.multiply", "relax.divide")

    def match(self, graph: Graph, var: Var) -> Expr | None:
        for inner, factor in scalings(graph, var):
            product = graph.call(inner, "relax.multiply")
            if product is None:
                continue
            for x, gate in (product.args, reversed(list(product.args))):
                for clipped, scale in scalings(graph, gate):
                    if shape_of(x) == shape_of(var) and _is_gate(graph, clipped, x, factor * scale):
                        check_float32(var)
                        return x
        return None

    def rewrite(self, graph: Graph, var: Var, found: Expr) -> None:
        replace_by_elementwise(graph, var, self.name, found, [])


def _is_gate(graph: Graph, clipped: Expr, x: Expr, scale: float) -> bool:
    """Whether ``clipped * scale`` is ``clip(x / 6 + 1 / 2, 0, 1)``."""
    bounds = _clip_of(graph, clipped)
    if bounds is None:
        return False
    inner, low, high = bounds
    found = polynomial(graph, inner, x)
    scaled = None if found is None else {power: c * scale for power, c in found.items()}
    return low == 0.0 and math.isclose(high * scale, 1.0, rel_tol=1e-5) and is_polynomial(scaled, _GATE)


def _clip_of(graph: Graph, expr: Expr) -> tuple[Expr, float, float] | None:
    """Operand and bounds of the clipping that ``expr`` is, as an operator or as a maximum and a minimum."""
    call = graph.call(expr, "relax.clip")
    if call is not None:
        low, high = (getattr(bound, "value", None) for bound in call.args[1:])
        return None if low is None or high is None else (call.args[0], float(low), float(high))
    above = _bounded(graph, expr, "relax.minimum")
    below = None if above is None else _bounded(graph, above[0], "relax.maximum")
    return None if above is None or below is None else (below[0], below[1], above[1])


def _bounded(graph: Graph, expr: Expr, name: str) -> tuple[Expr, float] | None:
    """Operand and bound of a maximum or minimum with a scalar."""
    call = graph.call(expr, name)
    for value, bound in () if call is None else (call.args, reversed(list(call.args))):
        scalar = scalar_of(graph.value(bound))
        if scalar is not None:
            return value, scalar
    return None


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
