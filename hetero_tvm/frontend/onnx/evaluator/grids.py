"""Sampling of grids in onnx's evaluator."""

from __future__ import annotations

import itertools
import math

import numpy as np
from onnx.reference.op_run import OpRun


class GridSample(OpRun):
    """Pixels at positions of a grid, in images of any rank; onnx's own knows the modes of opset 20 alone,
    takes places in float32, and one pixel at a time."""

    op_domain = ""

    def _run(self, x, grid, mode=None, padding_mode=None, align_corners=None):
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode or "linear")
        extents = x.shape[2:]
        batch = np.arange(len(x)).reshape(-1, *[1] * len(extents))
        taps = []  # per axis: (index, inside, weight) of each pixel that counts
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
        result = np.zeros((len(x), *grid.shape[1:-1], x.shape[1]), x.dtype)
        for chosen in itertools.product(*taps):
            weight = math.prod((np.where(inside, weight, 0) for _, inside, weight in chosen), start=1)
            # The channels come last: the image and its places are indices beside one another.
            pixels = np.moveaxis(x, 1, -1)[(batch, *(at for at, _, _ in chosen))]
            result += weight[..., None].astype(x.dtype) * pixels
        return (np.moveaxis(result, -1, 1),)


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
