"""Products of AMX tiles for convolutions, as LLVM IR that a kernel imports; ``amx.py`` tells of tiles."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from hetero_tvm.codegen.amx import (
    BF16,
    LINE,
    S8U8,
    STRIDE,
    TILE_ROWS,
    TILE_WORDS,
    WORD,
    Tiles,
    around,
    fetched,
    function,
)


@dataclass(frozen=True)
class WindowProduct:
    """``sums[16 * filters, 16 * tiles]``: filters to the left, words of an image at the places of a window to
    the right.

    ``int32 name(sums, sums_stride, w, w_tile, x, next_x, x_tile, ahead, last_sum, last_x)``: in bytes the
    stride of the sums' rows; from one tile of filters to the next; from one tile of pixels to the next.  Each
    step reads a left tile, which lie one behind the other, and the right one at the place of its tap, or
    behind the words of the step before.  The others are those of :class:`RowsProduct`.

    Attributes
    ----------
    filters, tiles : left and right tiles, 1 or 2 of each.
    words : words of one step.
    steps : steps of one tap.
    places : of each tap, bytes from ``x`` on.
    fetches : cache lines asked for per step.
    """

    filters: int
    tiles: int
    words: int
    steps: int
    places: tuple[int, ...]
    fetches: int = 0

    @property
    def name(self) -> str:
        """Name of the function."""
        places = hashlib.sha256(repr(self.places).encode()).hexdigest()[:12]
        form = f"{self.filters}x{self.tiles}x{self.words}x{self.steps}"
        return f"hetero_tvm_window_{form}_{places}_{self.fetches}"

    @property
    def ir(self) -> str:
        """Definition of the function and of those around it."""
        tiles, taps = Tiles((S8U8,) * self.filters, self.tiles), len(self.places)
        stride = self.words * WORD
        table = ", ".join(f"i64 {place}" for place in self.places)
        body = [
            *STRIDE,
            f"  %x_step = mul i64 %x_stride, {self.words}",
            *tiles.zero(),
            "  br label %tap",
            "tap:",
            "  %t = phi i64 [ 0, %entry ], [ %next_tap, %tap_done ]",
            "  %wt = phi ptr [ %w, %entry ], [ %wn, %tap_done ]",
            "  %ft = phi ptr [ %ahead, %entry ], [ %fn, %tap_done ]",
            f"  %place_at = getelementptr [{taps} x i64], ptr @{self.name}_places, i64 0, i64 %t",
            "  %place = load i64, ptr %place_at, align 8",
            "  %xt = getelementptr i8, ptr %x, i64 %place",
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [ 0, %tap ], [ %next, %loop ]",
            "  %wa = phi ptr [ %wt, %tap ], [ %wn, %loop ]",
            "  %fa = phi ptr [ %ft, %tap ], [ %fn, %loop ]",
            "  %xa = phi ptr [ %xt, %tap ], [ %xn, %loop ]",
            *tiles.multiply("%wa", "%w_tile", str(stride), "%xa", "%x_tile", "%x_stride"),
            *fetched(self.fetches),
            f"  %wn = getelementptr i8, ptr %wa, i64 {TILE_ROWS * stride}",
            "  %xn = getelementptr i8, ptr %xa, i64 %x_step",
            "  %next = add i64 %i, 1",
            f"  %more = icmp slt i64 %next, {self.steps}",
            "  br i1 %more, label %loop, label %tap_done",
            "tap_done:",
            "  %next_tap = add i64 %t, 1",
            f"  %more_taps = icmp slt i64 %next_tap, {taps}",
            "  br i1 %more_taps, label %tap, label %done",
            "done:",
            *tiles.store(),
        ]
        head = "ptr %w, i64 %w_tile, ptr %x, ptr %next_x, i64 %x_tile, ptr %ahead, ptr %last_sum, ptr %last_x"
        places = f"@{self.name}_places = linkonce_odr constant [{taps} x i64] [{table}], align 64\n"
        return places + function(self.name, head, body) + tiles.declared + around(self.words)


@dataclass(frozen=True)
class PixelProduct:
    """``sums[16 * rows, 16 * columns]``: pixels of an image to the left, packed filters to the right.

    ``int32 name(sums, x, w, ahead, last_sum, last_x)``.  Each step takes ``words`` pairs of bfloat16 at one
    place: all places of a plane, then the next plane.  Right tiles lie one behind the other in this order.
    All distances are in bytes; the last three arguments are those of :class:`RowsProduct`.

    Attributes
    ----------
    rows, columns : left and right tiles: 2 and up to 2, or 1 and up to 3.
    across, down : from one pixel of a tile to the next; from one tile to the next.
    places : of each step of a plane, from ``x`` on.
    planes, plane : how many, and from one to the next.
    fetches : cache lines asked for per step.
    words : words of one step.
    """

    rows: int
    columns: int
    across: int
    down: int
    places: tuple[int, ...]
    planes: int
    plane: int
    fetches: int = 0
    words: int = TILE_WORDS

    @property
    def name(self) -> str:
        """Name of the function."""
        form = hashlib.sha256(repr(self).encode()).hexdigest()[:16]
        return f"hetero_tvm_pixels_{self.rows}x{self.columns}_{form}"

    @property
    def ir(self) -> str:
        """Definition of the function and of those around it."""
        tiles, taps = Tiles((BF16,) * self.rows, self.columns), len(self.places)
        line = self.columns * TILE_WORDS * WORD
        table = ", ".join(f"i64 {place}" for place in self.places)
        body = [
            f"  %sums_stride = add i64 0, {line}",
            *tiles.zero(),
            "  br label %plane",
            "plane:",
            "  %p = phi i64 [ 0, %entry ], [ %next_plane, %plane_done ]",
            "  %xp = phi ptr [ %x, %entry ], [ %xn, %plane_done ]",
            "  %wp = phi ptr [ %w, %entry ], [ %wn, %plane_done ]",
            "  %fp = phi ptr [ %ahead, %entry ], [ %fn, %plane_done ]",
            "  br label %loop",
            "loop:",
            "  %t = phi i64 [ 0, %plane ], [ %next, %loop ]",
            "  %wa = phi ptr [ %wp, %plane ], [ %wn, %loop ]",
            "  %fa = phi ptr [ %fp, %plane ], [ %fn, %loop ]",
            f"  %place_at = getelementptr [{taps} x i64], ptr @{self.name}_places, i64 0, i64 %t",
            "  %place = load i64, ptr %place_at, align 8",
            "  %xa = getelementptr i8, ptr %xp, i64 %place",
            *tiles.multiply("%xa", str(self.down), str(self.across), "%wa", str(LINE), str(line)),
            *fetched(self.fetches),
            f"  %wn = getelementptr i8, ptr %wa, i64 {self.words * line}",
            "  %next = add i64 %t, 1",
            f"  %more = icmp slt i64 %next, {taps}",
            "  br i1 %more, label %loop, label %plane_done",
            "plane_done:",
            f"  %xn = getelementptr i8, ptr %xp, i64 {self.plane}",
            "  %next_plane = add i64 %p, 1",
            f"  %more_planes = icmp slt i64 %next_plane, {self.planes}",
            "  br i1 %more_planes, label %plane, label %done",
            "done:",
            *tiles.store(),
        ]
        head = "ptr %x, ptr %w, ptr %ahead, ptr %last_sum, ptr %last_x"
        places = f"@{self.name}_places = linkonce_odr constant [{taps} x i64] [{table}], align 64\n"
        return places + function(self.name, head, body, "") + tiles.declared + around(self.words)
