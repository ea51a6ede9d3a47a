"""GELU and its approximations, as operators or written out -> one operator.

``x / 2 * (1 + erf(x / sqrt 2))`` and ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x**3)))`` (rule
``gelu``).  Exporters write the factors in any order, the square root as a division or a product, the
cube in three ways, or ``x * (1 + 0.044715 x**2)``.  The rule therefore collects the factors of the
product around ``1 + erf(...)`` and reads the argument as a polynomial, instead of listing spellings.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hetero_tvm.host.tvm import Expr, Var
from hetero_tvm.relax_passes.fusions.elementwise import replace_by_elementwise
from hetero_tvm.relax_passes.rewriting.graph import Graph, scalar_of, shape_of
from hetero_tvm.relax_passes.rewriting.polynomial import is_polynomial, polynomial, scalings
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule, check_float32

_OPERATORS = {"relax.nn.gelu": "gelu_erf", "relax.nn.gelu_tanh": "gelu_tanh"}
_SLOPE = math.sqrt(2 / math.pi)
"""Slope of the tanh approximation's argument at 0."""

_ARGUMENTS = {
    "relax.erf": ("gelu_erf", {1: math.sqrt(0.5)}, "x / sqrt(2)"),
    "relax.tanh": ("gelu_tanh", {1: _SLOPE, 3: 0.044715 * _SLOPE}, "sqrt(2 / pi) * (x + 0.044715 x**3)"),
}
"""Inner function -> the activation, its argument as a polynomial in x, and that in words."""


class _Found(NamedTuple):
    function: str
    x: Expr
    top: Var
    absorbed: list[Var]


class FuseGelu(Rule):
    """The exact form and the tanh approximation."""

    name = "gelu"
    anchors = (*_ARGUMENTS, *_OPERATORS)

    def match(self, graph: Graph, var: Var) -> _Found | None:
        name = graph.op_name(var)
        if name in _OPERATORS:
            check_float32(var)
            return _Found(_OPERATORS[name], graph.value(var).args[0], var, [])
        function = name.removeprefix("relax.")
        plus_one = graph.only_user(var)
        if plus_one is None or graph.op_name(plus_one) != "relax.add":
            return None
        if not any(_close(scalar_of(graph.value(a)), 1.0) for a in graph.value(plus_one).args):
            return None
        # Walk the product outwards until the factors are x, 1 + erf and one half.
        top, absorbed, half, x = plus_one, [var, plus_one], 1.0, None
        while not (x is not None and _close(half, 0.5)):
            user = graph.only_user(top)
            factor, tensor = _factor(graph, user, top)
            if user is None or factor is None or (tensor is not None and x is not None):
                raise Miss(f"1 + {function}(...) is not multiplied by x / 2 alone")
            if tensor is not None:
                x, factor = _argument(graph, var, tensor)
            half *= factor
            top = user
            absorbed.append(user)
        check_float32(x)
        if shape_of(x) != shape_of(top):
            raise Miss(f"x has shape {shape_of(x)}, the result {shape_of(top)}")
        return _Found(_ARGUMENTS[name][0], x, top, absorbed)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        function, x, top, absorbed = found
        replace_by_elementwise(graph, top, function, x, absorbed)


def _factor(graph: Graph, user: Var, top: Var) -> tuple[float | None, Expr | None]:
    """Factor by which the binding ``user`` multiplies ``top``: a number, or 1 and a tensor; else None."""
    if user is None or graph.op_name(user) not in ("relax.multiply", "relax.divide"):
        return None, None
    left, right = graph.value(user).args
    divided = graph.op_name(user) == "relax.divide"
    if divided and not left.same_as(top):
        return None, None
    other = right if left.same_as(top) else left
    number = scalar_of(graph.value(other))
    if divided:
        return (1 / number if number else None), None
    return (1.0, other) if number is None else (number, None)


def _argument(graph: Graph, var: Var, tensor: Expr) -> tuple[Expr, float]:
    """The x of which ``var`` takes the right polynomial, and the factor of ``tensor`` on it."""
    _, wanted, words = _ARGUMENTS[graph.op_name(var)]
    inner = graph.value(var).args[0]
    related = None
    for x, factor in scalings(graph, tensor):
        found = polynomial(graph, inner, x)
        if is_polynomial(found, wanted):
            return x, factor
        related = found if found is not None and 1 in found else related
    function = graph.op_name(var).removeprefix("relax.")
    if related is None:
        raise Miss(f"1 + {function}(...) is multiplied by another tensor than x")
    terms = " + ".join(f"{c:.6g} x**{power}" if power else f"{c:.6g}" for power, c in sorted(related.items()))
    raise Miss(f"{function} of {terms}, expected {words}")


def _close(value: float | None, wanted: float) -> bool:
    return value is not None and math.isclose(value, wanted, rel_tol=1e-5)
