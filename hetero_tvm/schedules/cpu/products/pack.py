"""Operands laid out at run time in panels of columns, as the register tile reads them."""

from __future__ import annotations

from typing import Any

from hetero_tvm.codegen import transpose
from hetero_tvm.schedules.emit import Kernel, chunks, int32


def transposed(
    k: Kernel,
    packed: Any,
    key: Any,
    base: Any,
    row_stride: int,
    length: int,
    columns: int,
    dim: int,
    lanes: int,
) -> None:
    """K [S, D] -> its transpose [panels, D, columns], by blocks in registers; columns after S are zero.

    K lies in the flat buffer ``key`` at ``base``, a row every ``row_stride`` elements.  The kernel must
    import ``codegen.transpose``.
    """
    blocks = dim // lanes

    def one_by_one(panel: Any, j: Any, first: int) -> None:
        with k.serial(dim - first) as d:
            value = k.load(key, [base + (panel * columns + j) * row_stride + (first + d)])
            k.store(packed, value, [panel, first + d, j])

    def panel_of(panel: Any, count: int) -> None:
        whole = count // lanes if blocks else 0
        for block in range(whole):
            with k.serial(blocks) as d:
                target = k.address(packed, [panel, d * lanes, block * lanes])
                source = k.address(key, [base + (panel * columns + block * lanes) * row_stride + d * lanes])
                k.call(transpose.name_of(lanes), target, int32(columns), source, int32(row_stride))
        if whole and dim % lanes:
            with k.serial(whole * lanes) as j:
                one_by_one(panel, j, blocks * lanes)
        if count > whole * lanes:
            with k.serial(count - whole * lanes) as j:
                one_by_one(panel, whole * lanes + j, 0)

    full, rest = divmod(length, columns)
    if full:
        with k.serial(full) as panel:
            panel_of(panel, columns)
    if rest:
        panel_of(int32(full), rest)
        with k.serial(dim) as d:
            for start, width in chunks(columns - rest, lanes):
                k.store(packed, k.splat(0.0, width), [full, d, k.ramp(rest + start, width)])


def rows(
    k: Kernel,
    packed: Any,
    value: Any,
    base: Any,
    row_stride: int,
    length: int,
    columns: int,
    dim: int,
    lanes: int,
) -> None:
    """V [S, D] -> [panels, S, columns]; columns after D are zero."""
    panels = -(-dim // columns)
    with k.serial(length) as j:
        for panel in range(panels):
            valid = min(columns, dim - panel * columns)
            for start, width in chunks(valid, lanes):
                source = [k.ramp(base + j * row_stride + (panel * columns + start), width)]
                k.store(packed, k.load(value, source), [panel, j, k.ramp(start, width)])
            for start, width in chunks(columns - valid, lanes):
                k.store(packed, k.splat(0.0, width), [panel, j, k.ramp(valid + start, width)])
