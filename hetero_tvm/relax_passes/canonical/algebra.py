"""Powers with a small constant exponent and divisions by powers of two in their cheap form.

``power(x, 2)`` and ``power(x, 3)`` become products (the library call costs 20 times as much; a cube as
two products rounds twice, relative error 1.2e-7), ``power(x, 0.5)`` a square root.  A division becomes
a product only where both round alike, that is by powers of two.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, scalar_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule

_FLOATS = ("float32", "float64")


class ExpandPowers(Rule):
    """``power(x, c)`` for c in 2, 3, 0.5, -1, -0.5 without a power function."""

    name = "expand_powers"
    counted = False
    anchors = ("relax.power",)

    def match(self, graph: Graph, var: Var) -> tuple[Any, float] | None:
        x, exponent = graph.value(var).args
        value = scalar_of(graph.value(exponent))
        if value not in (2.0, 3.0, 0.5, -1.0, -0.5) or dtype_of(var) not in _FLOATS:
            return None
        return (x, value) if shape_of(x) == shape_of(var) else None

    def rewrite(self, graph: Graph, var: Var, found: tuple[Expr, float]) -> None:
        x, exponent = found
        if exponent == 3.0:
            square = graph.insert_before(var, relax.op.multiply(x, x), f"{var.name}#square", [var])
            graph.replace(var, relax.op.multiply(square, x))
            return
        one = relax.const(np.ones((), dtype_of(var)), dtype_of(var))
        forms = {
            2.0: lambda: relax.op.multiply(x, x),
            0.5: lambda: relax.op.sqrt(x),
            -1.0: lambda: relax.op.divide(one, x),
            -0.5: lambda: relax.op.rsqrt(x),
        }
        graph.replace(var, forms[exponent]())


class MultiplyByReciprocal(Rule):
    """``x / c`` -> ``x * (1 / c)`` where every value of the constant is a power of two: the same bits."""

    name = "multiply_by_reciprocal"
    counted = False
    anchors = ("relax.divide",)

    def match(self, graph: Graph, var: Var) -> np.ndarray | None:
        divisor = array_of(graph.value(graph.value(var).args[1]))
        if divisor is None or dtype_of(var) not in _FLOATS or not divisor.size:
            return None
        mantissa, exponent = np.frexp(np.abs(divisor))
        # Far from the ends of the exponent's range the reciprocal is a normal number as well.
        exact = (mantissa == 0.5) & (np.abs(exponent) < math.log2(float(np.finfo(divisor.dtype).max)) - 2)
        return (1 / divisor).astype(divisor.dtype) if exact.all() else None

    def rewrite(self, graph: Graph, var: Var, found: np.ndarray) -> None:
        graph.replace(var, relax.op.multiply(graph.value(var).args[0], relax.const(found, dtype_of(var))))
