"""Scalar arithmetic around one tensor, read as a polynomial, however it is spelled."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hetero_tvm.host.tvm import Expr
from hetero_tvm.relax_passes.rewriting.graph import Graph, same_value, scalar_of

Polynomial = dict[int, float]
"""Exponent -> coefficient."""

_HIGHEST_EXPONENT = 8


def polynomial(graph: Graph, expr: Expr, x: Expr, depth: int = 12) -> Polynomial | None:
    """``expr`` as a polynomial in the tensor ``x``; None when it depends on anything else."""
    if same_value(graph, expr, x):
        return {1: 1.0}
    value = graph.value(expr)
    if (scalar := scalar_of(value)) is not None:
        return {0: scalar}
    call = graph.call(expr, *_ARITHMETIC)
    if call is None or depth == 0:
        return None
    terms = [polynomial(graph, arg, x, depth - 1) for arg in call.args]
    if any(term is None for term in terms):
        return None
    return _ARITHMETIC[call.op.name](*terms)


def is_polynomial(found: Polynomial | None, wanted: Polynomial, tolerance: float = 1e-5) -> bool:
    """Whether both have the same coefficients, relative to ``tolerance``."""
    if found is None:
        return False
    found = {power: c for power, c in found.items() if c != 0.0}
    return found.keys() == wanted.keys() and all(
        math.isclose(found[power], c, rel_tol=tolerance) for power, c in wanted.items()
    )


def scalings(graph: Graph, expr: Expr) -> Iterator[tuple[Expr, float]]:
    """``(base, factor)`` with ``expr == base * factor``: expr itself, then with each constant stripped."""
    scale = 1.0
    while True:
        yield expr, scale
        call = graph.call(expr, "relax.multiply", "relax.divide")
        if call is None:
            return
        left, right = (_factor(scalar_of(graph.value(arg))) for arg in call.args)
        if right:
            expr, scale = call.args[0], scale * (right if call.op.name == "relax.multiply" else 1 / right)
        elif left and call.op.name == "relax.multiply":
            expr, scale = call.args[1], scale * left
        else:
            return


def _factor(scalar: float | None) -> float | None:
    """A scalar that can move through a product: zero and infinity make NaN of other operands there."""
    return scalar if scalar is not None and math.isfinite(scalar) else None


def _sum(a: Polynomial, b: Polynomial, sign: float = 1.0) -> Polynomial:
    return {power: a.get(power, 0.0) + sign * b.get(power, 0.0) for power in {*a, *b}}


def _product(a: Polynomial, b: Polynomial) -> Polynomial | None:
    result: Polynomial = {}
    for p, c in a.items():
        for q, d in b.items():
            result[p + q] = result.get(p + q, 0.0) + c * d
    return result if max(result, default=0) <= _HIGHEST_EXPONENT else None


def _quotient(a: Polynomial, b: Polynomial) -> Polynomial | None:
    return {p: c / b[0] for p, c in a.items()} if b.keys() == {0} and b[0] else None


def _power(a: Polynomial, b: Polynomial) -> Polynomial | None:
    if b.keys() != {0} or b[0] not in (1.0, 2.0, 3.0, 4.0):
        return None
    result: Polynomial | None = {0: 1.0}
    for _ in range(int(b[0])):
        result = _product(result, a) if result is not None else None
    return result


_ARITHMETIC = {
    "relax.add": _sum,
    "relax.subtract": lambda a, b: _sum(a, b, -1.0),
    "relax.multiply": _product,
    "relax.divide": _quotient,
    "relax.power": _power,
    "relax.square": lambda a: _product(a, a),
    "relax.negative": lambda a: _sum({}, a, -1.0),
}
