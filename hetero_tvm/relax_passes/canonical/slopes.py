"""PReLU as sums and products, which every layout and epilogue knows."""

from __future__ import annotations

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


class SlopesAsProducts(Rule):
    """``prelu(x, slopes)`` with constant slopes -> ``relu(x) + slopes * min(x, 0)``; one slope: a leaky ReLU.

    One of the terms is zero, so the sum is exact, and NaN stays.
    """

    name = "slopes"
    counted = False
    anchors = ("relax.nn.prelu",)

    def match(self, graph: Graph, var: Var) -> np.ndarray | None:
        call = graph.value(var)
        slopes = array_of(graph.value(call.args[1]))
        if slopes is None or slopes.ndim != 1 or dtype_of(var) != "float32":
            return None
        return slopes

    def rewrite(self, graph: Graph, var: Var, slopes: np.ndarray) -> None:
        call, bind = graph.value(var), graph.binder(var, [var])
        x = call.args[0]
        if len({*slopes.tolist()}) == 1:
            graph.replace(var, relax.op.nn.leakyrelu(x, float(slopes[0])))
            return
        along = [1] * len(shape_of(var))
        along[int(call.attrs.axis)] = -1
        below = bind(relax.op.minimum(x, relax.const(0.0, "float32")), "below")
        scaled = bind(relax.op.multiply(below, constant(slopes.reshape(along))), "scaled")
        above = bind(relax.op.nn.relu(x), "above")
        graph.replace(var, relax.op.add(above, scaled))
