"""Positions that are reflected into an image before it is read there."""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


class ReflectPositions(Rule):
    """``grid_sample(x, grid)`` that reflects -> ``grid_sample(x, reflected grid)`` that keeps to the border.

    Positions swing between -1 and 1, which are the outer edges of the image, or the middles of the pixels at
    its border: either way those in which PyTorch and ONNX reflect.  TVM writes the reflection out for each
    pixel around a position, in expressions that take minutes to compile.  Steps of cubes reflect every pixel
    that they take, and stay as they are.
    """

    name = "reflect_positions"
    counted = False
    anchors = ("relax.image.grid_sample",)

    def match(self, graph: Graph, var: Var) -> tuple[Expr, Expr] | None:
        call = graph.value(var)
        x, grid = call.args
        plain = str(call.attrs.method) in ("bilinear", "nearest") and dtype_of(grid) in ("float32", "float64")
        return (x, grid) if plain and str(call.attrs.padding_mode) == "reflection" else None

    def rewrite(self, graph: Graph, var: Var, found: tuple[Expr, Expr]) -> None:
        x, grid = found
        attrs, bind = graph.value(var).attrs, graph.binder(var, [var])
        one, four = (relax.const(value, dtype_of(grid)) for value in (1.0, 4.0))
        from_edge = bind(relax.op.add(grid, one), "from_edge")
        rounds = bind(relax.op.floor(bind(relax.op.divide(from_edge, four), "quarters")), "rounds")
        way = bind(relax.op.subtract(from_edge, bind(relax.op.multiply(rounds, four), "whole")), "way")
        back = bind(relax.op.minimum(way, bind(relax.op.subtract(four, way), "rest")), "back")
        reflected = bind(relax.op.subtract(back, one), "reflected")
        layout, aligned = str(attrs.layout), bool(attrs.align_corners)
        graph.replace(
            var, relax.op.image.grid_sample(x, reflected, str(attrs.method), layout, "border", aligned)
        )
