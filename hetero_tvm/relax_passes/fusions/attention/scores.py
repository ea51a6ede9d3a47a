"""The scores of an attention: from the softmax's input back to the product of queries and keys."""

from __future__ import annotations

from dataclasses import dataclass, field

from hetero_tvm.host.tvm import Call, Expr, Var, tvm
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, scalar_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss
from hetero_tvm.relax_passes.rewriting.views import below, times_number

MASKED = -1e4
"""Mask value at or below which a key is hidden: its weight is 0 in float32."""

_WIDE_BOUND = 1e30
"""Bound on scores from which on it changes no float32 score: it keeps float16 from overflowing."""


@dataclass
class Mask:
    """One mask: addends to the scores, or the places in which they are replaced.

    ``expr`` is added after multiplication with ``factor``; when ``hidden`` is a number, scores are that
    number where the boolean ``expr`` is ``hides`` (and ``factor`` is in it already).  ``step`` is the
    index of the shape in ``Scores.shapes`` to which ``expr`` broadcasts.
    """

    expr: Expr
    step: int
    factor: float = 1.0
    hidden: float | None = None
    hides: bool = False


@dataclass
class Scores:
    """Everything between the softmax and the first product.

    ``shapes`` are those of the softmax's input, of what it is computed from, and so on to the product.
    """

    product: Var | None = None
    scale: float = 1.0
    softcap: float = 0.0
    masks: list[Mask] = field(default_factory=list)
    row_factors: list[Expr] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    absorbed: list[Var] = field(default_factory=list)


def trace_scores(graph: Graph, expr: Expr) -> Scores | None:
    """Follow the scores down to the first product; None when there is no product below.

    Raises
    ------
    Miss : there is one, but an operator between has no place in a fused attention.
    """
    if distance(graph, expr) is None:
        if _reaches_product(graph, expr):
            raise Miss(f"{_first_strange(graph, expr)} stands between the first product and the softmax")
        return None
    found = Scores()
    factor = 1.0
    while True:
        found.shapes.append(shape_of(expr))
        found.absorbed.append(expr)
        name = graph.op_name(expr)
        call = graph.value(expr)
        if name == "relax.matmul":
            found.product = expr
            found.scale = factor * found.softcap if found.softcap else factor
            return found
        if name in ("relax.add", "relax.subtract"):
            expr = _addition(graph, call, found, factor)
        elif name == "relax.where":
            expr = _replacement(graph, call, found, factor)
        elif name == "relax.tanh":
            if found.softcap:
                raise Miss("the scores go through two soft caps")
            if found.row_factors:
                raise Miss("the soft cap is multiplied by a tensor")
            found.softcap, factor = factor, 1.0
            expr = call.args[0]
        elif (times := times_number(graph, expr)) is not None:
            expr, number = times
            factor *= number
        elif name == "relax.multiply":
            expr = _row_factor(graph, call, found)
        elif (step := below(graph, expr)) is not None:
            if shape_of(step[0])[-2:] != shape_of(expr)[-2:]:
                raise Miss("the scores are reshaped across queries or keys")
            expr = step[0]
        else:  # a wide bound
            expr = call.args[0]


def _addition(graph: Graph, call: Call, found: Scores, factor: float) -> Expr:
    left, right = call.args
    subtracted = call.op.name == "relax.subtract"
    to_left, to_right = distance(graph, left), None if subtracted else distance(graph, right)
    scores, mask = left, right
    if to_left is None or (to_right is not None and to_right < to_left):
        scores, mask = right, left
    if found.softcap:
        raise Miss("a mask is added before the soft cap")
    if found.row_factors:
        raise Miss("masked scores are multiplied by a tensor")
    found.masks.append(Mask(mask, len(found.shapes) - 1, -factor if subtracted else factor))
    return scores


def _replacement(graph: Graph, call: Call, found: Scores, factor: float) -> Expr:
    condition, one, other = call.args
    hides = distance(graph, other) is not None
    scores, value = (other, one) if hides else (one, other)
    number = uniform(graph, value)
    if number is None or not number * factor <= MASKED:
        raise Miss("where(...) does not replace hidden scores by a large negative constant")
    if found.softcap:
        raise Miss("scores are hidden before the soft cap")
    if found.row_factors:
        raise Miss("masked scores are multiplied by a tensor")
    found.masks.append(Mask(condition, len(found.shapes) - 1, factor, number * factor, hides))
    return scores


def _row_factor(graph: Graph, call: Call, found: Scores) -> Expr:
    """The scores of a product with a tensor that is equal along the keys: it can multiply the queries."""
    scores, factors = call.args
    if distance(graph, scores) is None:
        scores, factors = factors, scores
    if not shape_of(factors) or shape_of(factors)[-1] != 1:
        raise Miss(f"the scores are multiplied by a tensor of shape {shape_of(factors)}")
    if found.softcap:
        raise Miss("the scores under a soft cap are multiplied by a tensor")
    if shape_of(scores) != _result_shape(call):
        raise Miss(f"a factor of shape {shape_of(factors)} broadcasts the scores")
    found.row_factors.append(factors)
    return scores


def _result_shape(call: Call) -> tuple[int, ...]:
    return tuple(int(extent) for extent in call.ty.shape)


def uniform(graph: Graph, expr: Expr) -> float | None:
    """Value that all elements of a constant tensor have; None when they differ, or it is not constant."""
    array = array_of(graph.value(expr))
    if array is None or not array.size:
        return None
    first = array.reshape(-1)[0]
    return float(first) if array.size == 1 or (array == first).all() else None


def distance(graph: Graph, expr: Expr, depth: int = 16) -> int | None:
    """Number of operators between ``expr`` and the product of queries and keys that it is a score of."""
    if not depth:
        return None
    name, call = graph.op_name(expr), graph.value(expr)
    if name == "relax.matmul":
        return 0 if _is_score(graph, call) else None
    if name in ("relax.add", "relax.multiply"):
        candidates = list(call.args)
    elif name in ("relax.subtract", "relax.divide", "relax.tanh"):
        candidates = [call.args[0]]
        if name == "relax.divide" and scalar_of(graph.value(call.args[1])) is None:
            return None
    elif name == "relax.where":
        candidates = list(call.args[1:])
    elif _is_wide_bound(graph, name, call):
        candidates = [call.args[0]]
    elif (step := below(graph, expr)) is not None and name != "relax.take":
        candidates = [step[0]]
    else:
        return None
    found = [d for d in (distance(graph, c, depth - 1) for c in candidates) if d is not None]
    return min(found) + 1 if found else None


def _is_score(graph: Graph, product: Call) -> bool:
    """Whether a product is one of queries and keys.

    Keys are computed; queries may be learned (DETR, the pooling head of SigLIP), and then have a batch or
    heads: a constant matrix is a projection's weight.
    """
    queries, keys = (array_of(graph.value(arg)) for arg in product.args)
    return keys is None and (queries is None or queries.ndim > 2)


def _is_wide_bound(graph: Graph, name: str | None, call: Call) -> bool:
    if name == "relax.clip":
        low, high = (float(bound.value) for bound in call.args[1:])
        return low <= -_WIDE_BOUND and high >= _WIDE_BOUND
    if name not in ("relax.maximum", "relax.minimum"):
        return False
    bound = scalar_of(graph.value(call.args[1]))
    return bound is not None and (bound <= -_WIDE_BOUND if name == "relax.maximum" else bound >= _WIDE_BOUND)


def _reaches_product(graph: Graph, expr: Expr, depth: int = 8) -> bool:
    call = graph.value(expr)
    if not depth or not isinstance(call, tvm.ir.Call):
        return False
    if graph.op_name(expr) == "relax.matmul":
        return _is_score(graph, call)
    return any(_reaches_product(graph, arg, depth - 1) for arg in call.args if hasattr(arg, "name"))


def _first_strange(graph: Graph, expr: Expr) -> str:
    """The operator at which the way down to the product ends."""
    while graph.op_name(expr) in ("relax.add", "relax.multiply", "relax.divide", "relax.where"):
        deeper = [arg for arg in graph.value(expr).args if _reaches_product(graph, arg)]
        if not deeper:
            break
        expr = deeper[0]
    return f"{graph.op_name(expr)} ({graph.node(expr)})" if hasattr(expr, "name") else "a constant"
