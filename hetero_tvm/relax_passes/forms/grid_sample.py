"""Images read at computed positions: lookups of pixels, for targets without loops over data, or a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hetero_tvm.host.tvm import Expr, PrimFunc, TETensor, Var, relax, te, tirx
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule

_MOST_PIXELS = 1 << 24
"""Pixels of an image whose positions float32 still tells apart."""
_LONGEST_SIDE = 48
"""Longest side of an image whose positions are an input: those become float16 on their way, which moves them
by up to side / 8192 pixels."""


class _Found(NamedTuple):
    x: Expr
    grid: Expr
    method: str
    border: bool
    """Whether pixels beyond the image are those at its border."""
    aligned: bool


class GridSampleAsTake(Rule):
    """``grid_sample(x [N, C, H, W], grid [N, 2, h, w])`` -> lookups of the pixels around each position,
    as rows of the image with channels last, and their weighted sum.

    Pixels beyond the image count with weight 0, or are those at its border.
    """

    name = "grid_sample"
    counted = False
    anchors = ("relax.image.grid_sample",)

    def match(self, graph: Graph, var: Var) -> _Found | None:
        call = graph.value(var)
        (x, grid), attrs = call.args, call.attrs
        if str(attrs.layout) != "NCHW" or dtype_of(var) != "float32" or not math.prod(shape_of(var)):
            return None
        if str(attrs.method) not in ("bilinear", "nearest"):
            raise Miss(f"positions between pixels by {attrs.method}")
        if str(attrs.padding_mode) not in ("zeros", "border"):
            raise Miss(f"pixels beyond the image by {attrs.padding_mode}")
        batch, _, height, width = shape_of(x)
        if batch * height * width >= _MOST_PIXELS:
            raise Miss("the image has too many pixels")
        if max(height, width) > _LONGEST_SIDE:
            source = graph.value(grid)
            # Behind a change of layout, and the place that NaN gets.
            while (name := graph.op_name(source)) in ("relax.permute_dims", "relax.where"):
                source = graph.value(source.args[0 if name == "relax.permute_dims" else 2])
            if isinstance(source, relax.Var):
                raise Miss(f"16 bits are too few for positions in an image of {height} x {width}")
        border = str(attrs.padding_mode) == "border"
        return _Found(x, grid, str(attrs.method), border, bool(attrs.align_corners))

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        x, grid, method, border, aligned = found
        batch, channels, height, width = shape_of(x)
        taps = 2 if method == "bilinear" else 1
        places = (taps, taps, batch, *shape_of(grid)[2:])
        bind = graph.binder(var, [var])

        def kernel(
            function: PrimFunc, name: str, args: list[Expr], shape: tuple[int, ...], dtype: str
        ) -> Var:
            call = relax.call_tir(
                graph.add_function(function, name), args, out_ty=relax.TensorType(shape, dtype)
            )
            return bind(call, name)

        form = _Positions(places, (height, width), aligned, border)
        origins = (np.arange(batch, dtype=np.int32) * np.int32(height * width)).reshape(-1, 1, 1)
        index = kernel(form.indices(), "pixels", [grid, relax.const(origins)], places, "int32")
        weight = kernel(form.weights(), "weights", [grid], places, "float32")
        rows = bind(relax.op.permute_dims(x, [0, 2, 3, 1]), "channels_last")
        table = bind(relax.op.reshape(rows, (batch * height * width, channels)), "table")
        flat = bind(relax.op.reshape(index, (math.prod(places),)), "flat")
        taken = bind(relax.op.take(table, flat, axis=0, mode="wrap"), "taken")
        taken = bind(relax.op.reshape(taken, (*places, channels)), "around")
        mixed = (*places[2:], channels)
        result = kernel(form.mixture(channels), "weighted_pixels", [taken, weight], mixed, "float32")
        graph.replace(var, relax.op.permute_dims(result, [0, 3, 1, 2]))


class GridSampleAsKernel(Rule):
    """``grid_sample(x [N, C, H, W], grid [N, 2, h, w])`` -> a kernel, scheduled already.

    Parameters
    ----------
    kernel : makes it, from the image's extents, (h, w), the number of pixels along an axis that a result is
        made of, whether corners are aligned, and whether pixels beyond the image are those at its border.
    """

    name = "grid_sample_kernel"
    counted = False
    anchors = ("relax.image.grid_sample",)

    def __init__(self, kernel: Callable[..., PrimFunc]):
        self.kernel = kernel

    def match(self, graph: Graph, var: Var) -> _Found | None:
        call = graph.value(var)
        (x, grid), attrs = call.args, call.attrs
        border = str(attrs.padding_mode) == "border"
        plain = {dtype_of(x), dtype_of(grid), dtype_of(var)} == {"float32"} and str(attrs.layout) == "NCHW"
        if not plain or len(shape_of(x)) != 4 or not math.prod((*shape_of(x), *shape_of(var))):
            return None
        if str(attrs.method) not in ("bilinear", "nearest") or not (
            border or str(attrs.padding_mode) == "zeros"
        ):
            return None
        if math.prod(shape_of(x)[2:]) >= _MOST_PIXELS:
            return None
        return _Found(x, grid, str(attrs.method), border, bool(attrs.align_corners))

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        x, grid, method, border, aligned = found
        taps = 2 if method == "bilinear" else 1
        function = self.kernel(shape_of(x), shape_of(grid)[2:], taps, aligned, border)
        name = graph.add_function(function, "grid_sample")
        graph.replace(var, relax.call_tir(name, [x, grid], out_ty=relax.TensorType(shape_of(var), "float32")))


class _Positions:
    """TensorIR over ``places`` [rows, columns of pixels around a position, N, h, w] of an image."""

    def __init__(self, places: tuple[int, ...], size: tuple[int, int], aligned: bool, border: bool):
        self.places, self.size, self.aligned, self.border = places, size, aligned, border
        self.grid = te.placeholder((places[2], 2, *places[3:]), "float32", "grid")

    def _position(self, axis: int, *at: Expr) -> Expr:
        """Position in pixels along the rows (0) or columns (1), which the grid has the other way round."""
        extent, value = self.size[axis], self.grid[at[0], 1 - axis, at[1], at[2]]
        if self.aligned:
            x = (value + 1.0) * ((extent - 1) / 2)
        else:
            x = (value + 1.0) * (extent / 2) - 0.5
        return tirx.min(tirx.max(x, 0.0), float(extent - 1)) if self.border else x

    def _pixel(self, axis: int, tap: Expr, *at: Expr) -> Expr:
        """The pixel before a position or the one behind it; with one tap the nearest."""
        x = self._position(axis, *at)
        if self.places[0] == 1:
            return tirx.nearbyint(x)
        return tirx.floor(x) + tirx.if_then_else(tap < 1, tirx.const(0.0), tirx.const(1.0))

    def indices(self) -> PrimFunc:
        """Rows of the table of pixels, those beyond the image at its border."""
        origin = te.placeholder((self.places[2], 1, 1), "int32", "origin")

        def element(j: Expr, i: Expr, n: Expr, h: Expr, w: Expr) -> Expr:
            row, column = (
                tirx.min(tirx.max(self._pixel(a, tap, n, h, w), 0.0), float(self.size[a] - 1))
                for a, tap in enumerate((j, i))
            )
            return (row * float(self.size[1]) + column).astype("int32") + origin[n, 0, 0]

        y = te.compute(self.places, element, name="pixels")
        return _function([self.grid, origin, y])

    def weights(self) -> PrimFunc:
        """Weights of the pixels around each position."""

        def along(axis: int, tap: Expr, *at: Expr) -> Expr:
            x, pixel = self._position(axis, *at), self._pixel(axis, tap, *at)
            weight = tirx.const(1.0, "float32")
            if self.places[0] == 2:
                part = x - tirx.floor(x)
                weight = tirx.if_then_else(tap < 1, 1.0 - part, part)
            if self.border:
                return weight
            inside = tirx.all(pixel >= 0.0, pixel <= float(self.size[axis] - 1))
            return tirx.Select(inside, weight, tirx.const(0.0, "float32"))

        y = te.compute(self.places, lambda j, i, *at: along(0, j, *at) * along(1, i, *at), name="weights")
        return _function([self.grid, y])

    def mixture(self, channels: int) -> PrimFunc:
        """Weighted sum of the pixels around each position, with channels last."""

        taken = te.placeholder((*self.places, channels), "float32", "taken")
        weight = te.placeholder(self.places, "float32", "weight")
        taps = [(j, i) for j in range(self.places[0]) for i in range(self.places[1])]
        y = te.compute(
            (*self.places[2:], channels),
            lambda n, h, w, c: sum(taken[j, i, n, h, w, c] * weight[j, i, n, h, w] for j, i in taps),
            name="mixture",
        )
        return _function([taken, weight, y])


def _function(tensors: list[TETensor]) -> PrimFunc:
    return te.create_prim_func(tensors, "int64").without_attr("global_symbol")
