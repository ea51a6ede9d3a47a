"""Projections of one input that one attention uses, merged into one product.

The attention, and a rotary embedding before it, then read their part of the merged result where it
lies.  Whatever else uses a projection (the norm of each head in Qwen 3) gets a slice of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.ops.attention import Attention, standard
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.ops.rope import Rope
from hetero_tvm.relax_passes.fusions.linear import constant_matrix
from hetero_tvm.relax_passes.rewriting.fused import Claims, contract
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule
from hetero_tvm.relax_passes.rewriting.views import RESHAPES

_TRACED = (*RESHAPES, "relax.permute_dims", "relax.nn.rms_norm", "relax.nn.layer_norm")
"""Operators that may stand between a projection and the attention."""


@dataclass
class _Projection:
    """``result = x @ weight (+ bias)``."""

    result: Var
    product: Var
    x: Expr
    weight: np.ndarray
    bias: np.ndarray | None

    @property
    def width(self) -> int:
        return self.weight.shape[1]


class MergeQkv(Rule):
    """Two or three projections of the same input -> one product with all their columns."""

    name = "qkv"
    anchors = ("relax.call_tir",)

    def __init__(self, claims: Claims = lambda op: False):
        self._claims = claims

    def match(self, graph: Graph, var: Var) -> list[_Projection] | None:
        op = contract(graph.functions(), graph.value(var))
        if not isinstance(op, Attention):
            return None
        bases = [graph.value(var).args[1].fields[place.operand] for place in op.heads_at]
        traced = [_traced(graph, base) for base in bases]
        group: list[_Projection] = []
        for projection in traced:
            same = [p for p in _distinct(traced) if projection is not None and p.x.same_as(projection.x)]
            group = max(group, same, key=len)
        if len(group) > 1:
            return group
        if not any(traced):
            return None
        missing = [letter for letter, p in zip("QKV", traced, strict=True) if p is None]
        if all(base.same_as(bases[0]) for base in bases) or (not missing and len(_distinct(traced)) == 1):
            return None  # one tensor already
        if missing:
            raise Miss(f"{', '.join(missing)} is not a product with a constant weight (plus a constant bias)")
        raise Miss("Q, K and V are projections of different inputs")

    def rewrite(self, graph: Graph, var: Var, found: list[_Projection]) -> None:
        order = {v: i for i, v in enumerate(graph.bindings())}
        readers = [_readers(graph, p.result) for p in found]
        first = min((p.product for p in found), key=order.__getitem__)
        absorbed = [v for p in found for v in (p.product, p.result)]
        weight = constant(np.concatenate([p.weight for p in found], axis=1))
        value = relax.op.matmul(found[0].x, weight)
        bias = None
        if any(p.bias is not None for p in found):
            parts = (np.zeros(p.width, np.float32) if p.bias is None else p.bias for p in found)
            bias = np.concatenate(list(parts))
        merged = graph.insert_before(first, value, var.name + "#qkv", absorbed)
        if bias is not None:
            merged = graph.insert_before(
                first, relax.op.add(merged, relax.const(bias)), var.name + "#qkv_bias", absorbed
            )
        rewritten: set[Var] = set()
        start = 0
        for projection, users in zip(found, readers, strict=True):
            for user in users:
                if user is None or user in rewritten:
                    continue
                if _redirected(graph, user, found, merged, self._claims):
                    rewritten.add(user)
            if any(user not in rewritten for user in users):
                axis = len(shape_of(projection.result)) - 1
                part = relax.op.strided_slice(merged, [axis], [start], [start + projection.width], [1])
                graph.replace(projection.result, part)
            start += projection.width


def _readers(graph: Graph, var: Var) -> list[Var | None]:
    """Users of a tensor or of it under other shapes; None for the function's result."""
    found: list[Var | None] = []
    for user in dict.fromkeys(graph.users(var)):
        reshaped = user is not None and graph.op_name(user) == "relax.reshape"
        found += _readers(graph, user) if reshaped else [user]
    return found


def _distinct(projections: Sequence[_Projection | None]) -> list[_Projection]:
    found: list[_Projection] = []
    for projection in projections:
        if projection is not None and not any(p.result.same_as(projection.result) for p in found):
            found.append(projection)
    return found


def _traced(graph: Graph, expr: Expr) -> _Projection | None:
    """The projection behind a rotary embedding, a norm of each head, and what rearranges."""
    while True:
        if (projection := _projection(graph, expr)) is not None:
            return projection
        call = graph.value(expr)
        if graph.op_name(expr) in _TRACED:
            expr = call.args[0]
        elif isinstance(contract(graph.functions(), call), Rope | Normalization):
            expr = call.args[1].fields[0]
        else:
            return None


def _projection(graph: Graph, base: Expr) -> _Projection | None:
    """``x @ W`` or ``x @ W + b`` with constants."""
    bias, product = None, base
    addition = graph.call(base, "relax.add")
    if addition is not None:
        for arg, other in (addition.args, reversed(list(addition.args))):
            array = array_of(graph.value(arg))
            if array is not None and array.size == shape_of(base)[-1] and array.shape[-1:] == (array.size,):
                bias, product = array.reshape(-1), other
        if bias is None or shape_of(product) != shape_of(base) or graph.only_user(product) is None:
            return None
    matmul = graph.call(product, "relax.matmul")
    if matmul is None or dtype_of(base) != "float32":
        return None
    weight = constant_matrix(graph, matmul.args[1])
    if weight is None or len(shape_of(matmul.args[0])) < 2:
        return None
    return _Projection(base, product, matmul.args[0], weight, bias)


# ---- reading parts of the merged result ----------------------------------------------------


def _redirected(
    graph: Graph,
    user: Var,
    found: list[_Projection],
    merged: Var,
    claims: Claims,
) -> bool:
    """Let a fused operator read the merged tensor; False when it cannot, or is another operator."""
    call = graph.value(user)
    op = contract(graph.functions(), call)
    if isinstance(op, Rope):
        part = _part(graph, call.args[1].fields[0], found)
        if part is None:
            return False
        extents = zip(op.place[1:], op.shape[:-1], strict=True)
        place = _moved(op.place[0], tuple(extents), op.shape[-1], *part)
        if place is None:
            return False
        op = replace(op, source=shape_of(merged), place=place)
        operands = [merged, *call.args[1].fields[1:]]
    elif isinstance(op, Normalization) and not op.trail:
        part = _part(graph, call.args[1].fields[0], found)
        offset, *strides = op.place or (0, *_strides(op.lead, op.n))
        place = part and _moved(offset, tuple(zip(strides, op.lead, strict=True)), op.n, *part)
        op = replace(op, source=shape_of(merged), place=place or ())
        if not place or not claims(op):
            return False
        operands = [merged, *call.args[1].fields[1:]]
    elif isinstance(op, Attention):
        attention = _attention(graph, op, list(call.args[1].fields), found, merged)
        if attention is None:
            return False
        op, operands = attention
        operands = [
            operand
            if shape_of(operand) == shape
            else graph.insert_before(user, relax.op.reshape(operand, shape), f"{user.name}#part")
            for operand, shape in zip(operands, (o.shape for o in op.inputs), strict=True)
        ]
    else:
        return False
    graph.replace(user, graph.call_function(op.workload(), op.label, operands, user))
    return True


def _attention(
    graph: Graph, op: Attention, fields: list[Expr], found: list[_Projection], merged: Var
) -> tuple[Attention, list[Expr]] | None:
    tensors: list[Expr] = []
    spots = []
    sizes = (op.batch, op.heads, op.q_len), *((op.batch, op.kv_heads, op.kv_len),) * 2
    for place, extents, dim in zip(op.heads_at, sizes, (op.head_dim, op.head_dim, op.values), strict=True):
        tensor, spot = fields[place.operand], tuple(place[1:])
        part = _part(graph, tensor, found)
        if part is not None:
            tensor, spot = merged, _moved(spot[0], tuple(zip(spot[1:], extents, strict=True)), dim, *part)
            if spot is None:
                return None
        index = next((i for i, t in enumerate(tensors) if t.same_as(tensor)), len(tensors))
        if index == len(tensors):
            tensors.append(tensor)
        spots.append((index, *spot))
    moved = standard(
        replace(op, packed=False, tensors=tuple(shape_of(t) for t in tensors), places=tuple(spots))
    )
    return moved, [*tensors, *fields[len(op.shapes) :]]


def _part(graph: Graph, operand: Expr, found: list[_Projection]) -> tuple[int, int, int] | None:
    """(width of a projection, of all, columns before it) when ``operand`` is its result."""
    while (call := graph.call(operand, "relax.reshape")) is not None:
        operand = call.args[0]
    start = 0
    for projection in found:
        if projection.result.same_as(operand):
            return projection.width, sum(p.width for p in found), start
        start += projection.width
    return None


def _strides(lead: tuple[int, ...], n: int) -> list[int]:
    """Strides of the leading axes of rows of n elements that follow one another."""
    return [n * math.prod(lead[axis + 1 :]) for axis in range(len(lead))]


def _moved(
    offset: int, axes: tuple[tuple[int, int], ...], dim: int, width: int, total: int, start: int
) -> tuple[int, ...] | None:
    """Offset and strides in rows of ``total`` columns instead of ``width``, from column ``start`` on.

    ``axes`` are (stride, extent).  None when an axis runs over the end of a row.
    """
    row, column = divmod(offset, width)
    strides, reach = [], column + dim
    for stride, extent in axes:
        rows, columns = divmod(stride, width)
        if columns and rows:
            return None
        reach += columns * (extent - 1)
        strides.append(rows * total if not columns else stride)
    return (row * total + start + column, *strides) if reach <= width else None
