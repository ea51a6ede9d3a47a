"""The account of anchors: every fusable construct of the imported graph, fused or with a reason.

An anchor is the operator by which a construct is recognised: a softmax (attention), an erf or the
tanh of a cubic (GELU), the mean of a square (norms), a concatenation with a negated half (rotary
embedding).  Each must end inside a fused operator or in the list of misses.  The account is taken on
the graph as imported, by code that shares nothing with the rules, so a construct that a rule
overlooks shows up as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, scalar_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Report

FAMILIES: dict[str, tuple[str, ...]] = {
    "softmax": ("attention",),
    "gelu": ("gelu",),
    "norm": ("layer_norm", "rms_norm", "group_norm"),
    "rotate_half": ("rope",),
}
"""Kind of anchor -> the rules that may take it in."""

# fmt: off
_BETWEEN_PRODUCT_AND_SOFTMAX = (
    "relax.reshape", "relax.permute_dims", "relax.expand_dims", "relax.squeeze", "relax.astype",
    "relax.broadcast_to", "relax.where", "relax.multiply", "relax.divide", "relax.add", "relax.subtract",
    "relax.nn.dropout", "relax.maximum", "relax.minimum", "relax.clip", "relax.tanh", "relax.strided_slice",
    "relax.concat", "relax.nn.pad", "relax.isnan", "relax.flatten",
)
# fmt: on
"""Operators that may stand between a softmax and the products of its attention."""


@dataclass(frozen=True)
class Anchor:
    """A construct: its kind, its node, the nodes by which a miss may name it, the reason if it is unfused."""

    kind: str
    node: str
    near: frozenset[str]
    reason: str


def anchors_of(graph: Graph) -> list[Anchor]:
    """Anchors of an imported graph, in its order."""
    found = []
    for var in graph.bindings():
        for kind, look in _REASONS_BY_KIND.items():
            reason = look(graph, var)
            if reason is not None:
                found.append(Anchor(kind, graph.node(var), frozenset(_around(graph, var)), reason))
    return found


def close(anchors: Iterable[Anchor], report: Report) -> None:
    """Settle the account in ``report``: every anchor is fused, or has a miss that gives the reason.

    A miss of a construct that another rule of its family fused is dropped: it is none.
    """
    inside: dict[str, set[str]] = {kind: set() for kind in FAMILIES}
    for kind, rules in FAMILIES.items():
        for fused in report.fused:
            if fused.rule in rules:
                inside[kind].update(fused.nodes)
    family = {rule: kind for kind, rules in FAMILIES.items() for rule in rules}
    report.misses = [
        miss
        for miss in report.misses
        if miss["rule"] not in family or miss["node"] not in inside[family[miss["rule"]]]
    ]
    for anchor in anchors:
        rules = FAMILIES[anchor.kind]
        fused, all_ = report.anchors.get(anchor.kind, (0, 0))
        is_fused = anchor.node in inside[anchor.kind]
        report.anchors[anchor.kind] = (fused + is_fused, all_ + 1)
        told = any(miss["rule"] in rules and miss["node"] in anchor.near for miss in report.misses)
        if not is_fused and not told:
            report.misses.append({"rule": rules[0], "node": anchor.node, "reason": anchor.reason})


def _around(graph: Graph, var: Var, steps: int = 5) -> set[str]:
    """Names of the node and of those that follow within a few steps: a rule may anchor at one of them."""
    names, level = {graph.node(var)}, [var]
    for _ in range(steps):
        level = [user for v in level for user in graph.users(v) if user is not None]
        names.update(graph.node(user) for user in level)
    return names


def _softmax(graph: Graph, var: Var) -> str | None:
    if graph.op_name(var) != "relax.nn.softmax":
        return None
    before = _reaches(graph, graph.value(var).args[0], lambda v: _operands(graph, v))
    after = any(_reaches(graph, u, graph.users) for u in graph.users(var) if u is not None)
    if before and after:
        return "no attention pattern fits: it lies between two products"
    side = "the input side only" if before else "the output side only" if after else "neither side"
    return f"a softmax of its own: a matrix product is found on {side}"


def _reaches(graph: Graph, start: Expr, onward: Callable[[Var], list[Var | None]]) -> bool:
    """Whether a matrix product is reached through operators that attention may have in between."""
    pending, seen = [start], set()
    while pending:
        var = pending.pop()
        if var is None or var in seen:
            continue
        seen.add(var)
        name = graph.op_name(var)
        if name in ("relax.matmul", "relax.einsum"):
            return True
        if name in _BETWEEN_PRODUCT_AND_SOFTMAX:
            pending += onward(var)
    return False


def _operands(graph: Graph, var: Var) -> list[Var]:
    fields = [f for arg in graph.value(var).args for f in getattr(graph.value(arg), "fields", [arg])]
    return [field for field in fields if isinstance(field, relax.Var)]


def _gelu(graph: Graph, var: Var) -> str | None:
    name = graph.op_name(var)
    if name in ("relax.nn.gelu", "relax.nn.gelu_tanh"):
        return "an activation operator that no rule took"
    if name == "relax.erf":
        return "erf stands in no GELU: x / 2 * (1 + erf(x / sqrt 2))"
    if name == "relax.tanh" and _has_scalar(graph, graph.value(var).args[0], 0.044715):
        return "tanh of a cubic stands in no GELU: x / 2 * (1 + tanh(...))"
    return None


def _has_scalar(graph: Graph, expr: Expr, wanted: float, depth: int = 4) -> bool:
    call = graph.call(expr, "relax.multiply", "relax.add")
    if call is None or depth == 0:
        return False
    for arg in call.args:
        value = scalar_of(graph.value(arg))
        if value is not None and math.isclose(value, wanted, rel_tol=1e-3):
            return True
        if value is None and _has_scalar(graph, arg, wanted, depth - 1):
            return True
    return False


def _norm(graph: Graph, var: Var) -> str | None:
    name = graph.op_name(var)
    if name in ("relax.nn.layer_norm", "relax.nn.rms_norm", "relax.nn.group_norm", "relax.nn.instance_norm"):
        return "a norm operator that no rule took"
    if name == "relax.variance":
        return "a variance that stands in no norm"
    if name != "relax.mean":
        return None
    squared = graph.call(graph.value(var).args[0], "relax.power", "relax.square", "relax.multiply")
    if squared is None:
        return None
    if squared.op.name == "relax.power" and scalar_of(graph.value(squared.args[1])) != 2.0:
        return None
    if squared.op.name == "relax.multiply" and not squared.args[0].same_as(squared.args[1]):
        return None
    return "the mean of a square stands in no norm over the last axis"


def _rotate_half(graph: Graph, var: Var) -> str | None:
    if graph.op_name(var) != "relax.concat":
        return None
    fields = graph.value(graph.value(var).args[0])
    fields = list(fields.fields) if isinstance(fields, relax.Tuple) else []
    if len(fields) != 2 or shape_of(fields[0]) != shape_of(fields[1]):
        return None
    negated = [graph.op_name(_unwrapped(graph, field)) == "relax.negative" for field in fields]
    return "a rotated half stands in no rotary embedding" if sum(negated) == 1 else None


def _unwrapped(graph: Graph, expr: Expr) -> Expr:
    while (call := graph.call(expr, "relax.expand_dims", "relax.reshape")) is not None:
        expr = call.args[0]
    return expr


_REASONS_BY_KIND: dict[str, Callable[[Graph, Var], str | None]] = {
    "softmax": _softmax,
    "gelu": _gelu,
    "norm": _norm,
    "rotate_half": _rotate_half,
}
"""Kind of anchor -> the reason that stands if it is not fused; None for bindings that are no such anchor."""
