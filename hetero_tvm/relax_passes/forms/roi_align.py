"""Boxes of images pooled to a grid of bins, as a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable

from hetero_tvm.host.tvm import Call, PrimFunc, Var, relax
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
