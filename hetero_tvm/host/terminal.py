"""Text for people: tables that fit a terminal, where numbers are never cut, and numbers in few digits.

Names give way first, then the columns that matter least.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from hetero_tvm.host.tables import BORDERS, LEAST_NAME, Column, Console, Table, width_of

__all__ = ["Column", "Console", "Table", "console", "figure", "milliseconds", "number_of", "percent", "table"]

_FILE_WIDTH = 120
"""Columns of a file or pipe, which have no width of their own."""
_MOST_LINES = 2
"""Lines that a name may take; of longer ones the middle is left out."""
_LONGEST_WHOLE = 64
"""Characters of names that are shown whole in any case."""


def console(stream: TextIO | None = None) -> Console:
    """Printer to a stream (default: stdout) as wide as its terminal; files and pipes have 120 columns.

    ``COLUMNS`` is used before either.
    """
    stream = stream or sys.stdout
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isdecimal() and int(wanted):
        return Console(stream, int(wanted))
    try:
        width = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):  # a stream that is no file
        width = 0
    return Console(stream, width or _FILE_WIDTH)


def table(
    title: str, columns: Sequence[Column], rows: Sequence[Sequence[Any]], width: int, caption: str = ""
) -> Table:
    """A table of at most ``width`` columns.

    What is left out for want of room is named in the caption, so that nobody believes it was not measured.
    """
    cells = [[_printable(str(cell)) for cell in row] for row in rows]
    kept = list(range(len(columns)))
    needs = [_need(column, [row[at] for row in cells]) for at, column in enumerate(columns)]
    while _total(needs, kept) > width:
        ranked = [at for at in kept if columns[at].rank]
        if not ranked:
            break
        kept.remove(max(ranked, key=lambda at: (columns[at].rank, at)))
    left_out = [column.heading for at, column in enumerate(columns) if at not in kept]
    if left_out:
        caption = f"left out at {width} columns: {', '.join(left_out)} (--json has all)\n{caption}".rstrip()
    words = [at for at in kept if columns[at].text]
    room = width - _total([0 if at in words else need for at, need in enumerate(needs)], kept)
    most = max(_LONGEST_WHOLE, _MOST_LINES * (room // max(1, len(words))))
    shown = [[_shortened(row[at], most) if at in words else row[at] for at in kept] for row in cells]
    return Table([columns[at] for at in kept], shown, title, caption)


def _printable(text: str) -> str:
    """A text without what a terminal would obey: names come from files that others have made."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def _shortened(word: str, most: int) -> str:
    """A name without its middle where it is one of the endless ones that compilers make."""
    if len(word) <= most or " " in word:
        return word
    return f"{word[: most - most // 3 - 1]}…{word[-(most // 3) :]}"


def _need(column: Column, cells: Sequence[str]) -> int:
    """Columns of the terminal without which a column cannot be read."""
    longest = max(map(width_of, [column.heading, *cells]))
    return min(longest, LEAST_NAME) if column.text else longest


def _total(needs: Sequence[int], kept: Sequence[int]) -> int:
    return sum(needs[at] + BORDERS for at in kept) + 1


def milliseconds(value: float) -> str:
    """A time with three significant digits at least, and no exponent: never 0.000, nor 4.1e-05."""
    if 0 < value < 1e-4:
        return f"{value:.7f}".rstrip("0")
    return f"{value:.3f}" if value >= 0.1 or value == 0 else f"{value:.3g}"


def figure(value: float, digits: int = 3) -> str:
    """A number in so many significant digits at least: never 0.00, nor 1.2e+03."""
    return f"{value:.0f}" if value >= 10 ** (digits - 1) or value == 0 else f"{value:.{digits}g}"


def operations(flops: float) -> str:
    """``2.87 GFLOP``, ``0.962 MFLOP``: a count of operations in the unit that shows its digits."""
    return f"{figure(flops / 1e9)} GFLOP" if flops >= 1e8 or flops == 0 else f"{flops / 1e6:.3g} MFLOP"


def number_of(count: int, thing: str) -> str:
    """``1 kernel``, ``2 kernels``, ``0 near misses``: a count and what is counted."""
    plural = "" if count == 1 else "es" if thing.endswith("s") else "s"
    return f"{count} {thing}{plural}"


def record_cell(origin: str) -> str:
    """Name of what a kernel was built from, without the word that heads its column."""
    return origin.replace("record ", "", 1)


def percent(fraction: float | None) -> str:
    """A fraction as per cent; ``>100%`` where weights that the roofline expects from memory lie in caches."""
    if fraction is None:
        return ""
    return ">100%" if fraction > 1.02 else f"{fraction:.0%}"
