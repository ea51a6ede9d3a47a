"""Products of two computed 8-bit tensors, and softmax into 8 bits -> ``ops.QuantBatchMatmul``,
``ops.QuantSoftmax``.

::

    quantize(matmul(dequantize(a), dequantize(b)) * c)      c a number; quantize and c are optional
    quantize(softmax(x))                                    x may be dequantised as well

Tools that quantise a Transformer put quantisers around each step of attention, so that none of them is left
for one kernel of floats.  This runs after attention is fused: where no quantiser stands between its products,
they are none of ours.  Scales are numbers; zero points as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hetero_tvm.host.tvm import Expr, Var
from hetero_tvm.ops.integers.batch_matmul import QuantBatchMatmul
from hetero_tvm.ops.integers.quantized import OFFSET
from hetero_tvm.ops.integers.softmax import QuantSoftmax
from hetero_tvm.relax_passes.fusions.batch_matmul import places_of
from hetero_tvm.relax_passes.fusions.integers.quantized import scalar_value
from hetero_tvm.relax_passes.rewriting.fused import Claims
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule
from hetero_tvm.relax_passes.rewriting.views import operand_place, order_of, times_number


@dataclass
class _Found:
    op: QuantBatchMatmul | QuantSoftmax
    operands: list[Expr]
    top: Var
    absorbs: list[Var] = field(default_factory=list)


class _Claimed(Rule):
    """Base of rules that put one operator in the place of its steps."""

    def __init__(self, claims: Claims):
        self._claims = claims

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        op = found.op
        call = graph.call_function(op.workload(), op.label, found.operands, found.top)
        graph.replace(found.top, call, found.absorbs)


class FuseQuantBatchMatmul(_Claimed):
    """A product of two dequantised tensors that no pass made a part of something larger.

    Parameters
    ----------
    claims : whether the target has a kernel for an operator.
    """

    name = "quantized_batch_matmul"
    anchors = ("relax.matmul",)

    def match(self, graph: Graph, var: Var) -> _Found | None:
        sides = [_bytes(graph, arg) for arg in graph.value(var).args]
        if None in sides or min(len(shape_of(side.source)) for side in sides) < 2:
            return None
        shape = shape_of(var)
        lead, depth = shape[:-2], shape_of(sides[0].source)[-1]
        left, right = (operand_place(graph, side.source, lead) for side in sides)
        scale, top = float(np.float64(sides[0].scale) * sides[1].scale), var
        absorbs = [*left[0].skipped, *right[0].skipped]
        while (user := graph.only_user(top)) is not None:
            times = times_number(graph, user)
            if times is None or not times[0].same_as(top):
                break
            scale, top, absorbs = scale * times[1], user, [*absorbs, top]
        out, y_zero = "float32", 0
        end = _quantizer(graph, top)
        if end is not None:
            scale, out, y_zero = scale / end.scale, dtype_of(end.var), end.zero
            top, absorbs = end.var, [*absorbs, top]
        order = list(range(len(shape)))
        user = graph.only_user(top)
        if user is not None and graph.op_name(user) == "relax.permute_dims":
            moved = order_of(graph.value(user))
            if moved[-1] == len(shape) - 1:
                order, top, absorbs = moved, user, [*absorbs, top]
        op = QuantBatchMatmul(
            *(lead, shape[-2], shape[-1], depth, *places_of(left, right), tuple(order)),
            a_dtype=dtype_of(sides[0].source),
            b_dtype=dtype_of(sides[1].source),
            a_zero=sides[0].zero,
            b_zero=sides[1].zero,
            scale=float(np.float32(scale)),
            out=out,
            y_zero=y_zero,
        )
        return _Found(op, [left[0].base, right[0].base], top, absorbs) if self._claims(op) else None


class FuseQuantSoftmax(_Claimed):
    """Softmax over the last axis whose result is quantised.

    Parameters
    ----------
    claims : whether the target has a kernel for an operator.
    """

    name = "quantized_softmax"
    anchors = ("relax.nn.softmax",)

    def match(self, graph: Graph, var: Var) -> _Found | None:
        call, end = graph.value(var), _quantizer(graph, var)
        shape = shape_of(var)
        if end is None or int(call.attrs.axis) % len(shape) != len(shape) - 1:
            return None
        x = _bytes(graph, call.args[0])
        source, scale = (call.args[0], 1.0) if x is None else (x.source, x.scale)
        if dtype_of(source) not in ("float32", *OFFSET) or not scale > 0:
            return None
        op = QuantSoftmax(
            shape[:-1], shape[-1], dtype_of(source), scale, dtype_of(end.var), end.scale, end.zero
        )
        return _Found(op, [source], end.var, [var]) if self._claims(op) else None


@dataclass(frozen=True)
class _Bytes:
    """A tensor of 8 bits, and what its values stand for."""

    source: Expr
    scale: float
    zero: int


@dataclass(frozen=True)
class _Quantizer:
    """The binding that quantises, and its numbers."""

    var: Var
    scale: float
    zero: int


def _bytes(graph: Graph, expr: Expr) -> _Bytes | None:
    """The tensor that ``expr`` dequantises by numbers, unless it is a matrix of weights."""
    call = graph.call(expr, "relax.dequantize")
    if call is None or dtype_of(call.args[0]) not in OFFSET:
        return None
    if len(shape_of(expr)) < 3 and array_of(graph.value(call.args[0])) is not None:
        return None
    scale, zero = (scalar_value(graph, arg) for arg in call.args[1:])
    return None if scale is None or zero is None else _Bytes(call.args[0], scale, int(zero))


def _quantizer(graph: Graph, var: Var) -> _Quantizer | None:
    """The only reader of ``var``, where it quantises to 8 bits by numbers."""
    user = graph.only_user(var)
    if user is None or graph.op_name(user) != "relax.quantize" or dtype_of(user) not in OFFSET:
        return None
    scale, zero = (scalar_value(graph, arg) for arg in graph.value(user).args[1:])
    return None if scale is None or zero is None or not scale > 0 else _Quantizer(user, scale, int(zero))
