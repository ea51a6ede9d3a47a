"""Sums of two quantised tensors, one of them a convolution's -> the convolution's last step.

::

    quantize(relu(dequantize(quant_conv2d(...)) + dequantize(r)))        relu optional

The convolution still rounds to its own 8 bits first, as the model says, but in registers: neither the rounded
result nor the sum's operands in float are ever stored.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.ops.integers.quantized import OFFSET, QuantConv2d
from hetero_tvm.relax_passes.fusions.integers.quantized import bounded, scalar_value, whole_bounds
from hetero_tvm.relax_passes.rewriting.fused import Claims, contract
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


@dataclass
class _Found:
    op: QuantConv2d
    conv: Call
    residual: Expr
    join: np.ndarray
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
        terms = [graph.call(arg, "relax.dequantize") for arg in graph.value(var).args]
        if any(term is None for term in terms):
            return None
        steps = [_step(graph, term) for term in terms]
        if any(step is None for step in steps) or shape_of(terms[0]) != shape_of(terms[1]):
            return None
        top, low, high, absorbs = bounded(graph, var)
        user = graph.only_user(top)
        if user is None or graph.op_name(user) != "relax.quantize" or dtype_of(user) not in OFFSET:
            return None
        quantize = graph.value(user)
        y_scale, y_zero = (scalar_value(graph, arg) for arg in quantize.args[1:])
        if y_scale is None or y_zero is None:
            return None
        places = {binding: n for n, binding in enumerate(graph.bindings())}
        for index in sorted((0, 1), key=lambda n: -places.get(terms[n].args[0], -1)):
            made, other = terms[index].args[0], terms[1 - index].args[0]
            conv = graph.value(made)
            op = contract(graph.functions(), conv) if isinstance(conv, Call) else None
            if (
                not isinstance(op, QuantConv2d)
                or op.out not in OFFSET
                or op.residual
                or len(set(graph.users(made))) != 1
            ):
                continue
            dequantized = graph.users(made)[0]
            if dequantized is None or graph.only_user(dequantized) is None:
                continue
            (scale, _), (other_scale, other_zero) = steps[index], steps[1 - index]
            if int(steps[index][1]) != op.y_zero:
                continue
            dtype = dtype_of(user)
            op = dataclasses.replace(
                op,
                residual=dtype_of(other),
                final=dtype,
                final_bounds=whole_bounds(low, high, y_scale, y_zero, dtype),
            )
            if not self._claims(op):
                return None
            join = np.array([scale / y_scale, other_zero, other_scale / y_scale, y_zero], np.float32)
            return _Found(op, conv, other, join, user, [made, dequantized, var, *absorbs, top])
        return None

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        op, top = found.op, found.top
        args = [*found.conv.args[1].fields, relax.const(found.join), found.residual]
        graph.replace(top, graph.call_function(op.workload(), op.label, args, top), found.absorbs)


def _step(graph: Graph, call: Call) -> tuple[float, float] | None:
    """Scale and zero point of a dequantised tensor that has one of each."""
    scale, zero = scalar_value(graph, call.args[1]), scalar_value(graph, call.args[2])
    return None if scale is None or zero is None or dtype_of(call.args[0]) not in OFFSET else (scale, zero)
