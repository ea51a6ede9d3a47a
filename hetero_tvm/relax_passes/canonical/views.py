"""Chains of reshapes, of transposes and of casts become one, or none."""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule
from hetero_tvm.relax_passes.rewriting.views import RESHAPES, order_of


class CancelReshapes(Rule):
    """Two views in a row that end in the first one's shape -> the tensor itself."""

    name = "cancel_reshapes"
    counted = False
    anchors = RESHAPES

    def match(self, graph: Graph, var: Var) -> Var | None:
        inner = graph.call(graph.value(var).args[0], *RESHAPES)
        if inner is None or not isinstance(inner.args[0], relax.Var):
            return None
        return inner.args[0] if shape_of(inner.args[0]) == shape_of(var) else None

    def rewrite(self, graph: Graph, var: Var, found: Var) -> None:
        graph.forward(var, found)


class MergeReshapes(Rule):
    """``reshape(reshape(x))``, also as squeeze, flatten or expand_dims -> ``reshape(x)``.

    It runs after the fusions: they know batch, rows and heads by the shapes in between.
    """

    name = "merge_reshapes"
    counted = False
    anchors = RESHAPES

    def match(self, graph: Graph, var: Var) -> Expr | None:
        inner = graph.call(graph.value(var).args[0], *RESHAPES)
        return None if inner is None else inner.args[0]

    def rewrite(self, graph: Graph, var: Var, found: Expr) -> None:
        if shape_of(found) == shape_of(var) and isinstance(found, relax.Var):
            graph.forward(var, found)
        else:
            graph.replace(var, relax.op.reshape(found, shape_of(var)))


class MergeTransposes(Rule):
    """``permute_dims(permute_dims(x))`` -> one permutation, or none."""

    name = "merge_transposes"
    counted = False
    anchors = ("relax.permute_dims",)

    def match(self, graph: Graph, var: Var) -> tuple[Expr, list[int]] | None:
        inner = graph.call(graph.value(var).args[0], "relax.permute_dims")
        return (
            None if inner is None else (inner.args[0], composed(order_of(inner), order_of(graph.value(var))))
        )

    def rewrite(self, graph: Graph, var: Var, found: tuple[Expr, list[int]]) -> None:
        x, order = found
        if order == sorted(order):
            graph.forward(var, x)
        else:
            graph.replace(var, relax.op.permute_dims(x, order))


class MergeCasts(Rule):
    """A cast of a cast -> the last one, when the first loses nothing (int32 -> int64 -> float32)."""

    name = "merge_casts"
    counted = False
    anchors = ("relax.astype",)

    def match(self, graph: Graph, var: Var) -> Expr | None:
        inner = graph.call(graph.value(var).args[0], "relax.astype")
        if inner is None or (dtype_of(inner.args[0]), dtype_of(inner)) not in _LOSSLESS:
            return None
        return inner.args[0]

    def rewrite(self, graph: Graph, var: Var, found: Expr) -> None:
        if dtype_of(found) == dtype_of(var):
            graph.forward(var, found)
        else:
            graph.replace(var, relax.op.astype(found, dtype_of(var)))


# fmt: off
_LOSSLESS = {
    ("bool", "int32"), ("bool", "int64"), ("bool", "float32"), ("bool", "float64"), ("int32", "int64"),
    ("int32", "float64"), ("float16", "float32"), ("bfloat16", "float32"), ("float16", "float64"),
    ("float32", "float64"), ("bool", "uint8"), ("uint8", "int32"), ("uint8", "int64"), ("int8", "int32"),
    ("int8", "int64"),
}
# fmt: on


def composed(first: list[int], second: list[int]) -> list[int]:
    """Axes of two permutations, one after the other, as one."""
    return [first[axis] for axis in second]
