"""Attention written as matmul, softmax, matmul -> one fused operator; Q, K, V projections merged.

What is recognised: queries, keys and values as [B, S, H * D] tensors that are reshaped to heads and
transposed; a scale as product or quotient on the scores or on Q or K; an additive mask, a causal
mask as a constant (added, or through ``where``); weights guarded against NaN as PyTorch's attention
is exported; the result transposed back and reshaped.  Q, K, V
may be the pieces of one split tensor, or three projections of the same input by constant weights,
which then become one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hetero_tvm._bootstrap import import_tvm

tvm = import_tvm()

from tvm import relax  # noqa: E402

from hetero_tvm.ops.attention import Attention  # noqa: E402
from hetero_tvm.relax_passes.fused import contract  # noqa: E402
from hetero_tvm.relax_passes.graph import (  # noqa: E402
    Graph,
    array_of,
    dtype_of,
    scalar_of,
    shape_of,
)
from hetero_tvm.relax_passes.rule import Miss, Rule  # noqa: E402

_BETWEEN = ("relax.matmul", "relax.multiply", "relax.divide", "relax.add", "relax.where")
"""Operators between the first product, itself included, and the softmax."""

_MASKED = -1e4
"""A constant mask value at or below this hides a key: its weight is 0 in float32."""


@dataclass
class _Scores:
    """What lies between the softmax and the first product."""

    product: Any
    scale: float = 1.0
    mask: Any | None = None
    causal: bool = False
    absorbed: list[Any] = field(default_factory=list)


@dataclass
class _Found:
    op: Attention
    bases: tuple[Any, Any, Any]
    packed: Any | None
    mask: Any | None
    top: Any
    absorbed: list[Any]


class FuseAttention(Rule):
    """Multi-head attention around a softmax."""

    name = "attention"
    anchors = ("relax.nn.softmax",)

    def match(self, graph: Graph, var: Any) -> _Found | None:
        softmax = graph.value(var)
        rank = len(shape_of(softmax.args[0]))
        if int(softmax.attrs.axis) % rank != rank - 1:
            return None
        scores = _trace_scores(graph, softmax.args[0])
        if scores is None:
            return None
        if dtype_of(var) != "float32":
            raise Miss(f"dtype is {dtype_of(var)}, expected float32")
        if rank != 4:
            raise Miss(f"scores have rank {rank}, expected 4 [B, H, Sq, Sk]")
        guard = _nan_guard(graph, var)
        weights_var = var if guard is None else guard[-1]
        product = graph.only_user(weights_var)
        if product is None or graph.op_name(product) != "relax.matmul":
            raise Miss("the weights are not used by one matmul alone")
        weights, values = graph.value(product).args
        if not weights.same_as(weights_var):
            raise Miss("the weights are the right operand of the second matmul")
        query = _trace_heads(graph, scores.product.args[0], (0, 2, 1, 3), "Q")
        key = _trace_heads(graph, scores.product.args[1], (0, 2, 3, 1), "K")
        value = _trace_heads(graph, values, (0, 2, 1, 3), "V")
        transposed = graph.only_user(product)
        if transposed is None or _permutation(graph, transposed) != (0, 2, 1, 3):
            raise Miss("the result is not transposed back to [B, S, H, D]")
        top = graph.only_user(transposed)
        if top is None or graph.op_name(top) != "relax.reshape":
            raise Miss("the result is not reshaped to [B, S, H * D]")
        batch, q_len, heads, dim = query.shape
        kv_len, kv_heads = key.shape[1], key.shape[2]
        if value.scale != 1.0:
            raise Miss(f"V is scaled by {value.scale:g}")
        if key.shape != (batch, kv_len, kv_heads, dim) or value.shape != key.shape or kv_heads != heads:
            raise Miss(f"head shapes differ: Q {query.shape}, K {key.shape}, V {value.shape}")
        if shape_of(top) != (batch, q_len, heads * dim):
            raise Miss(f"the result has shape {shape_of(top)}, expected {(batch, q_len, heads * dim)}")
        mask_shape = ()
        if scores.mask is not None:
            mask_shape = shape_of(scores.mask)
            if len(mask_shape) > 4:
                raise Miss(f"mask has rank {len(mask_shape)}, expected at most 4")
            mask_shape = (1,) * (4 - len(mask_shape)) + mask_shape
        bases = (query.base, key.base, value.base)
        op = Attention(
            batch, heads, q_len, kv_len, dim, scores.scale * query.scale * key.scale,
            kv_heads=kv_heads, packed=False, mask=mask_shape, causal=scores.causal,
            zero_masked=guard is not None,
        )  # fmt: skip
        absorbed = [
            *query.absorbed, *key.absorbed, *value.absorbed, *scores.absorbed, var, *(guard or ()),
            product, transposed,
        ]  # fmt: skip
        packed = _common_split(graph, bases)
        return _Found(op, bases, packed, scores.mask, top, absorbed)

    def rewrite(self, graph: Graph, var: Any, found: _Found) -> None:
        operands = list(found.bases)
        if found.packed is not None:
            operands = [found.packed]
        if found.mask is not None:
            mask = found.mask
            if shape_of(mask) != found.op.mask:
                mask = graph.insert_before(
                    found.top, relax.op.reshape(mask, found.op.mask), found.top.name + "#mask"
                )
            operands.append(mask)
        op = found.op if found.packed is None else _with_packing(found.op)
        call = graph.call_function(op.workload(), op.label, operands, found.top)
        graph.replace(found.top, call, absorbs=found.absorbed)


class MergeQkv(Rule):
    """Three projections of the same input, used only by one attention -> one product with 3 x the columns."""

    name = "qkv"
    anchors = ("relax.call_tir",)

    def match(self, graph: Graph, var: Any) -> Any | None:
        op = contract(graph.functions(), graph.value(var))
        if not isinstance(op, Attention) or op.packed or op.q_len != op.kv_len:
            return None
        operands = list(graph.value(var).args[1].fields)
        projections = [_projection(graph, base) for base in operands[:3]]
        missing = [name for name, p in zip("QKV", projections, strict=True) if p is None]
        if missing:
            raise Miss(f"{', '.join(missing)} is not a product with a constant weight (plus a constant bias)")
        if not all(p.x.same_as(projections[0].x) for p in projections):
            raise Miss("Q, K and V are projections of different inputs")
        if len({p.bias is None for p in projections}) != 1:
            raise Miss("some of Q, K and V have a bias and some have none")
        for base in operands[:3]:
            if graph.only_user(base) is None:
                raise Miss(f"{graph.node(base)} is used outside the attention as well")
        return op, operands, projections

    def rewrite(self, graph: Graph, var: Any, found: Any) -> None:
        op, operands, projections = found
        weight = relax.const(np.concatenate([p.weight for p in projections], axis=1))
        absorbed = [v for p in projections for v in p.absorbed]
        merged = graph.insert_before(
            var, relax.op.matmul(projections[0].x, weight), var.name + "#qkv", absorbed
        )
        if projections[0].bias is not None:
            bias = relax.const(np.concatenate([p.bias for p in projections]))
            merged = graph.insert_before(var, relax.op.add(merged, bias), var.name + "#qkv_bias", absorbed)
        packed = _with_packing(op)
        call = graph.call_function(packed.workload(), packed.label, [merged, *operands[3:]], var)
        graph.replace(var, call)


def _nan_guard(graph: Graph, weights: Any) -> list[Any] | None:
    """The bindings of ``where(isnan(w), 0, w)`` around the weights w; None when there is no such guard."""
    users = graph.users(weights)
    if len(users) != 2 or None in users:
        return None
    test = next((user for user in users if graph.op_name(user) == "relax.isnan"), None)
    choice = next((user for user in users if graph.op_name(user) == "relax.where"), None)
    if test is None or choice is None or graph.only_user(test) is None:
        return None
    condition, replaced, kept = graph.value(choice).args
    zero = scalar_of(graph.value(replaced)) == 0.0
    return [test, choice] if zero and condition.same_as(test) and kept.same_as(weights) else None


def _with_packing(op: Attention) -> Attention:
    return replace(op, packed=True)


def _trace_scores(graph: Graph, expr: Any) -> _Scores | None:
    """From the softmax's input down to the first product; None when there is no product below."""
    found = _Scores(product=None)
    while True:
        product = graph.call(expr, "relax.matmul")
        if product is not None:
            found.product = product
            found.absorbed.append(expr)
            return found
        call = graph.call(expr, "relax.add", "relax.multiply", "relax.divide", "relax.where")
        if call is None:
            return None
        found.absorbed.append(expr)
        if call.op.name == "relax.add":
            below = [a for a in call.args if _leads_to_product(graph, a)]
            if len(below) != 1:
                return None
            mask = call.args[1] if below[0].same_as(call.args[0]) else call.args[0]
            if found.mask is not None or found.causal:
                raise Miss("two masks are added to the scores")
            if found.scale != 1.0:
                raise Miss("the scale is applied after the mask")
            if _is_causal(array_of(graph.value(mask)), additive=True):
                found.causal = True
            else:
                found.mask = mask
            expr = below[0]
        elif call.op.name == "relax.where":
            condition, kept, hidden = call.args
            value = scalar_of(graph.value(hidden))
            if not _leads_to_product(graph, kept):
                return None
            if value is None or value * found.scale > _MASKED:
                raise Miss("where(...) does not replace hidden scores by a large negative constant")
            if not _is_causal(array_of(graph.value(condition)), additive=False):
                raise Miss("the condition of where(...) is not a constant causal mask")
            found.causal = True
            expr = kept
        else:
            scaled = _scaled(graph, call)
            if scaled is None:
                return None
            expr, factor = scaled
            found.scale *= factor


def _scaled(graph: Graph, call: Any) -> tuple[Any, float] | None:
    """``(x, factor)`` when a product or quotient is ``x * factor``, the constant on either side."""
    left, right = call.args
    factor = scalar_of(graph.value(right))
    if factor is None and call.op.name == "relax.multiply":
        factor, left = scalar_of(graph.value(left)), right
    if not factor:
        return None
    return left, factor if call.op.name == "relax.multiply" else 1.0 / factor


def _leads_to_product(graph: Graph, expr: Any) -> bool:
    while True:
        call = graph.call(expr, *_BETWEEN)
        if call is None:
            return False
        if call.op.name == "relax.matmul":
            return True
        candidates = list(call.args)[1:2] if call.op.name == "relax.where" else list(call.args)
        deeper = [a for a in candidates if graph.op_name(a) in _BETWEEN]
        if not deeper:
            return False
        expr = deeper[0]


def _is_causal(mask: np.ndarray | None, *, additive: bool) -> bool:
    """Whether a constant mask [.., Sq, Sk] lets query i see exactly the keys ``j <= i + Sk - Sq``."""
    if mask is None or mask.ndim < 2 or any(extent != 1 for extent in mask.shape[:-2]):
        return False
    mask = mask.reshape(mask.shape[-2:])
    q_len, kv_len = mask.shape
    if q_len < 2 or kv_len < q_len:  # fewer keys than queries: the first queries would see nothing
        return False
    wanted = np.tril(np.ones((q_len, kv_len), bool), kv_len - q_len)
    visible = mask == 0 if additive else mask.astype(bool)
    hidden = mask <= _MASKED if additive else ~visible
    return bool((visible == wanted).all() and (hidden == ~wanted).all())


@dataclass
class _Heads:
    base: Any
    shape: tuple[int, ...]
    scale: float
    absorbed: list[Any]


def _trace_heads(graph: Graph, expr: Any, wanted: tuple[int, ...], which: str) -> _Heads:
    """Undo scale and transposes down to the reshape [B, S, H * D] -> [B, S, H, D]."""
    scale, order, absorbed = 1.0, (0, 1, 2, 3), []
    while True:
        absorbed.append(expr)
        if (merged := _swap_in_rank_3(graph, expr)) is not None:
            order = tuple((0, 1, 3, 2)[axis] for axis in order)
            absorbed += merged
            expr = graph.value(merged[-1]).args[0]
            continue
        permutation = _permutation(graph, expr)
        call = graph.call(expr, "relax.multiply", "relax.divide", "relax.reshape")
        if permutation is not None:
            order = tuple(permutation[axis] for axis in order)
            expr = graph.value(expr).args[0]
        elif call is not None and call.op.name == "relax.reshape":
            base = call.args[0]
            if order != wanted:
                raise Miss(f"{which} is transposed by {order}, expected {wanted}")
            heads_shape, base_shape = shape_of(expr), shape_of(base)
            if len(base_shape) != 3 or len(heads_shape) != 4:
                raise Miss(f"{which} is reshaped from {base_shape} to {heads_shape}, expected rank 3 to 4")
            if base_shape != (*heads_shape[:2], heads_shape[2] * heads_shape[3]):
                raise Miss(f"{which} is reshaped from {base_shape} to {heads_shape}: not a split into heads")
            return _Heads(base, heads_shape, scale, absorbed)
        elif call is not None and (scaled := _scaled(graph, call)) is not None:
            expr, factor = scaled
            scale *= factor
        else:
            raise Miss(
                f"{which} comes from {graph.op_name(expr) or 'an input'}, expected a reshape into heads"
            )


def _swap_in_rank_3(graph: Graph, expr: Any) -> list[Any] | None:
    """The bindings of a swap of the last two axes that goes through [B * H, S, D]; None when it is none."""
    back = graph.call(expr, "relax.reshape")
    swap = graph.call(back.args[0], "relax.permute_dims") if back is not None else None
    if swap is None or _permutation(graph, back.args[0]) != (0, 2, 1):
        return None
    merge = graph.call(swap.args[0], "relax.reshape")
    shape = shape_of(merge.args[0]) if merge is not None else ()
    if len(shape) != 4 or shape_of(swap.args[0]) != (shape[0] * shape[1], *shape[2:]):
        return None
    if shape_of(expr) != (shape[0], shape[1], shape[3], shape[2]):
        return None
    return [back.args[0], swap.args[0]]


def _permutation(graph: Graph, expr: Any) -> tuple[int, ...] | None:
    call = graph.call(expr, "relax.permute_dims")
    if call is None:
        return None
    rank = len(shape_of(call.args[0]))
    if call.attrs.axes is None:
        return tuple(reversed(range(rank)))
    return tuple(int(axis) % rank for axis in call.attrs.axes)


def _common_split(graph: Graph, bases: tuple[Any, Any, Any]) -> Any | None:
    """The tensor of which Q, K and V are thirds along the last axis; None when they are not."""
    pieces = [graph.value(base) for base in bases]
    if not all(isinstance(piece, relax.TupleGetItem) for piece in pieces):
        return None
    if [piece.index for piece in pieces] != [0, 1, 2]:
        return None
    if not all(piece.tuple_value.same_as(pieces[0].tuple_value) for piece in pieces):
        return None
    split = graph.call(pieces[0].tuple_value, "relax.split")
    if split is None or len(split.ty.fields) != 3:
        return None
    rank = len(shape_of(split.args[0]))
    widths = {shape_of(base)[-1] for base in bases}
    return split.args[0] if int(split.attrs.axis) % rank == rank - 1 and len(widths) == 1 else None


@dataclass
class _Projection:
    x: Any
    weight: np.ndarray
    bias: np.ndarray | None
    absorbed: list[Any]


def _projection(graph: Graph, base: Any) -> _Projection | None:
    """``x @ W`` or ``x @ W + b`` with constants."""
    bias, absorbed, product = None, [base], base
    addition = graph.call(base, "relax.add")
    if addition is not None:
        for arg, other in (addition.args, reversed(list(addition.args))):
            array = array_of(graph.value(arg))
            if array is not None and array.size == shape_of(base)[-1]:
                bias, product = array.reshape(-1), other
        if bias is None or graph.only_user(product) is None:
            return None
        absorbed.append(product)
    matmul = graph.call(product, "relax.matmul")
    if matmul is None:
        return None
    weight = array_of(graph.value(matmul.args[1]))
    if weight is None or weight.ndim != 2:
        return None
    return _Projection(matmul.args[0], weight, bias, absorbed)
