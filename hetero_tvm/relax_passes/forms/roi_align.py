"""Boxes of images pooled to a grid of bins, as a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable

from hetero_tvm.host.tvm import Call, Expr, PrimFunc, Var, relax, te, tirx, tvm
from hetero_tvm.relax_passes.rewriting.graph import Graph, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule


class RoiAlignAsKernel(Rule):
    """``roi_align(x [N, C, H, W], boxes [R, 5])`` by the mean -> a kernel, scheduled already.

    Parameters
    ----------
    kernel : makes it, from the image's extents, the number of boxes, bins along both axes, the scale of the
        corners, samples of a bin along an axis (0 for about one for every pixel), and whether boxes may be
        smaller than a pixel.
    """

    name = "roi_align"
    counted = False
    anchors = ("relax.vision.roi_align",)

    def __init__(self, kernel: Callable[..., PrimFunc]):
        self.kernel = kernel

    def match(self, graph: Graph, var: Var) -> Call | None:
        call = graph.value(var)
        sizes = [shape_of(x) for x in call.args]
        plain = {dtype_of(x) for x in (*call.args, var)} == {"float32"} and str(call.attrs.layout) == "NCHW"
        if not plain or str(call.attrs.mode) != "avg" or not all(map(math.prod, sizes)):
            return None
        return call

    def rewrite(self, graph: Graph, var: Var, found: Call) -> None:
        attrs, (x, boxes) = found.attrs, found.args
        size = tuple(int(extent) for extent in attrs.pooled_size)
        samples = max(0, int(attrs.sample_ratio))
        form = (
            shape_of(x),
            shape_of(boxes)[0],
            size,
            float(attrs.spatial_scale),
            samples,
            bool(attrs.aligned),
        )
        name = graph.add_function(self.kernel(*form), "roi_align")
        graph.replace(
            var, relax.call_tir(name, [x, boxes], out_ty=relax.TensorType(shape_of(var), "float32"))
        )


def _lowered(builder: relax.BlockBuilder, call: Call) -> Expr:
    """The mean of interpolated samples as TVM has it, or the largest weighted corner of any sample.

    ONNX's definition of mode max takes no sum of a sample's four corners, but the largest of them.
    """
    attrs, (x, boxes) = call.attrs, call.args
    if str(attrs.mode) != "max":
        names = ("pooled_size", "spatial_scale", "mode", "sample_ratio", "aligned", "layout")
        options = {name: getattr(attrs, name) for name in names}
        return builder.call_te(tvm.topi.vision.roi_align, x, boxes, **options)

    def pooled(x: te.Tensor, boxes: te.Tensor) -> te.Tensor:
        size = [int(extent) for extent in attrs.pooled_size]
        samples, dtype, scale = int(attrs.sample_ratio), x.dtype, float(attrs.spatial_scale)
        number = lambda value: tirx.const(value, dtype)  # noqa: E731
        real = lambda value: tirx.Cast(dtype, value)  # noqa: E731

        def along(box: Expr, axis: int) -> tuple[Expr, Expr, Expr]:
            """Begin of a box, side of a bin, samples of one."""
            start, end = (boxes[box, corner] * number(scale) for corner in (2 - axis, 4 - axis))
            extent = end - start if attrs.aligned else te.max(end - start, number(1.0))
            side = extent / number(float(size[axis]))
            return start, side, tirx.const(samples, "int32") if samples > 0 else te.ceil(side).astype("int32")

        def result(box: Expr, channel: Expr, *bins: Expr) -> Expr:
            axes, ends, inside = [], [], []
            for axis, bin in enumerate(bins):
                start, side, count = along(box, axis)
                sample = te.reduce_axis((0, count), name="hw"[axis])
                at = start + real(bin) * side + (real(sample) + number(0.5)) * side / real(count)
                last = x.shape[2 + axis] - 1
                inside.append(tirx.all(at >= number(-1.0), at <= real(last + 1)))
                near = te.min(te.max(at, number(0.0)), real(last))
                low = tirx.Cast("int32", near)
                part = near - real(low)
                high = tirx.min(low + 1, tirx.Cast("int32", last))
                axes.append(sample)
                ends.append([(low, number(1.0) - part), (high, part)])
            image = tirx.Cast("int32", boxes[box, 0])
            corners = [
                x[image, channel, row, column] * (above * beside)
                for row, above in ends[0]
                for column, beside in ends[1]
            ]
            largest = te.max(te.max(corners[0], corners[1]), te.max(corners[2], corners[3]))
            return te.max(tirx.if_then_else(tirx.all(*inside), largest, number(0.0)), axis=axes)

        return te.compute((boxes.shape[0], x.shape[1], *size), result, name="largest_corner")

    return builder.call_te(pooled, x, boxes, primfunc_name_hint="roi_align_max")


LEGALIZERS = {"relax.vision.roi_align": _lowered}
"""Operator -> our TensorIR, in place of TVM's."""
