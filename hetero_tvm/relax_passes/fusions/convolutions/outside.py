"""Taps of a filter that never reach the image, but zeros around it alone, are left out.

Filters with rates of 12, 24 and 36 over the small images at the end of a segmentation net (Chen et al.,
"Rethinking Atrous Convolution", 2017) are mostly such taps: a 3x3 filter at rate 24 over 16 x 16 pixels is a
1x1 filter, and the zeros around were thirty times the image.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetero_tvm.host.tvm import Var
from hetero_tvm.relax_passes.fusions.convolutions.conv2d import plain_filters, with_filters, with_padding
from hetero_tvm.relax_passes.rewriting.graph import Graph, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule


class _Taps(NamedTuple):
    """Taps along one axis that reach the image, and zeros on both sides that they do not want any more."""

    first: int
    end: int
    above: int
    below: int


class DropOutsideTaps(Rule):
    """``conv2d(x, W)`` -> ``conv2d(x, W')`` without the first and last rows and columns of constant filters
    that lie outside of the image wherever the filter stands."""

    name = "outside_taps"
    counted = False
    anchors = ("relax.nn.conv2d",)

    def match(self, graph: Graph, var: Var) -> tuple[np.ndarray, _Taps, _Taps] | None:
        weights = plain_filters(graph, var)
        if weights is None:
            return None
        call = graph.value(var)
        attrs, image, result = call.attrs, shape_of(call.args[0])[2:], shape_of(var)[2:]
        before, after = ([int(p) for p in attrs.padding[side : side + 2]] for side in (0, 2))
        rows, columns = (
            _reaching(
                weights.shape[2 + axis],
                *(int(attrs.dilation[axis]), int(attrs.strides[axis])),
                *(before[axis], after[axis], image[axis], result[axis]),
            )
            for axis in (0, 1)
        )
        if (rows.first, rows.end, columns.first, columns.end) == (0, weights.shape[2], 0, weights.shape[3]):
            return None
        if not np.isfinite(weights).all():
            raise Miss("a weight is not finite: its product with zero is not zero")
        return weights[:, :, rows.first : rows.end, columns.first : columns.end], rows, columns

    def rewrite(self, graph: Graph, var: Var, found: tuple[np.ndarray, _Taps, _Taps]) -> None:
        weights, rows, columns = found
        call = graph.value(var)
        rates = zip(call.attrs.dilation, weights.shape[2:], strict=True)
        dilation = [int(rate) if extent > 1 else 1 for rate, extent in rates]
        less = [-rows.above, -columns.above, -rows.below, -columns.below]
        graph.replace(var, with_padding(with_filters(call, weights), call.args[0], less, dilation))


def _reaching(taps: int, rate: int, stride: int, before: int, after: int, extent: int, places: int) -> _Taps:
    """Taps along an axis of ``extent`` pixels that reach it from one of ``places``; all of them where none
    does, or the zeros around would end within the image without the others."""
    stands = np.arange(places) * stride - before
    reach = [n for n in range(taps) if ((stands + n * rate >= 0) & (stands + n * rate < extent)).any()]
    first, end = (reach[0], reach[-1] + 1) if reach else (0, taps)
    above, below = first * rate, (taps - end) * rate
    return _Taps(first, end, above, below) if above <= before and below <= after else _Taps(0, taps, 0, 0)
