"""Sampling of grids in onnx's evaluator."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from onnx.reference.op_run import OpRun

Tap = tuple[np.ndarray, np.ndarray | bool, np.ndarray]
"""Index of a pixel along an axis, whether it is one of the image, and its weight."""


class GridSample(OpRun):
    """Pixels at positions of a grid, in images of any rank; onnx's own knows the modes of opset 20 alone,
    takes places in float32, and one pixel at a time."""

    op_domain = ""

    def _run(self, x, grid, mode=None, padding_mode=None, align_corners=None):
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode or "linear")
        extents = x.shape[2:]
        batch = np.arange(len(x)).reshape(-1, *[1] * len(extents))
        taps = []
        for axis, extent in enumerate(extents):
            unit = (grid[..., len(extents) - 1 - axis].astype(x.dtype) + 1) / 2
            low, high = (0.0, extent - 1.0) if align_corners else (-0.5, extent - 0.5)
            place = unit * (extent - 1) if align_corners else unit * extent - 0.5
            place = np.rint(place) if mode == "nearest" else place
            if padding_mode == "reflection":  # of "border" the single pixels are taken from there
                place = _reflected(place, low, high)
            base = np.floor(place)
            found = []
            for offset, weight in _weights(mode, place - base):
                at = base + offset
                inside = (at >= 0) & (at < extent) if padding_mode in (None, "zeros") else True
                at = _reflected(at, low, high) if padding_mode == "reflection" else at
                found.append((np.clip(at, 0, extent - 1).astype(np.int64), inside, weight))
            taps.append(found)
        # The channels come last: the image and its places are indices beside one another.
        return (np.moveaxis(_pixels(np.moveaxis(x, 1, -1), (batch,), taps), -1, 1),)


class DeformConv(OpRun):
    """Deformable convolution of images (Dai et al., 2017): pixels at moved places, by one matrix product per
    position of the kernel; onnx's own samples a grid for each product."""

    op_domain = ""

    def _run(
        self,
        x,
        weight,
        offset,
        bias=None,
        mask=None,
        dilations=None,
        group=None,
        kernel_shape=None,
        offset_group=None,
        pads=None,
        strides=None,
    ):
        batch, channels, *extents = x.shape
        kernel, parts, moved = weight.shape[2:], group or 1, offset_group or 1
        (top, left), strides, dilations = (pads or [0] * 4)[:2], strides or [1, 1], dilations or [1, 1]
        sizes = offset.shape[2:]
        offset = offset.reshape(batch, moved, *kernel, 2, *sizes)
        mask = None if mask is None else mask.reshape(batch, moved, *kernel, *sizes)
        planes = np.moveaxis(x.reshape(batch, moved, channels // moved, *extents), 2, -1)
        images, sets = np.ogrid[:batch, :moved]
        lead = images[..., None, None], sets[..., None, None]
        weight = weight.reshape(parts, -1, channels // parts, *kernel)
        result = np.zeros((batch, parts, weight.shape[1], math.prod(sizes)), x.dtype)
        for i, j in itertools.product(*map(range, kernel)):
            starts = (i * dilations[0] - top, j * dilations[1] - left)
            places = [
                start + stride * at + offset[:, :, i, j, axis]
                for axis, (start, stride, at) in enumerate(
                    zip(starts, strides, np.ogrid[: sizes[0], : sizes[1]], strict=True)
                )
            ]
            taps = []
            for place, extent in zip(places, extents, strict=True):
                base = np.floor(place)
                near = [(base + side, weight) for side, weight in _weights("linear", place - base)]
                taps.append(
                    [
                        (np.clip(at, 0, extent - 1).astype(np.int64), (at >= 0) & (at < extent), weight)
                        for at, weight in near
                    ]
                )
            pixels = _pixels(planes, lead, taps)
            pixels *= 1 if mask is None else mask[:, :, i, j, ..., None]
            columns = np.moveaxis(pixels, -1, 2).reshape(batch, parts, channels // parts, -1)
            result += np.matmul(weight[..., i, j], columns)
        result = result.reshape(batch, -1, *sizes)
        return (result if bias is None else result + bias.reshape(-1, 1, 1),)


def _pixels(images: np.ndarray, lead: tuple[np.ndarray, ...], taps: Sequence[Sequence[Tap]]) -> np.ndarray:
    """Sums of pixels of images, whose channels come last, by the products of their weights.

    ``lead`` : indices of the axes before those of pixels; ``taps`` : of each of these, the ones that count.
    """
    total = 0.0
    for chosen in itertools.product(*taps):
        weight = math.prod((np.where(inside, weight, 0) for _, inside, weight in chosen), start=1)
        total = total + weight[..., None].astype(images.dtype) * images[(*lead, *(at for at, _, _ in chosen))]
    return total


def _weights(mode: str, rest: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Offsets of the pixels around a position, ``rest`` behind the first of them, and their weights (cubic
    ones by Keys, 1981, with a = -0.75)."""
    if mode == "nearest":
        return [(0, np.ones_like(rest))]
    if mode == "linear":
        return [(0, 1 - rest), (1, rest)]
    outer, inner = np.poly1d([-0.75, 3.75, -6, 3]), np.poly1d([1.25, -2.25, 0, 1])
    return [(-1, outer(rest + 1)), (0, inner(rest)), (1, inner(1 - rest)), (2, outer(2 - rest))]


def _reflected(place: np.ndarray, low: float, high: float) -> np.ndarray:
    """Places that lie outside, mirrored at the borders until they lie between them."""
    if high <= low:
        return np.full_like(place, 0)
    turns, rest = np.divmod(np.abs(place - low), high - low)
    return np.where(turns % 2 == 0, rest, high - low - rest) + low
