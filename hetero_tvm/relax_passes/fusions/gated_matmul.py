"""SwiGLU, GeGLU and their kin: ``activation(x @ G) * (x @ U)`` -> one product with a gate.

The projections may be two products of one input, or one product whose result is cut into halves;
each with or without a bias.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.relax_passes.fusions.elementwise import activation_input, activation_of
from hetero_tvm.relax_passes.fusions.linear import linear_of
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule
from hetero_tvm.relax_passes.rewriting.views import slices_of


class _Found(NamedTuple):
    function: str
    gate: Var
    x: Expr
    weight: np.ndarray
    bias: np.ndarray | None
    absorbed: list[Var]


class FuseGatedMatmul(Rule):
    """The gated half of an MLP."""

    name = "gated_mlp"
    anchors = ("relax.multiply",)

    def match(self, graph: Graph, var: Var) -> _Found | None:
        for gate, up in (graph.value(var).args, reversed(list(graph.value(var).args))):
            function = activation_of(graph, gate)
            if function is None or shape_of(gate) != shape_of(up) or dtype_of(var) != "float32":
                continue
            pair = _two_products(graph, gate, up) or _halves(graph, gate, up)
            if pair is not None:
                _check_own(graph, var, [gate, *pair[-1]])
                return _Found(function, gate, *pair)
        return None

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        function, gate, x, weight, bias, absorbed = found
        lead, (k, twice) = shape_of(var)[:-1], weight.shape
        op = GatedMatmul(lead, twice // 2, k, function, bias is not None)
        if shape_of(x) != (*lead, k):
            x = graph.insert_before(var, relax.op.reshape(x, (*lead, k)), f"{var.name}#rows", [])
        constants = [constant(array) for array in (weight, bias) if array is not None]
        call = graph.call_function(op.workload(), op.label, [x, *constants], var)
        graph.replace(var, call, absorbs=[*absorbed, gate])


_Pair = tuple[Expr, np.ndarray, np.ndarray | None, list[Var]]
"""x, the columns of gate and other side by side, their bias, and the bindings that the two absorb."""


def _two_products(graph: Graph, gate: Expr, up: Expr) -> _Pair | None:
    one, two = linear_of(graph, activation_input(graph, gate)), linear_of(graph, up)
    if one is None or two is None or math.prod(shape_of(gate)[:-1]) != math.prod(shape_of(one.x)[:-1]):
        return None
    if not one.x.same_as(two.x):
        raise Miss("the gate and what it multiplies are projections of different inputs")
    if one.weight.shape != two.weight.shape:
        return None
    weight, bias = np.concatenate([one.weight, two.weight], axis=1), None
    if one.bias is not None or two.bias is not None:
        zeros = np.zeros(one.weight.shape[1], np.float32)
        bias = np.concatenate([b if b is not None else zeros for b in (one.bias, two.bias)])
    return one.x, weight, bias, [*one.absorbed, *two.absorbed]


def _halves(graph: Graph, gate: Expr, up: Expr) -> _Pair | None:
    """Gate and other as the two halves of one product's columns."""
    one, two = _half(graph, activation_input(graph, gate)), _half(graph, up)
    if one is None or two is None or not one[0].same_as(two[0]) or {one[1], two[1]} != {0, 1}:
        return None
    both = linear_of(graph, one[0])
    if both is None or both.weight.shape[1] != 2 * shape_of(gate)[-1]:
        return None
    pieces = [*one[2], *two[2]]
    order = slice(None) if one[1] == 0 else np.roll(np.arange(both.weight.shape[1]), shape_of(gate)[-1])
    bias = None if both.bias is None else both.bias[order]
    return both.x, both.weight[:, order], bias, [*both.absorbed, *pieces]


def _half(graph: Graph, expr: Expr) -> tuple[Expr, int, list[Var]] | None:
    """The tensor of which ``expr`` is one half of the columns, which of the two, and the bindings between."""
    value, n = graph.value(expr), shape_of(expr)[-1] if shape_of(expr) else 0
    if isinstance(value, relax.TupleGetItem):
        split = graph.call(value.tuple_value, "relax.split")
        if split is None or len(value.tuple_value.ty.fields) != 2:
            return None
        base, first = split.args[0], value.index * n
        between = [expr, value.tuple_value]
        axis = int(split.attrs.axis) % len(shape_of(base))
    else:
        cut = graph.call(expr, "relax.strided_slice")
        if cut is None or any(len(getattr(arg, "fields", ())) != 1 for arg in cut.args[1:]):
            return None
        ((axis, first, step),) = slices_of(cut)
        base, between = cut.args[0], [expr]
        if step != 1:
            return None
    if axis != len(shape_of(base)) - 1 or shape_of(base)[-1] != 2 * n or first not in (0, n):
        return None
    return base, first // n, between


def _check_own(graph: Graph, var: Var, group: list[Var]) -> None:
    """Raise Miss when a value that would disappear is used by something else than the gate ``var``."""
    own = {*group, var}
    for member in group:
        if not all(user in own for user in graph.users(member)):
            raise Miss(f"{graph.node(member)} is used outside the gate as well")
