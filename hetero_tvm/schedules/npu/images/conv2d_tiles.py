"""Tiles of convolutions as products, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator

from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.matmul import RESIDUAL, Matmul
from hetero_tvm.schedules.npu.images.image_rows import rows_below
from hetero_tvm.schedules.npu.matmul.cost import queue_cycles
from hetero_tvm.schedules.npu.matmul.tiles import Tiles, fits_l0c, fits_ub, piece_rows
from hetero_tvm.schedules.npu.tiles import ceil_div, even

_SLACK = 256
"""Bytes of L1 that alignment may take."""


def as_product(op: Conv2d) -> Matmul:
    """The convolution as a product: pixels x filters, reduced over taps and channels."""
    pixels = op.batch * op.out_height * op.out_width
    return Matmul((pixels,), op.filters, op.channels * op.kernel[0] * op.kernel[1], op.epilogue)


def is_plain(op: Conv2d) -> bool:
    """Whether patches are the pixels themselves."""
    return op.kernel == (1, 1) and op.strides == (1, 1) and not any(op.padding)


def candidates(op: Conv2d, spec: NPUSpec) -> Iterator[Tiles]:
    """Tiles of whole output rows that fit every scratchpad."""
    product = as_product(op)
    bn, bk = spec.matrix_block[1], spec.matrix_block[2]
    l0c = spec.scratchpad("l0c") // 4
    sizes = (32, 64, 128, 256, 512, 1024)
    heights = {even(op.out_height, max(1, pixels // op.out_width)) for pixels in sizes}
    for high in sorted(heights):
        tm = high * op.out_width
        for parts_n in (1, 2, 4, 8, 16):
            tn = even(op.filters, bn * parts_n, bn) if op.filters > bn else op.filters
            if tm * tn > l0c:
                continue
            room = min(spec.scratchpad("l0a") // (4 * tm), spec.scratchpad("l0b") // (4 * tn))
            for limit in {room, 256, 128, 64, 32}:
                if limit > room or limit < min(bk, product.k):
                    continue
                tk = even(product.k, max(bk, limit // bk * bk), bk) if product.k > bk else product.k
                for stationary in ("x", "w"):
                    span = ceil_div(op.filters, tn) if stationary == "w" else ceil_div(op.out_height, high)
                    for sub in {1, 2, 3, 4, span}:
                        if sub > span or sub * tm * tn > l0c:
                            continue
                        for slices in (1, 4):
                            if slices > 1 and (slices - 1) * tk >= product.k:
                                continue
                            rows = piece_rows(product, tm, tn, spec)
                            tiles = Tiles(stationary, tm, tn, tk, slices=slices, sub=sub, ring=2, rows=rows)
                            if fits(op, tiles, spec):
                                yield tiles


def _image_bytes(op: Conv2d, out_rows: int) -> int:
    """Bytes of the input rows under ``out_rows`` output rows."""
    return 2 * min(op.height, rows_below(op, out_rows)) * op.width * op.channels


def l1_bytes(op: Conv2d, t: Tiles, panels: int) -> int:
    """Bytes of L1 with ``panels`` versions of the panel."""
    k = op.channels * op.kernel[0] * op.kernel[1]
    rows = t.tm // op.out_width
    if t.stationary == "w":
        return 2 * _image_bytes(op, rows) + panels * 2 * t.sub * t.tn * (k + t.tk)
    return panels * (_image_bytes(op, rows * t.sub) + 32) + 2 * t.ring * t.slices * t.tk * t.tn


def panels_in(op: Conv2d, t: Tiles, l1: int) -> int:
    """Versions of the panel for which ``l1`` bytes of L1 have room."""
    return 2 if l1_bytes(op, t, 2) + _SLACK <= l1 else 1


def fits(op: Conv2d, t: Tiles, spec: NPUSpec, l1: int | None = None) -> bool:
    """Whether tiles of whole output rows fit every scratchpad, and ``l1`` bytes of L1."""
    if t.tm % op.out_width or t.stationary not in ("x", "w"):
        return False
    return (
        l1_bytes(op, t, 1) + _SLACK <= (spec.scratchpad("l1") if l1 is None else l1)
        and 4 * t.tm * t.tk <= spec.scratchpad("l0a")
        and 4 * t.tn * t.tk <= spec.scratchpad("l0b")
        and fits_l0c(t.sub, t.tm, t.tn, spec)
        and fits_ub(as_product(op), t.tn, t.rows, spec)
    )


def estimate(op: Conv2d, t: Tiles, spec: NPUSpec) -> float:
    """Cycles of the kernel: the product's estimate, with the image's bytes in place of the patches'."""
    product = as_product(op)
    cycles = queue_cycles(product, t, spec)
    rows = t.tm // op.out_width
    blocks = op.batch * ceil_div(op.out_height, rows * (t.sub if t.stationary == "x" else 1))
    panels = ceil_div(ceil_div(op.filters, t.tn), t.sub) if t.stationary == "w" else 1
    image = blocks * panels * _image_bytes(op, rows * (t.sub if t.stationary == "x" else 1))
    weights = 2.0 * product.k * op.filters * (blocks if t.stationary == "x" else 1)
    out = 2.0 * product.m * op.filters * (1 + op.epilogue.count(RESIDUAL))
    dma = (image + weights + out) / spec.dram_bytes_per_cycle
    ends = 2 * spec.dram_latency + t.tm * t.tn * 4.0 / spec.l0c_to_ub
    ends += _image_bytes(op, rows) / spec.dram_bytes_per_cycle
    queues = (dma, cycles.move, cycles.matrix, cycles.vector)
    busiest = max(queues)
    return busiest + ends + 0.02 * (sum(queues) - busiest)
