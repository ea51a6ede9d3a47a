"""Images of another size: products with constant matrices, for targets with a matrix unit, or a kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero_tvm.host.tvm import Call, Expr, PrimFunc, Var, relax, te, topi, tvm
from hetero_tvm.ops.integers.quantized import OFFSET
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule

_Axis = tuple[np.ndarray, np.ndarray] | None
"""Positions and weights [2, after] along an axis; None where it stays."""


class _Found(NamedTuple):
    x: Expr
    nearest: bool
    rows: np.ndarray | None
    """Weights [after, before] of the rows; None when the size stays."""
    columns: np.ndarray | None


class ResizeAsProducts(Rule):
    """``resize2d(x [N, C, H, W])`` -> ``(A_rows @ x) @ A_columns``, whichever side first is less work.

    Every method that interpolates is a weighted sum along each axis, of weights that depend on the
    position alone.  Of neighbours (no sums) lookups by constant positions are made, unless every pixel
    is repeated equally often, which needs no positions.
    """

    name = "resize"
    counted = False
    anchors = ("relax.image.resize2d",)

    def match(self, graph: Graph, var: Var) -> _Found | None:
        call = graph.value(var)
        attrs, before, after = call.attrs, shape_of(call.args[0]), shape_of(var)
        nearest = str(attrs.method) == "nearest_neighbor"
        if str(attrs.layout) != "NCHW" or 0 in before or 0 in after:
            return None
        if dtype_of(var) not in (("float32", *OFFSET) if nearest else ("float32",)):
            return None
        mode = str(attrs.coordinate_transformation_mode)
        if mode == "tf_crop_and_resize":
            raise Miss("a resize of a region that is cropped")
        if mode == "align_corners" and 1 in (a for a, b in zip(after[2:], before[2:], strict=True) if a != b):
            raise Miss("corners of one pixel")
        if before == after:
            return _Found(call.args[0], nearest, None, None)
        if nearest and all(a % b == 0 for a, b in zip(after[2:], before[2:], strict=True)):
            return None
        axes = zip(before[2:], after[2:], strict=True)
        return _Found(call.args[0], nearest, *(_weights(attrs, a, b) for a, b in axes))

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        x, nearest, rows, columns = found
        if rows is None:
            graph.replace(var, relax.op.reshape(x, shape_of(var)))
            return
        (down, height), (across, width) = rows.shape, columns.shape
        # Work per channel with the columns first, and with the rows first.
        columns_first = height * width * across + across * height * down
        rows_first = down * height * width + down * width * across
        order = [(3, columns), (2, rows)] if columns_first <= rows_first else [(2, rows), (3, columns)]
        values = [(axis, weights) for axis, weights in order if weights.shape[0] != weights.shape[1]]
        for axis, weights in values:
            if nearest:
                places = relax.const(weights.argmax(1).astype(np.int32))
                value = relax.op.take(x, places, axis=axis, mode="wrap")
            elif axis == 3:
                value = relax.op.matmul(x, relax.const(np.ascontiguousarray(weights.T)))
            else:
                value = relax.op.matmul(relax.const(weights), x)
            if axis == values[-1][0]:
                graph.replace(var, value)
            else:
                x = graph.insert_before(var, value, f"{var.name}#first", [var])


def _weights(attrs: Any, before: int, after: int) -> np.ndarray:
    """The weights [after, before] of an axis, for the attributes of a resize."""
    key = (
        str(attrs.method),
        str(attrs.coordinate_transformation_mode),
        str(attrs.rounding_method),
        float(attrs.cubic_alpha),
        int(attrs.cubic_exclude),
    )
    return interpolation(before, after, *key)


@functools.lru_cache(maxsize=64)
def interpolation(
    before: int, after: int, method: str, mode: str, rounding: str, alpha: float, exclude: int
) -> np.ndarray:
    """The weights [after, before] of one axis, from the operator itself: what becomes of unit vectors."""
    if before == after:
        return np.eye(before, dtype=np.float32)
    # Two columns that stay two are themselves in every mode.
    x = te.placeholder((before, 1, before, 2), "float32", "x")
    y = topi.image.resize2d(
        x, (0.0,) * 4, (after, 2), "NCHW", method, mode, rounding, alpha, exclude, output_shape=None
    )
    kernel = tvm.compile(te.create_prim_func([x, y]), target="llvm")
    units = np.repeat(np.eye(before, dtype=np.float32)[:, None, :, None], 2, axis=3)
    result = tvm.runtime.tensor(np.zeros((before, 1, after, 2), np.float32))
    kernel["main"](tvm.runtime.tensor(units), result)
    return np.ascontiguousarray(result.numpy()[:, 0, :, 0].T)


def _interpolates(call: Call, var: Var) -> bool:
    """Whether a ``resize2d`` is linear, of images [N, C, H, W] of float32 that have elements."""
    x, attrs = call.args[0], call.attrs
    plain = dtype_of(x) == dtype_of(var) == "float32" and str(attrs.layout) == "NCHW"
    return plain and str(attrs.method) == "linear" and all((*shape_of(x), *shape_of(var)))


class ResizeAsKernel(Rule):
    """``resize2d(x [N, C, H, W])`` between two neighbours along each axis -> a kernel, scheduled already.

    Parameters
    ----------
    neighbours : positions and weights [2, after] of an axis, from the extents before and after and the mode
        that places pixels; None where it does not have that mode.
    kernel : makes it, from (planes, height, width), and the neighbours of rows and columns; None for an axis
        that stays.
    """

    name = "resize_kernel"
    counted = False
    anchors = ("relax.image.resize2d",)

    def __init__(
        self,
        neighbours: Callable[[int, int, str], _Axis],
        kernel: Callable[..., PrimFunc],
    ):
        self.neighbours, self.kernel = neighbours, kernel

    def match(self, graph: Graph, var: Var) -> tuple[Expr, list[_Axis]] | None:
        call = graph.value(var)
        before, after = shape_of(call.args[0]), shape_of(var)
        if not _interpolates(call, var) or before == after:
            return None
        mode, found = str(call.attrs.coordinate_transformation_mode), list[_Axis]()
        for a, b in zip(before[2:], after[2:], strict=True):
            axis = None if a == b else self.neighbours(a, b, mode)
            if axis is None and a != b:
                return None
            found.append(axis)
        return call.args[0], found

    def rewrite(self, graph: Graph, var: Var, found: tuple[Expr, list[_Axis]]) -> None:
        x, axes = found
        batch, channels, height, width = shape_of(x)
        before, after = ((batch * channels, *extent) for extent in ((height, width), shape_of(var)[2:]))
        function = self.kernel(before, *axes)
        bind = graph.binder(var, [var])
        image = bind(relax.op.reshape(x, before), "planes")
        constants = [relax.const(array) for axis in axes if axis is not None for array in axis]
        call = relax.call_tir(
            graph.add_function(function, "resize"),
            [image, *constants],
            out_ty=relax.TensorType(after, "float32"),
        )
        graph.replace(var, relax.op.reshape(bind(call, "resized"), shape_of(var)))


class ResizeAsOpenKernel(Rule):
    """``resize2d(x [N, C, H, W])`` between two neighbours along each axis -> a kernel of any extents.

    Parameters
    ----------
    kernel : makes it, from [N, C, H, W], (height, width) after, and the name of the mode that places pixels;
        None where it does not have that mode.
    """

    name = "open_resize"
    counted = False
    anchors = ("relax.image.resize2d",)

    def __init__(self, kernel: Callable[..., PrimFunc | None]):
        self.kernel = kernel

    def match(self, graph: Graph, var: Var) -> PrimFunc | None:
        call = graph.value(var)
        if not _interpolates(call, var):
            return None
        before, size = tuple(shape_of(call.args[0])), tuple(shape_of(var)[2:])
        return self.kernel(before, size, str(call.attrs.coordinate_transformation_mode))

    def rewrite(self, graph: Graph, var: Var, found: PrimFunc) -> None:
        after = shape_of(var)
        columns = (2, after[3])
        types = [relax.TensorType(columns, "int32"), relax.TensorType(columns, "float32")]
        types.append(relax.TensorType(after, "float32"))
        function = graph.add_function(found, "resize")
        call = relax.call_tir(function, [graph.value(var).args[0]], out_ty=types)
        graph.replace(var, relax.TupleGetItem(graph.binder(var, [var])(call, "resize"), 2))


class PixelsAsCopies(Rule):
    """``resize2d(x [N, C, H, W])`` that repeats every pixel equally often -> a kernel of any extents.

    Parameters
    ----------
    kernel : makes it, from [N, C, H, W], the copies along H and W, and the dtype; None where it has none.
    """

    name = "pixel_copies"
    counted = False
    anchors = ("relax.image.resize2d",)

    def __init__(self, kernel: Callable[..., PrimFunc | None]):
        self.kernel = kernel

    def match(self, graph: Graph, var: Var) -> PrimFunc | None:
        call = graph.value(var)
        attrs, before, after = call.attrs, shape_of(call.args[0]), shape_of(var)
        if str(attrs.layout) != "NCHW" or str(attrs.method) != "nearest_neighbor" or not all(before):
            return None
        if dtype_of(var) not in ("float32", *OFFSET) or any(
            a % b for a, b in zip(after, before, strict=True)
        ):
            return None
        mode, rounding = str(attrs.coordinate_transformation_mode), str(attrs.rounding_method)
        centered = mode in ("half_pixel", "pytorch_half_pixel") and rounding.startswith("round")
        if not centered and (mode, rounding) != ("asymmetric", "floor"):
            return None
        copies = after[2] // before[2], after[3] // before[3]
        return self.kernel(tuple(before), copies, dtype_of(var)) if max(copies) > 1 else None

    def rewrite(self, graph: Graph, var: Var, found: PrimFunc) -> None:
        out = relax.TensorType(shape_of(var), dtype_of(var))
        function = graph.add_function(found, "copies")
        graph.replace(var, relax.call_tir(function, [graph.value(var).args[0]], out_ty=out))
