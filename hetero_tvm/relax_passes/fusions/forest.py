"""Levels of lookups in the tables of decision trees -> ``ops.Forest``.

The import writes an ensemble out in plain operators, one level of all trees after another: every row looks
up where it stands, compares one of its features, and goes on (``frontend/onnx/bodies/trees.py``).  From the
sum over the trees the rule walks back over the levels to the first one, at the roots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.loops.forest import BOUND, CHILD, FEATURE, WORDS, Forest
from hetero_tvm.relax_passes.rewriting.from_end import counted_from_end
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule

_MOST_NODES = 1 << 24
"""Nodes from which on they are not numbered anew: leaves that many nodes share are several."""


class _Tables(NamedTuple):
    """Columns of nodes: feature, bound, where to go on for yes and for no, whether NaN is a yes."""

    feature: np.ndarray
    bound: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    missing: np.ndarray | None

    def like(self, other: _Tables) -> bool:
        """Whether all columns are the same."""
        return all(
            a is b
            or (a is not None and b is not None and np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
            for a, b in zip(self, other, strict=True)
        )


@dataclass
class _Walk:
    """Terms of a sum over trees: the rows, the roots and other nodes, the leaves' weights."""

    x: Expr
    roots: _Tables
    nodes: _Tables | None
    weights: np.ndarray
    absorbed: list[Var]


class FuseForest(Rule):
    """Ensembles of decision trees as one operator."""

    name = "forest"
    anchors = ("relax.sum",)

    def __init__(self, claims: Callable[[FusedOp], bool]):
        self._claims = claims

    def match(self, graph: Graph, var: Var) -> tuple[Forest, Expr, list[np.ndarray], list[Var]] | None:
        call = graph.value(var)
        axes = None if call.attrs.axis is None else [int(axis) for axis in call.attrs.axis]
        if axes != [1] or bool(call.attrs.keepdims) or (walk := _walk(graph, call.args[0])) is None:
            return None
        shape = shape_of(walk.x)
        features = [t.feature for t in (walk.roots, walk.nodes) if t is not None]
        if len(shape) != 2 or dtype_of(walk.x) != "float32":
            return None
        if min(f.min() for f in features) < 0 or max(f.max() for f in features) >= shape[1]:
            return None  # the lookup says it, when it runs
        nodes, steps, weights = _numbered(walk)
        missing = any(
            t is not None and t.missing is not None and t.missing.any() for t in (walk.roots, walk.nodes)
        )
        if missing:
            nodes[:, FEATURE] = nodes[:, FEATURE] * 2 + nodes[:, -1]
        nodes[:, -1] = 0
        op = Forest(*shape, len(steps), *weights.shape, int(steps.max()), missing)
        return (op, walk.x, [nodes, steps, weights], walk.absorbed) if self._claims(op) else None

    def rewrite(
        self, graph: Graph, var: Var, found: tuple[Forest, Expr, list[np.ndarray], list[Var]]
    ) -> None:
        op, x, arrays, absorbed = found
        operands = [x, *(relax.const(np.ascontiguousarray(array)) for array in arrays)]
        call = graph.call_function(op.workload(), op.label, operands, var)
        graph.replace(var, call, absorbs=absorbed)


def _walk(graph: Graph, leaves: Expr) -> _Walk | None:
    found = _lookup(graph, leaves)
    if found is None or found[0].ndim != 2 or found[0].dtype != np.float32:
        return None
    weights, at = found
    walk: _Walk | None = None
    nodes: _Tables | None = None
    absorbed = [leaves] if isinstance(leaves, Var) else []
    while walk is None:
        level = _level(graph, at)
        if level is None:
            return None
        x, tables, at_before, seen = level
        absorbed += seen
        if at_before is None:
            walk = _Walk(x, tables, nodes, weights, absorbed)
        elif nodes is not None and not nodes.like(tables):
            return None
        else:
            nodes, at = tables, at_before
    return walk


def _level(graph: Graph, at: Expr) -> tuple[Expr, _Tables, Expr | None, list[Var]] | None:
    """Rows, tables, and where rows stood before a level; None for the latter at the roots, whose tables are
    those of the roots alone."""
    where = graph.call(at, "relax.where")
    if where is None:
        return None
    taken, yes, no = where.args
    missing: Expr | None = None
    absorbed = [v for v in (at, taken, yes, no) if isinstance(v, Var)]
    compared = graph.call(taken, "relax.less_equal")
    if compared is None:
        either = graph.call(taken, "relax.logical_or")
        compared = None if either is None else graph.call(either.args[0], "relax.less_equal")
        both = None if either is None else graph.call(either.args[1], "relax.logical_and")
        lost = None if both is None else graph.call(both.args[0], "relax.isnan")
        if compared is None or lost is None or not lost.args[0].same_as(compared.args[0]):
            return None
        missing = both.args[1]
        absorbed += [v for v in (*either.args, *both.args) if isinstance(v, Var)]
    seen, bound = compared.args
    columns = {"bound": bound, "yes": yes, "no": no, "missing": missing}
    take = graph.call(seen, "relax.take")
    if take is not None:  # the roots: of every row the same features
        arrays = {name: None if c is None else array_of(graph.value(c)) for name, c in columns.items()}
        feature = array_of(graph.value(take.args[1]))
        if feature is None or feature.ndim != 1 or take.attrs.axis is None or int(take.attrs.axis) != 1:
            return None
        if any(array is None for name, array in arrays.items() if columns[name] is not None):
            return None
        arrays = {n: None if a is None else np.broadcast_to(a, feature.shape) for n, a in arrays.items()}
        return take.args[0], _Tables(feature, **arrays), None, [*absorbed, *_variables(seen)]
    elements = graph.call(seen, "relax.gather_elements")
    if elements is None or int(elements.attrs.axis) != 1:
        return None
    given = counted_from_end(graph, elements.args[1])
    columns["feature"] = elements.args[1] if given is None else given
    looked = {name: _lookup(graph, c) for name, c in columns.items() if c is not None}
    if any(one is None for one in looked.values()):
        return None
    before = looked["yes"][1]
    if not all(one[1].same_as(before) for one in looked.values()):
        return None
    absorbed += _variables(seen, elements.args[1], *columns.values())
    tables = {"missing": None, **{name: one[0] for name, one in looked.items()}}
    return elements.args[0], _Tables(**tables), before, absorbed


def _variables(*expressions: Expr | None) -> list[Var]:
    return [e for e in expressions if isinstance(e, Var)]


def _lookup(graph: Graph, expr: Expr) -> tuple[np.ndarray, Expr] | None:
    """The constant table and the places of a lookup of its rows."""
    take = graph.call(expr, "relax.take")
    if take is None or take.attrs.axis is None or int(take.attrs.axis) != 0:
        return None
    table = array_of(graph.value(take.args[0]))
    return None if table is None else (table, take.args[1])


def _numbered(walk: _Walk) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Words of the nodes (in the last one, whether NaN is a yes), steps of the trees, weights of the nodes.

    The roots are the first nodes, those of a level follow those of the one above, and the two that a node
    leads to are neighbours.
    """
    columns = [np.concatenate(parts) for parts in zip(*map(_columns, _both(walk)), strict=True)]
    feature, bound, yes, no, missing = columns
    count = len(feature) - len(walk.roots.feature)
    trees = np.arange(len(walk.roots.feature))
    level, steps = trees + count, np.zeros(len(trees), np.int32)
    made, chosen, total, depth = [], [], len(level), 0
    while len(level):
        inner = (yes[level] != level) | (no[level] != level)
        words = np.zeros((len(level), WORDS), np.int32)
        words[:, FEATURE] = np.where(inner, feature[level], 0)
        words[:, BOUND] = np.where(inner, bound[level], np.float32(np.nan)).astype(np.float32).view(np.int32)
        own = total - len(level) + np.arange(len(level))
        words[:, CHILD] = np.where(inner, total + 2 * (np.cumsum(inner) - 1), own)
        words[:, -1] = inner & missing[level]
        made.append(words)
        chosen.append(level)
        depth += 1
        steps[trees[inner]] = depth
        level = np.stack([no[level[inner]], yes[level[inner]]], 1).reshape(-1)
        trees = np.repeat(trees[inner], 2)
        total += len(level)
        if total > _MOST_NODES:
            raise Miss(f"more than {_MOST_NODES} nodes, where each has one parent")
    weights = np.concatenate([walk.weights, np.zeros((len(steps), walk.weights.shape[1]), np.float32)])
    return np.concatenate(made), steps, weights[np.concatenate(chosen)]


def _both(walk: _Walk) -> tuple[_Tables, _Tables]:
    """The nodes, and the roots behind them; of trees of one level the nodes are leaves."""
    if walk.nodes is not None:
        return walk.nodes, walk.roots
    stands = np.arange(len(walk.weights))
    nothing = np.zeros(len(stands))
    return _Tables(nothing.astype(np.int64), nothing.astype(np.float32), stands, stands, None), walk.roots


def _columns(tables: _Tables) -> list[np.ndarray]:
    missing = np.zeros(len(tables.feature), bool) if tables.missing is None else tables.missing
    return [tables.feature, tables.bound, tables.yes, tables.no, missing]
