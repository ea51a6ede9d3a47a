"""Operands laid out at run time in panels of columns, as the register tile reads them."""

from __future__ import annotations

from dataclasses import dataclass

from hetero_tvm.codegen import transpose
from hetero_tvm.host.tvm import Buffer, Expr
from hetero_tvm.schedules.cpu.programs.linear import bits_of
from hetero_tvm.schedules.emit import Index, Kernel, as_index, int32, vector_pieces


@dataclass(frozen=True)
class Rows:
    """A matrix [count, length] in a flat buffer.

    Attributes
    ----------
    base : position of the first element.
    stride : distance of consecutive rows; the elements of a row follow one another.
    """

    buffer: Buffer
    base: Expr
    stride: int
    count: Index
    length: int


def columns_from_rows(k: Kernel, packed: Buffer, source: Rows, columns: int, lanes: int) -> None:
    """Transpose K [S, D] to [panels, D, columns], by blocks in registers; columns after S are zero.

    The kernel must import ``codegen.transpose``, of the elements' bits.
    """
    assert isinstance(source.count, int)

    def panel_of(panel: Index, count: int) -> None:
        blocks = source.length // lanes
        whole = count // lanes if blocks else 0
        for block in range(whole):
            block_from_rows(k, packed, source, panel, block, columns, lanes)
        if count > whole * lanes:
            with k.serial(count - whole * lanes) as j:
                column_from_row(k, packed, source, panel, whole * lanes + j, columns)

    full, rest = divmod(source.count, columns)
    if full:
        with k.serial(full) as panel:
            panel_of(panel, columns)
    if rest:
        panel_of(int32(full), rest)
        with k.serial(source.length) as d:
            clear(k, packed, [full, d], rest, columns, lanes)


def block_from_rows(
    k: Kernel, packed: Buffer, source: Rows, panel: Index, block: int, columns: int, lanes: int
) -> None:
    """Transpose ``lanes`` rows to the columns of one block of a panel."""
    blocks = source.length // lanes
    with k.serial(blocks) as d:
        target = k.address(packed, [panel, d * lanes, block * lanes])
        start = source.base + (panel * columns + block * lanes) * source.stride + d * lanes
        address = k.address(source.buffer, [start])
        k.call(
            transpose.name_of(lanes, bits_of(source.buffer)),
            target,
            int32(columns),
            address,
            as_index(source.stride),
        )
    if source.length % lanes:
        with k.serial(lanes) as j:
            column_from_row(k, packed, source, panel, block * lanes + j, columns, blocks * lanes)


def column_from_row(
    k: Kernel, packed: Buffer, source: Rows, panel: Index, j: Expr, columns: int, first: int = 0
) -> None:
    """Copy one row, from element ``first`` on, to column ``j`` of a panel."""
    with k.serial(source.length - first) as d:
        at = source.base + (panel * columns + j) * source.stride + (first + d)
        k.store(packed, k.load(source.buffer, [at]), [panel, first + d, j])


def rows_as_they_are(k: Kernel, packed: Buffer, source: Rows, columns: int, lanes: int) -> None:
    """Copy V [S, D] to [panels, S, columns]; columns after D are zero."""
    with k.serial(source.count) as j:
        for panel in range(-(-source.length // columns)):
            valid = min(columns, source.length - panel * columns)
            for start, width in vector_pieces(valid, lanes):
                at = k.ramp(source.base + j * source.stride + (panel * columns + start), width)
                k.store(packed, k.load(source.buffer, [at]), [panel, j, k.ramp(start, width)])
            clear(k, packed, [panel, j], valid, columns, lanes)


def clear(k: Kernel, packed: Buffer, row: list[Index], first: int, columns: int, lanes: int) -> None:
    """Zeros in columns ``first`` to ``columns`` of one row of a panel."""
    for start, width in vector_pieces(columns - first, lanes):
        k.store(packed, k.splat(0.0, width, packed.dtype), [*row, k.ramp(first + start, width)])
