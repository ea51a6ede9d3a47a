"""Attention written as matmul, softmax, matmul -> one fused operator.

Nothing depends on how an exporter spells it.  The scores are followed from the softmax back to the
product of queries and keys through whatever scales, masks and reshapes them (``scores.py``);
queries, keys and values through any views to tensors that the kernel can read where they lie
(``operands.py``); the result forward to where it lies in memory as the kernel writes it.
An operand that no kernel can read gets a transposition before, a result that is wanted otherwise one
behind: that costs less than scores in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.ops.attention import Attention, standard
from hetero_tvm.relax_passes.fusions.attention.masks import MASK_NAME, Step, mask_operand, with_masks
from hetero_tvm.relax_passes.fusions.attention.operands import (
    Candidate,
    Layout,
    Output,
    attention_of,
    candidates,
    distinct,
    same_base,
    solve,
)
from hetero_tvm.relax_passes.fusions.attention.scores import Scores, trace_scores
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, scalar_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule, check_float32
from hetero_tvm.relax_passes.rewriting.views import below


@dataclass
class _Found:
    op: Attention
    layout: Layout
    scores: Scores
    shapes: list[tuple[int, ...]]
    """Shapes of the scores from the first product to the second."""
    masks: list[Step]
    absorbed: list[Var]


class FuseAttention(Rule):
    """Multi-head attention around a softmax."""

    name = "attention"
    anchors = ("relax.nn.softmax",)

    def match(self, graph: Graph, var: Var) -> _Found | None:
        softmax = graph.value(var)
        shape = shape_of(var)
        if len(shape) < 2 or int(softmax.attrs.axis) % len(shape) != len(shape) - 1:
            return None
        uses = _second_product(graph, var)
        if uses is None:
            return None
        scores = trace_scores(graph, softmax.args[0])
        if scores is None:
            return None
        if isinstance(uses, Miss):
            raise uses
        check_float32(var)
        guard, weights, between, product = uses
        if guard is not None and guard.mask is not None:
            if not any(mask.expr.same_as(guard.mask) and mask.hidden is None for mask in scores.masks):
                raise Miss("the weights are zeroed by another mask than that of the scores")
        values = graph.value(product).args[1]
        if not graph.value(product).args[0].same_as(weights):
            raise Miss("the weights are the right operand of the second matmul")
        first = graph.value(scores.product)
        if 0 in (*shape_of(scores.product), *shape_of(product), *shape_of(first.args[0])):
            raise Miss("an extent is zero")
        if min(len(shape_of(first.args[0])), len(shape_of(first.args[1])), len(shape_of(values))) < 2:
            raise Miss("an operand of the products is a vector")
        # the scores' shapes in the order of computation: from the first product to the second
        shapes = [*reversed(scores.shapes), *(shape_of(v) for v in between), shape_of(product)]
        q_len, kv_len = shape_of(scores.product)[-2:]
        dim, value_dim = shape_of(first.args[0])[-1], shape_of(product)[-1]
        if any(s[-2:] not in ((q_len, kv_len), (q_len, value_dim)) for s in shapes):
            raise Miss("a mask broadcasts the scores over queries or keys")
        queries = candidates(graph, first.args[0], shapes, swapped=False, scaled=True)
        layout = solve(
            graph,
            (
                queries[-1:] if scores.row_factors else queries,  # factors multiply the queries themselves
                candidates(graph, first.args[1], shapes, swapped=True, scaled=True),
                candidates(graph, values, shapes[-1:], swapped=False, scaled=False),
            ),
            product,
            q_len,
            value_dim,
        )
        if scores.row_factors:
            _check_row_factors(layout, first.args[0], scores.row_factors)
        op = attention_of(layout, q_len, kv_len, dim, value_dim, scores.scale)
        op = replace(op, zero_masked=guard is not None and not guard.idle, softcap=scores.softcap)
        op, masks = with_masks(graph, op, scores, shapes)
        hides = op.causal or op.window
        if not op.mask and (op.q_len <= op.kv_len or not hides):
            op = replace(op, zero_masked=False)  # every query sees a key
        if op.zero_masked and guard is not None and guard.mask is not None and len(scores.masks) == 1:
            op = replace(op, zero_by_mask=scores.masks[0].factor > 0.0)
        if op.mask and all(mask.hidden is not None for mask in scores.masks):
            op = replace(op, replaced=True)
        absorbed = [
            *(v for c in layout.chosen for v in c.place.skipped),
            *reversed(scores.absorbed),
            *between,
            product,
            *layout.output.passed,
        ]
        return _Found(standard(op), layout, scores, shapes, masks, absorbed)

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        op, output = found.op, found.layout.output
        earlier = [v for v in graph.bindings() if MASK_NAME in v.name]
        operands = []
        for index, (candidate, shape) in enumerate(zip(distinct(found.layout), op.shapes, strict=True)):
            factors = [] if index else found.scores.row_factors
            operands.append(_operand(graph, candidate, shape, output.top, factors))
        if op.mask:
            operands.append(
                mask_operand(graph, op, found.scores, found.shapes, found.masks, output.top, earlier)
            )
        _emit(graph, op, operands, output, found.absorbed)


def _check_row_factors(layout: Layout, queries: Expr, factors: list[Expr]) -> None:
    shape = shape_of(queries)
    if any(len(shape_of(f)) > len(shape) or not _repeats_to(shape_of(f), shape) for f in factors):
        raise Miss("the scores are multiplied by a tensor that varies where the queries do not")
    if any(same_base(layout.chosen[0], other) for other in layout.chosen[1:]):
        raise Miss("the scores are multiplied by a tensor, and the queries are keys or values as well")


def _repeats_to(factor: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    behind = shape[len(shape) - len(factor) :]
    return all(extent in (1, wanted) for extent, wanted in zip(factor, behind, strict=True))


@dataclass
class _Guard:
    """A guard that makes the weights of a query that sees no key zero.

    Parameters
    ----------
    bindings : of the guard, the guarded weights last.
    mask : the mask by which the guard knows such queries; None where it looks for NaN.
    idle : whether there are no such queries.
    """

    bindings: list[Var]
    mask: Expr | None = None
    idle: bool = False


def _second_product(graph: Graph, softmax: Var) -> Miss | tuple[_Guard | None, Var, list[Var], Var] | None:
    """Guard, weights, bindings from the softmax to them, product of weights and values.

    None when no product follows at all; a miss when the weights are used in another way as well.
    """
    weights, between = softmax, [softmax]
    guard = _nan_guard(graph, softmax) or _mask_guard(graph, softmax)
    if guard is not None:
        weights = guard.bindings[-1]
        between += guard.bindings
    while (user := graph.only_user(weights)) is not None and below(graph, user) is not None:
        if shape_of(user)[-2:] != shape_of(weights)[-2:]:
            break
        weights = user
        between.append(user)
    user = graph.only_user(weights)
    if user is not None and graph.op_name(user) == "relax.matmul":
        return guard, weights, between, user
    if not _product_follows(graph, weights):
        return None
    if user is None:
        return Miss(f"the weights are not used by one matmul alone, but by {_uses(graph, weights)}")
    return Miss(f"{graph.op_name(user)} ({graph.node(user)}) stands between the weights and the product")


def _uses(graph: Graph, var: Var) -> str:
    """Operators and nodes that use ``var``, and whether it is a result, in words."""
    users = graph.users(var)
    calls = [user for user in users if user is not None and graph.op_name(user)]
    named = [f"{graph.op_name(user)} ({graph.node(user)})" for user in calls]
    return " and ".join([*named, *(["a result of the model"] if len(named) < len(users) else [])])


def _product_follows(graph: Graph, var: Var, depth: int = 3) -> bool:
    for user in graph.users(var) if depth else ():
        if user is not None and (
            graph.op_name(user) == "relax.matmul" or _product_follows(graph, user, depth - 1)
        ):
            return True
    return False


def _mask_guard(graph: Graph, weights: Var) -> _Guard | None:
    """``where(max(mask) == -inf, 0, w)`` around the weights w, as ONNX defines Attention."""
    choice = graph.only_user(weights)
    call = graph.call(choice, "relax.where") if choice is not None else None
    if call is None or not call.args[2].same_as(weights) or scalar_of(graph.value(call.args[1])) != 0.0:
        return None
    condition = array_of(graph.value(call.args[0]))
    if condition is not None:
        return None if condition.any() else _Guard([choice], idle=True)
    test = graph.call(call.args[0], "relax.equal")
    if test is None or scalar_of(graph.value(test.args[1])) != -np.inf:
        return None
    largest = graph.call(test.args[0], "relax.max")
    if largest is None or not largest.attrs.keepdims:
        return None
    mask = largest.args[0]
    axes = [int(axis) % len(shape_of(mask)) for axis in largest.attrs.axis or ()]
    return _Guard([choice], mask) if axes == [len(shape_of(mask)) - 1] else None


def _nan_guard(graph: Graph, weights: Var) -> _Guard | None:
    """``where(isnan(w), 0, w)`` around the weights w; None when there is no such guard."""
    users = graph.users(weights)
    if len(users) != 2 or None in users:
        return None
    test = next((user for user in users if graph.op_name(user) == "relax.isnan"), None)
    choice = next((user for user in users if graph.op_name(user) == "relax.where"), None)
    if test is None or choice is None or graph.only_user(test) is None:
        return None
    condition, replaced, kept = graph.value(choice).args
    zero = scalar_of(graph.value(replaced)) == 0.0
    return _Guard([test, choice]) if zero and condition.same_as(test) and kept.same_as(weights) else None


# ---- rewriting -----------------------------------------------------------------------------


def _operand(
    graph: Graph, candidate: Candidate, shape: tuple[int, ...], top: Var, factors: list[Expr]
) -> Expr:
    """The tensor that the kernel reads, under the contract's shape."""
    expr, name = candidate.place.base, "#operand"
    for factor in factors:
        expr = graph.insert_before(top, relax.op.multiply(expr, factor), top.name + name)
    if candidate.transposed:
        rank = len(shape_of(expr))
        axes = [*range(rank - 2), rank - 1, rank - 2]
        expr = graph.insert_before(top, relax.op.permute_dims(expr, axes), top.name + name)
    if shape_of(expr) != shape:
        if (array := array_of(graph.value(expr))) is not None:  # learned queries
            return relax.const(array.reshape(shape))
        inner = graph.call(expr, "relax.reshape")
        if inner is not None and shape_of(inner.args[0]) == shape:
            return inner.args[0]
        expr = graph.insert_before(top, relax.op.reshape(expr, shape), top.name + name)
    return expr


def _emit(graph: Graph, op: Attention, operands: list[Expr], output: Output, absorbed: list[Var]) -> None:
    """Call the operator, and bring its result into the shape and order of the binding it replaces."""
    function, shape = graph.add_function(op.workload(), op.label), op.output.shape
    call = relax.call_tir(function, operands, out_ty=relax.TensorType(shape, "float32"))
    wanted = shape_of(output.top)
    if shape != wanted or output.transposed:
        result = graph.insert_before(output.top, call, output.top.name + "#attention", absorbed)
        if output.transposed:
            split = relax.op.reshape(result, (op.batch, op.q_len, op.heads, op.values))
            split = graph.insert_before(output.top, split, output.top.name + "#heads")
            result = graph.insert_before(
                output.top, relax.op.permute_dims(split, [0, 2, 1, 3]), output.top.name + "#order"
            )
        call = relax.op.reshape(result, wanted)
    graph.replace(output.top, call, absorbs=absorbed)
