"""GELU written out: ``x / 2 * (1 + erf(x / sqrt 2))`` and its tanh approximation -> one operator.

Exporters write the factors in any order and spell the square root as a division or a product, the
cube as ``x * x * x`` or ``power(x, 3)``.  The rule therefore collects the factors of the product
around ``1 + erf(...)`` and checks the scalar part, instead of listing spellings.
"""

from __future__ import annotations

import math
from typing import Any

from hetero_tvm._bootstrap import import_tvm

tvm = import_tvm()

from tvm import relax  # noqa: E402

from hetero_tvm.relax_passes.graph import Graph, scalar_of  # noqa: E402
from hetero_tvm.relax_passes.rule import Miss, Rule  # noqa: E402

_TOLERANCE = 1e-5


class Gelu(Rule):
    """``relax.nn.gelu`` / ``relax.nn.gelu_tanh`` from their parts."""

    name = "gelu"
    anchors = ("relax.erf", "relax.tanh")

    def match(self, graph: Graph, var: Any) -> Any | None:
        inner = graph.value(var).args[0]
        exact = graph.op_name(var) == "relax.erf"
        plus_one = graph.only_user(var)
        if plus_one is None or graph.op_name(plus_one) != "relax.add":
            return None
        addends = graph.value(plus_one).args
        if not any(_close(scalar_of(a), 1.0) for a in addends):
            return None
        x, scale = _scaled(graph, inner)
        if exact:
            if not _close(scale, math.sqrt(0.5)):
                raise Miss(f"erf of x * {scale:.6g}, expected x / sqrt(2)")
        else:
            x = _tanh_argument(graph, inner)
        # Walk the product outwards until the factors are x, 1 + erf and one half.
        top, absorbed, half, seen_x = plus_one, [var, plus_one], 1.0, False
        while not (seen_x and _close(half, 0.5)):
            user = graph.only_user(top)
            if user is None or graph.op_name(user) != "relax.multiply":
                raise Miss("1 + erf(...) is not multiplied by x / 2 alone")
            other = _other(graph.value(user).args, top)
            factor = scalar_of(other)
            if factor is not None:
                half *= factor
            else:
                base, by = _scaled(graph, other)
                if not _same(graph, base, x) or seen_x:
                    raise Miss("1 + erf(...) is multiplied by another tensor than x")
                seen_x, half = True, half * by
            top = user
            absorbed.append(user)
        return x, top, absorbed, exact

    def rewrite(self, graph: Graph, var: Any, found: Any) -> None:
        x, top, absorbed, exact = found
        fused = relax.op.nn.gelu(x) if exact else relax.op.nn.gelu_tanh(x)
        graph.replace(top, fused, absorbs=absorbed)


def _close(value: float | None, wanted: float) -> bool:
    return value is not None and math.isclose(value, wanted, rel_tol=_TOLERANCE)


def _same(graph: Graph, a: Any, b: Any) -> bool:
    return a.same_as(b) or (graph.value(a) is not None and graph.value(a).same_as(graph.value(b)))


def _other(args: Any, one: Any) -> Any:
    return args[1] if args[0].same_as(one) else args[0]


def _scaled(graph: Graph, expr: Any) -> tuple[Any, float]:
    """Strip constant factors: ``expr == base * scale``."""
    scale = 1.0
    while True:
        call = graph.call(expr, "relax.multiply", "relax.divide")
        if call is None:
            return expr, scale
        left, right = call.args
        if call.op.name == "relax.divide":
            factor = scalar_of(right)
            if not factor:
                return expr, scale
            expr, scale = left, scale / factor
        elif scalar_of(right) is not None:
            expr, scale = left, scale * scalar_of(right)
        elif scalar_of(left) is not None:
            expr, scale = right, scale * scalar_of(left)
        else:
            return expr, scale


def _tanh_argument(graph: Graph, inner: Any) -> Any:
    """x of ``sqrt(2 / pi) * (x + 0.044715 x**3)``; Miss when it is another polynomial."""
    total, scale = _scaled(graph, inner)
    if not _close(scale, math.sqrt(2 / math.pi)):
        raise Miss(f"tanh argument is scaled by {scale:.6g}, expected sqrt(2 / pi)")
    addition = graph.call(total, "relax.add")
    if addition is not None:
        for x, cubic in (addition.args, reversed(list(addition.args))):
            base, factor = _scaled(graph, cubic)
            if _close(factor, 0.044715) and _is_cube(graph, base, x):
                return x
    raise Miss("tanh argument is not x + 0.044715 x**3")


def _is_cube(graph: Graph, expr: Any, x: Any) -> bool:
    power = graph.call(expr, "relax.power")
    if power is not None:
        return _same(graph, power.args[0], x) and scalar_of(power.args[1]) == 3.0
    product = graph.call(expr, "relax.multiply")
    if product is None:
        return False
    factors, pending = 0, list(product.args)
    while pending:
        factor = pending.pop()
        if _same(graph, factor, x):
            factors += 1
        elif (inner := graph.call(factor, "relax.multiply")) is not None:
            pending.extend(inner.args)
        else:
            return False
    return factors == 3
