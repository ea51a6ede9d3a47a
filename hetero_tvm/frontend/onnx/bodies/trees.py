"""Ensembles of decision trees (ai.onnx.ml) in plain ONNX: all trees of a row go down one level at a time.

A leaf is a node that leads to itself.  After as many levels as the deepest tree has, every tree stands at its
leaf, whose weights are looked up and added.  Comparisons that have an order are all written as ``<=``, the
form in which ``relax_passes/fusions/forest.py`` knows them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.bodies.scores import labels_of, post_transformed, refuse
from hetero_tvm.frontend.onnx.graph.body import Body, as_text

_MODES = {
    "BRANCH_LEQ": "LessOrEqual", "BRANCH_LT": "Less", "BRANCH_GTE": "GreaterOrEqual", "BRANCH_GT": "Greater",
    "BRANCH_EQ": "Equal", "BRANCH_NEQ": "NotEqual",
}  # fmt: skip
_NUMBERED = [*_MODES, "MEMBER"]
"""Modes of TreeEnsemble by number."""
_DEEPEST = 256
"""Largest number of levels, since each is written out."""


@dataclass
class _Forest:
    """Nodes of all trees in one table; children are indices into it, leaves lead to themselves."""

    features: np.ndarray
    values: np.ndarray
    modes: list[str]
    yes: np.ndarray
    no: np.ndarray
    missing: np.ndarray
    roots: np.ndarray
    members: np.ndarray | None = None
    """Sets [nodes, longest] that nodes of mode MEMBER ask about, filled up with NaN."""

    def depth(self, b: Body) -> int:
        """Levels of the deepest tree."""
        level, count = np.unique(self.roots), 0
        while True:
            inner = level[(self.yes[level] != level) | (self.no[level] != level)]
            if not len(inner):
                return count
            level, count = np.unique(np.concatenate([self.yes[inner], self.no[inner]])), count + 1
            if count > _DEEPEST:
                raise refuse(b, f"trees of more than {_DEEPEST} levels")


def tree_ensemble_regressor(b: Body) -> None:
    """TreeEnsembleRegressor: rows [n, features] -> numbers [n, targets]."""
    forest, index = _forest(b)
    targets = int(b.attributes.get("n_targets", 1))
    leaves = _leaf_weights(b, forest, index, "target", targets)
    how = as_text(b.attributes.get("aggregate_function", "SUM"))
    scores = _aggregated(b, forest, _at_leaves(b, forest, leaves), how)
    base = _numbers(b, "base_values")
    if base is not None and len(base):
        scores = b.op("Add", scores, b.const(base.reshape(1, -1)))
    b.end(0, post_transformed(b, scores))


def tree_ensemble_classifier(b: Body) -> None:
    """TreeEnsembleClassifier: rows [n, features] -> labels [n], scores [n, classes]."""
    forest, index = _forest(b)
    labels = labels_of(b)
    ids, weights = b.attributes.get("class_ids", []), _numbers(b, "class_weights")
    leaves = _leaf_weights(b, forest, index, "class", len(labels))
    base = _numbers(b, "base_values")
    lone = len(set(ids)) == 1 and len(labels) == 2
    if not lone:
        scores = _aggregated(b, forest, _at_leaves(b, forest, leaves), "SUM")
        if base is not None and len(base):
            scores = b.op("Add", scores, b.const(base.reshape(1, -1)))
        winner = b.op("ArgMax", scores, axis=1, keepdims=0)
        b.end(0, b.op("Gather", b.const(labels, "int64"), winner))
        b.end(1, post_transformed(b, scores))
        return
    score = _aggregated(b, forest, _at_leaves(b, forest, leaves[:, [ids[0]]]), "SUM")
    if base is not None and len(base):
        score = b.op("Add", score, b.const(base[-1:].reshape(1, 1)))
    shares = weights is not None and bool((weights >= 0).all())
    above = b.op("Greater", score, b.const(0.5 if shares else 0.0))
    row = b.op("Reshape", b.op("Cast", above, to=TensorProto.INT64), b.const([-1], "int64"))
    b.end(0, b.op("Gather", b.const(labels, "int64"), row))
    how = as_text(b.attributes.get("post_transform", "NONE"))
    if shares:
        pair = [b.op("Sub", b.const(1.0), score), score]
    elif how == "LOGISTIC":
        pair = [b.op("Sigmoid", b.op("Neg", score)), b.op("Sigmoid", score)]
    else:
        pair = [b.op("Neg", score), score]
    b.end(1, b.op("Concat", *pair, axis=1))


def tree_ensemble(b: Body) -> None:
    """TreeEnsemble of ai.onnx.ml 5: nodes and leaves in tables of their own."""
    count = len(b.attributes["nodes_featureids"])
    leaves = len(b.attributes["leaf_targetids"])
    stands = np.arange(count + leaves)

    def side(name: str) -> np.ndarray:
        places = np.array(b.attributes[f"nodes_{name}nodeids"], np.int64)
        is_leaf = np.array(b.attributes[f"nodes_{name}leafs"], np.int64)
        return np.concatenate([np.where(is_leaf == 1, places + count, places), stands[count:]])

    extra = np.zeros(leaves)
    modes = np.frombuffer(_raw(b, "nodes_modes"), np.uint8)
    splits = np.asarray(_numbers(b, "nodes_splits"))
    tracks = b.attributes.get("nodes_missing_value_tracks_true", [0] * count)
    forest = _Forest(
        features=np.concatenate([np.array(b.attributes["nodes_featureids"]), extra]).astype(np.int64),
        values=np.concatenate([splits, extra.astype(splits.dtype)]),
        modes=[_NUMBERED[mode] for mode in modes] + ["LEAF"] * leaves,
        yes=side("true"),
        no=side("false"),
        missing=np.concatenate([np.array(tracks), extra]).astype(bool),
        roots=np.array(b.attributes["tree_roots"], np.int64),
        members=_members(b, modes, count + leaves),
    )
    weights = np.zeros((count + leaves, int(b.attributes["n_targets"])), splits.dtype)
    weights[count + np.arange(leaves), b.attributes["leaf_targetids"]] = _numbers(b, "leaf_weights")
    how = ["AVERAGE", "SUM", "MIN", "MAX"][int(b.attributes.get("aggregate_function", 1))]
    scores = _aggregated(b, forest, _at_leaves(b, forest, weights), how)
    number = int(b.attributes.get("post_transform", 0))
    b.attributes["post_transform"] = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"][number]
    b.end(0, post_transformed(b, scores))


def _members(b: Body, modes: np.ndarray, count: int) -> np.ndarray | None:
    """The sets of the nodes that have one, in their order in the file, which ends each by NaN."""
    values = _numbers(b, "membership_values")
    if values is None:
        return None
    ends = np.flatnonzero(np.isnan(values))
    sets = [part[~np.isnan(part)] for part in np.split(values, ends + 1)]
    table = np.full((count, max(map(len, sets))), np.nan, np.float32)
    for place, members in zip(np.flatnonzero(modes == _NUMBERED.index("MEMBER")), sets, strict=False):
        table[place, : len(members)] = members
    return table


def _raw(b: Body, name: str) -> bytes:
    from onnx import numpy_helper

    return numpy_helper.to_array(b.attributes[name]).astype(np.uint8).tobytes()


def _numbers(b: Body, name: str) -> np.ndarray | None:
    """A list of numbers, or its form as a tensor; None where there is neither."""
    from onnx import numpy_helper

    for key in (name, f"{name}_as_tensor"):
        value = b.attributes.get(key)
        if value is not None:
            return numpy_helper.to_array(value) if hasattr(value, "dims") else np.array(value, np.float32)
    return None


def _forest(b: Body) -> tuple[_Forest, dict[tuple[int, int], int]]:
    """Trees in the form of ai.onnx.ml 1 to 3, and places of (tree, node) in the table."""
    trees, nodes = b.attributes["nodes_treeids"], b.attributes["nodes_nodeids"]
    index = {pair: place for place, pair in enumerate(zip(trees, nodes, strict=True))}
    modes = [as_text(mode) for mode in b.attributes["nodes_modes"]]
    odd = set(modes) - {*_MODES, "LEAF"}
    if odd:
        raise refuse(b, f"nodes of mode {', '.join(sorted(odd))}")

    def side(name: str) -> np.ndarray:
        places = b.attributes[f"nodes_{name}nodeids"]
        rows = zip(trees, places, modes, strict=True)
        return np.array(
            [own if mode == "LEAF" else index[tree, to] for own, (tree, to, mode) in enumerate(rows)],
            np.int64,
        )

    roots: dict[int, int] = {}
    for place, tree in enumerate(trees):
        roots.setdefault(tree, place)
    tracks = b.attributes.get("nodes_missing_value_tracks_true", [0] * len(trees))
    forest = _Forest(
        features=np.array(b.attributes["nodes_featureids"], np.int64),
        values=np.asarray(_numbers(b, "nodes_values"), np.float32),
        modes=modes,
        yes=side("true"),
        no=side("false"),
        missing=np.array(tracks, bool),
        roots=np.array(list(roots.values()), np.int64),
    )
    return forest, index


def _leaf_weights(
    b: Body, forest: _Forest, index: dict[tuple[int, int], int], kind: str, count: int
) -> np.ndarray:
    """Weights [nodes, count] of the nodes, zero but for leaves."""
    weights = np.zeros((len(forest.features), count), np.float32)
    pairs = zip(b.attributes[f"{kind}_treeids"], b.attributes[f"{kind}_nodeids"], strict=True)
    places = [index[pair] for pair in pairs]
    np.add.at(weights, (places, b.attributes[f"{kind}_ids"]), _numbers(b, f"{kind}_weights"))
    return weights


def _at_leaves(b: Body, forest: _Forest, weights: np.ndarray) -> str:
    """Weights [n, trees, targets] of the leaves that rows end at."""
    x = b.input(0)
    shape = b.shape(x)
    if shape is not None and len(shape) != 2:
        raise refuse(b, "inputs that are no rows")
    wide = forest.values.dtype == np.float64
    x = b.op("Cast", x, to=TensorProto.DOUBLE if wide else TensorProto.FLOAT)
    depth = forest.depth(b)
    at = b.const(forest.roots, "int64")
    if not depth:
        rows = b.op("Concat", b.extent(x, 0), b.const([len(forest.roots)], "int64"), axis=0)
        at = b.op("Expand", at, rows)
    forest = _in_one_order(forest)
    inner = sorted({mode for mode in forest.modes if mode != "LEAF"})
    modes = np.array([inner.index(mode) if mode in inner else 0 for mode in forest.modes])
    tables = {
        name: b.const(array, dtype)
        for name, array, dtype in (
            ("feature", forest.features, "int64"), ("value", forest.values, str(forest.values.dtype)),
            ("yes", forest.yes, "int64"), ("no", forest.no, "int64"), ("mode", modes, "int64"),
            ("missing", forest.missing, "bool"),
        )
    }  # fmt: skip
    for level in range(depth):
        looked = {name: b.op("Gather", table, at) for name, table in tables.items()
                  if name not in ("mode", "missing")}  # fmt: skip
        seen = b.op("GatherElements" if level else "Gather", x, looked["feature"], axis=1)

        def holds(mode: str, seen: str = seen, at: str = at, value: str = looked["value"]) -> str:
            if mode != "MEMBER":
                return _compared(b, mode, seen, value)
            sets = b.op("Gather", b.const(forest.members), at)
            same = b.op("Equal", b.op("Unsqueeze", seen, b.const([-1], "int64")), sets)
            hits = b.reduce("ReduceMax", b.op("Cast", same, to=TensorProto.INT32), [2], 0, axes_as_input=18)
            return b.op("Cast", hits, to=TensorProto.BOOL)

        taken = holds(inner[0])
        for number, mode in enumerate(inner[1:], 1):
            chosen = b.op("Equal", b.op("Gather", tables["mode"], at), b.const(number, "int64"))
            taken = b.op("Where", chosen, holds(mode), taken)
        if forest.missing.any():
            gone = b.op("And", b.op("IsNaN", seen), b.op("Gather", tables["missing"], at))
            taken = b.op("Or", taken, gone)
        at = b.op("Where", taken, looked["yes"], looked["no"])
    return b.op("Gather", b.const(weights, str(weights.dtype)), at)


def _in_one_order(forest: _Forest) -> _Forest:
    """Nodes that ask for an order, as ``<=``: of the number below for ``<``, and of the other way."""
    modes = np.array(forest.modes)
    strict = np.isin(modes, ("BRANCH_LT", "BRANCH_GTE"))
    turned = np.isin(modes, ("BRANCH_GT", "BRANCH_GTE"))
    lowest = forest.values.dtype.type(-np.inf)
    below = np.where(forest.values == lowest, np.nan, np.nextafter(forest.values, lowest))
    return replace(
        forest,
        values=np.where(strict, below, forest.values).astype(forest.values.dtype),
        modes=[
            mode if mode in ("LEAF", "BRANCH_EQ", "BRANCH_NEQ", "MEMBER") else "BRANCH_LEQ" for mode in modes
        ],
        yes=np.where(turned, forest.no, forest.yes),
        no=np.where(turned, forest.yes, forest.no),
        missing=forest.missing ^ turned,
    )


def _compared(b: Body, mode: str, x: str, value: str) -> str:
    kind = _MODES[mode]
    return b.op("Not", b.op("Equal", x, value)) if kind == "NotEqual" else b.op(kind, x, value)


def _aggregated(b: Body, forest: _Forest, leaves: str, how: str) -> str:
    """Numbers [n, targets] of all trees together."""
    if how == "SUM":
        return b.reduce("ReduceSum", leaves, [1], 0, axes_as_input=13)
    if how not in ("AVERAGE", "MIN", "MAX"):
        raise UnsupportedOperatorError(f"Node {b.node.name!r} aggregates its trees by {how}.")
    if how == "AVERAGE":
        total = b.reduce("ReduceSum", leaves, [1], 0, axes_as_input=13)
        return b.op("Div", total, b.const(len(forest.roots), str(forest.values.dtype)))
    kind = {"MIN": "ReduceMin", "MAX": "ReduceMax"}[how]
    return b.reduce(kind, leaves, [1], 0, axes_as_input=18)
