"""Volumes of another size: planes are resized, then images whose columns are whole slices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hetero_tvm.host.tvm import Call, Expr, Var, relax
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule

Bind = Callable[[Expr, str], Var]

_METHODS = ("linear", "nearest_neighbor")


def separable(graph: Graph, var: Var) -> bool:
    """Whether a ``resize3d`` is a resize of planes and one of depths."""
    call = graph.value(var)
    attrs, shapes = call.attrs, (shape_of(call.args[0]), shape_of(var))
    plain = dtype_of(var) == dtype_of(call.args[0]) == "float32" and str(attrs.layout) == "NCDHW"
    if not plain or str(attrs.method) not in _METHODS or any(0 in shape for shape in shapes):
        return False
    return str(attrs.coordinate_transformation_mode) != "tf_crop_and_resize"


def resized(bind: Bind, planes: Expr, depths: tuple[int, int], size: tuple[int, ...], attrs: Any) -> Expr:
    """Planes [N, M, H, W] at ``size`` (D, H, W), as [K, 1, D, all of a slice]: ``depths`` are K and the depth
    before, and the planes lie so that a slice follows another one."""
    depth, *plane = size

    def at(x: Expr, extents: tuple[int, ...]) -> Expr:
        if shape_of(x)[2:] == extents:
            return x
        method, how = str(attrs.method), str(attrs.coordinate_transformation_mode)
        rounding = str(attrs.rounding_method) or "round"
        return bind(relax.op.image.resize2d(x, extents, None, "NCHW", method, how, rounding), "resized")

    planes = at(planes, tuple(plane))
    number, before = depths
    values = math.prod(shape_of(planes)) // (number * before)
    return at(bind(relax.op.reshape(planes, (number, 1, before, values)), "depths"), (depth, values))


class ResizeVolumes(Rule):
    """``resize3d(x [N, C, D, H, W])`` between neighbours -> ``resize2d`` of its planes, then of images
    [D, H' * W'], of which only the rows change: three interpolations for eight."""

    name = "resize_volumes"
    counted = False
    anchors = ("relax.image.resize3d",)

    def match(self, graph: Graph, var: Var) -> Call | None:
        return graph.value(var) if separable(graph, var) else None

    def rewrite(self, graph: Graph, var: Var, found: Call) -> None:
        bind = graph.binder(var, [var])
        batch, channels, depth, *plane = shape_of(found.args[0])
        planes = bind(relax.op.reshape(found.args[0], (batch, channels * depth, *plane)), "planes")
        y = resized(bind, planes, (batch * channels, depth), shape_of(var)[2:], found.attrs)
        graph.replace(var, relax.op.reshape(y, shape_of(var)))
