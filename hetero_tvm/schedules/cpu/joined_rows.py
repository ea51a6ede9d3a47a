"""Rows of an image that the tiles of a matrix unit go through from end to end, and how many at a time.

Where the rows of what tiles read lie one behind the other, a tap is the same offset for all pixels: tiles may
go on across the ends of rows, and what is computed there is left out.
"""

from __future__ import annotations

from collections.abc import Callable

from hetero_tvm.codegen.amx import TILE_ROWS

_MOST_TILES = 8
"""Tiles of pixels whose sums stay in L1 with those of all filters of a product."""


def joined_tiles(rows: int, width: int, pitch: int) -> int:
    """Tiles of ``rows`` rows of ``width`` pixels, ``pitch`` from one to the next."""
    return -(-((rows - 1) * pitch + width) // TILE_ROWS)


def rows_to_join(
    height: int, width: int, pitch: int, cost: Callable[[int, int], float], most_cost: float
) -> int:
    """Rows at a time for which an image of ``height`` rows costs least; 0 where none costs less than
    ``most_cost``.

    ``cost(rows, tiles)`` : of so many rows and their tiles.
    """

    def whole(rows: int) -> float:
        bands, rest = divmod(height, rows)
        total = bands * cost(rows, joined_tiles(rows, width, pitch))
        return total + (cost(rest, joined_tiles(rest, width, pitch)) if rest else 0.0)

    most = min(height, (_MOST_TILES * TILE_ROWS - width) // pitch + 1)
    best = min(range(2, most + 1), key=whole, default=0)
    return best if best and whole(best) < most_cost else 0
