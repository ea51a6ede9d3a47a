"""Calls of the matrix unit's products of bfloat16 from kernels whose operands lie in scratch."""

from __future__ import annotations

from hetero_tvm.codegen.amx import TILE_ROWS, TILE_WORDS, RowsProduct
from hetero_tvm.host.tvm import Buffer, Expr, tirx
from hetero_tvm.schedules.emit import Index, Kernel, as_index, int32

COLUMNS = 2 * TILE_ROWS
"""Keys, and elements of values, of a panel: two right tiles."""
LANES = 16
PAIR, WORD = 2, 4
"""Elements of a word, and its bytes."""


def words_of(elements: int) -> int:
    """Words of pairs that ``elements`` take, in whole steps of the matrix unit."""
    return -(-elements // (PAIR * TILE_WORDS)) * TILE_WORDS


def multiply(
    k: Kernel,
    product: RowsProduct,
    x: Buffer,
    at: tuple[Index, Index],
    words: Index,
    w: Buffer,
    place: list[Index],
    sums: Buffer,
    panel: Expr,
) -> None:
    """Emit ``sums[:, panel] = x[at:] @ w[place:]`` over so many words.

    Parameters
    ----------
    at : row and element of x that the product begins at.
    place : of the first words of W's panel of :data:`COLUMNS` columns.
    """
    row, column = at
    k.call(
        product.name,
        k.address(sums, [int32(0), panel * COLUMNS]),
        tirx.const(int(sums.shape[1]) * WORD, "int64"),
        k.address(x, [as_index(row), as_index(column)]),
        k.address(x, [as_index(row) + 1, as_index(column)]),
        k.address(w, [*place, int32(0)]),
        tirx.const(COLUMNS * WORD, "int64"),
        tirx.truncdiv(as_index(words), int32(TILE_WORDS)).astype("int64"),
        k.address(w, [*place, int32(0)]),
        k.address(sums, [int32(extent - 1) for extent in sums.shape]),
        k.address(x, [int32(extent - 1) for extent in x.shape]),
    )


def pieces(count: int, first: int = 0) -> list[tuple[int, int]]:
    """(start, width) of vectors of 16 from ``first`` on, and of the single elements behind them."""
    full = count // LANES
    vectors = [(first + vector * LANES, LANES) for vector in range(full)]
    return vectors + [(first + rest, 1) for rest in range(full * LANES, count)]
