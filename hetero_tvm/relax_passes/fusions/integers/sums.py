"""Sums of two quantised tensors, one of them a convolution's -> the convolution's last step.

::

    quantize(relu(dequantize(quant_conv2d(...)) + dequantize(r)))        relu optional
    quantize(relu(quant_conv2d(...) + dequantize(r)))

In the first form the convolution still rounds to its own 8 bits first, as the model says, but in registers:
neither the rounded result nor the sum's operands in float are ever stored.  The second is what tools write
that round a sum only once.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.ops.integers.quantized import OFFSET, QuantConv2d
from hetero_tvm.relax_passes.fusions.integers.quantized import (
    bounded,
    constant_of,
    scalar_value,
    whole_bounds,
)
from hetero_tvm.relax_passes.rewriting.fused import Claims, contract
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


@dataclass
class _Term:
    """A convolution that may take the other term as its last step."""

    op: QuantConv2d
    args: list[Expr]
    own: float
    """Factor of its result in steps of the sum."""
    absorbs: list[Var]


@dataclass
class _Found:
    op: QuantConv2d
    args: list[Expr]
    top: Var
    absorbs: list[Var]


class FuseQuantizedAdd(Rule):
    """A quantised sum as the last step of a convolution.

    Parameters
    ----------
    claims : whether the target has a kernel for the convolution with its sum.
    """

    name = "quantized_add"
    anchors = ("relax.add",)

    def __init__(self, claims: Claims):
        self._claims = claims

    def match(self, graph: Graph, var: Var) -> _Found | None:
        terms = list(graph.value(var).args)
        steps = [_step(graph, term) for term in terms]
        if not any(steps) or shape_of(terms[0]) != shape_of(terms[1]):
            return None
        top, low, high, absorbs = bounded(graph, var)
        user = graph.only_user(top)
        if user is None or graph.op_name(user) != "relax.quantize" or dtype_of(user) not in OFFSET:
            return None
        y_scale, y_zero = (scalar_value(graph, arg) for arg in graph.value(user).args[1:])
        if y_scale is None or y_zero is None:
            return None
        places = {binding: n for n, binding in enumerate(graph.bindings())}
        made = [term if step is None else step[0] for term, step in zip(terms, steps, strict=True)]
        for index in sorted((0, 1), key=lambda n: -places.get(made[n], -1)):
            step = steps[1 - index]
            term = None if step is None else _term(graph, terms[index], steps[index], y_scale)
            if step is None or term is None:
                continue
            dtype, (other, other_scale, other_zero) = dtype_of(user), step
            op = dataclasses.replace(
                term.op,
                residual=dtype_of(other),
                final=dtype,
                final_bounds=whole_bounds(low, high, y_scale, y_zero, dtype),
            )
            if not self._claims(op):
                return None
            join = np.array([term.own, other_zero, other_scale / y_scale, y_zero], np.float32)
            args = [*term.args, relax.const(join), other]
            return _Found(op, args, user, [*term.absorbs, var, *absorbs, top])
        return None

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        op, top = found.op, found.top
        graph.replace(top, graph.call_function(op.workload(), op.label, found.args, top), found.absorbs)


def _step(graph: Graph, term: Expr) -> tuple[Expr, float, float] | None:
    """Bytes of a dequantised tensor that has one scale and one zero point, and these."""
    call = graph.call(term, "relax.dequantize")
    if call is None or dtype_of(call.args[0]) not in OFFSET:
        return None
    scale, zero = scalar_value(graph, call.args[1]), scalar_value(graph, call.args[2])
    return None if scale is None or zero is None else (call.args[0], scale, zero)


def _term(graph: Graph, term: Expr, step: tuple[Expr, float, float] | None, y_scale: float) -> _Term | None:
    """The convolution whose result is ``term``, which nothing else reads, or what ``step`` scales; a step of
    the sum is ``y_scale``."""
    made = term if step is None else step[0]
    conv = graph.value(made)
    op = contract(graph.functions(), conv) if isinstance(conv, Call) else None
    if not isinstance(op, QuantConv2d) or op.residual:
        return None
    if graph.only_user(term) is None or len(set(graph.users(made))) != 1:
        return None
    args = [*conv.args[1].fields]
    if step is not None:
        fitting = op.out in OFFSET and int(step[2]) == op.y_zero
        return _Term(op, args, step[1] / y_scale, [made, term]) if fitting else None
    scale = constant_of(graph, args[-1])
    if op.out != "float32" or scale is None:
        return None
    args[-1] = constant((scale / np.float32(y_scale)).astype(np.float32))
    return _Term(op, args, 1.0, [made])
