"""Tables and lines of text for a terminal, a file or a pipe of a given width.

A number is never cut and never broken over two lines: words give way, and where even that is not enough, a
line is longer than the terminal.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

LEAST_NAME = 16
"""Columns of the terminal that words keep before a column of numbers is left out."""
BORDERS = 3
"""Columns of the terminal that a table's column takes beside its words: a line, a blank on each side."""
_NARROWEST = 6
"""Columns of the terminal that words keep whatever happens."""
_ASCII = {**dict.fromkeys(map(ord, "━─"), "-"), **dict.fromkeys(map(ord, "┃│"), "|"), ord("…"): "~"}
_ASCII.update(dict.fromkeys(map(ord, "┏┓┡┩└┘┳╇┴"), "+"))


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Parameters
    ----------
    heading : text on top.
    text : whether it holds words, which may be folded; numbers stand on the right and stay whole.
    rank : columns of the highest rank are left out first where the terminal is too narrow; 0: never.
    """

    heading: str
    text: bool = False
    rank: int = 0


@dataclass
class Table:
    """A table with a title above and a caption below.

    Parameters
    ----------
    columns : what stands in them, from left to right.
    rows : a cell for each column.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    title: str = ""
    caption: str = ""

    def lines(self, width: int) -> Iterator[str]:
        """The table in lines of at most ``width`` columns, where its numbers leave that much room."""
        widths = self._widths(width)
        whole = max(width, sum(widths) + BORDERS * len(widths) + 1)
        if self.title:
            yield from fold(self.title, whole)
        yield "┏" + "┳".join("━" * (one + 2) for one in widths) + "┓"
        yield from self._row([column.heading for column in self.columns], widths, "┃")
        yield "┡" + "╇".join("━" * (one + 2) for one in widths) + "┩"
        for row in self.rows:
            yield from self._row(row, widths, "│")
        yield "└" + "┴".join("─" * (one + 2) for one in widths) + "┘"
        if self.caption:
            yield from fold(self.caption, whole)

    def _row(self, cells: Sequence[str], widths: Sequence[int], bar: str) -> Iterator[str]:
        folded = [
            fold(cell, room) if column.text else [cell]
            for cell, room, column in zip(cells, widths, self.columns, strict=True)
        ]
        for at in range(max(map(len, folded))):
            parts = []
            for lines, room, column in zip(folded, widths, self.columns, strict=True):
                text = lines[at] if at < len(lines) else ""
                blank = " " * (room - width_of(text))
                parts.append(f" {text}{blank} " if column.text else f" {blank}{text} ")
            yield bar + bar.join(parts) + bar

    def _widths(self, width: int) -> list[int]:
        """Width of each column: of its longest cell, less where words must give way, the widest first."""
        wanted = [
            max(width_of(line) for cell in (column.heading, *cells) for line in cell.split("\n"))
            for column, *cells in zip(self.columns, *self.rows, strict=True)
        ]
        widths = list(wanted)
        too_many = sum(widths) + BORDERS * len(widths) + 1 - width
        for least in (LEAST_NAME, _NARROWEST):
            words = [at for at, column in enumerate(self.columns) if column.text and widths[at] > least]
            while too_many > 0 and words:
                widths[max(words, key=lambda at: widths[at])] -= 1
                too_many -= 1
                words = [at for at in words if widths[at] > least]
        return widths


class Console:
    """Printer of lines and tables to a stream.

    Parameters
    ----------
    file : where to print.
    width : columns of it.
    """

    def __init__(self, file: TextIO, width: int):
        self.file, self.width = file, width
        self._encoding = getattr(file, "encoding", None) or "utf-8"

    def print(self, *things: Any, whole: bool = False) -> None:
        """Print tables, and texts folded at blanks; ``whole`` leaves long lines to whoever reads them."""
        for thing in things:
            if isinstance(thing, Table):
                lines = list(thing.lines(self.width))
            else:
                lines = str(thing).split("\n") if whole else fold(str(thing), self.width)
            self.file.write(self._encodable("\n".join(line.rstrip() for line in lines)) + "\n")
        self.file.flush()

    def _encodable(self, text: str) -> str:
        """Text in characters that the stream has; a table then is drawn with ``+``, ``-`` and ``|``."""
        try:
            text.encode(self._encoding)
        except UnicodeEncodeError:
            return text.translate(_ASCII).encode(self._encoding, "replace").decode(self._encoding)
        return text


def width_of(text: str) -> int:
    """Columns of a terminal that a text takes: Chinese characters take two, accents none."""
    if text.isascii():
        return len(text)
    wide = (
        2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
        if not unicodedata.combining(one)
    )
    return sum(wide)


def fold(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` columns, broken at blanks.

    A longer word is broken after one of its parts (``/``, ``_``, ``.``), or wherever it must be, though not
    inside a number that a line holds.
    """
    lines = []
    for paragraph in text.split("\n"):
        line = paragraph
        while width_of(line) > width:
            end = _fitting(line, width)
            blank = line.rfind(" ", 0, end + 1)
            if blank > 0 and line[:blank].strip():
                lines.append(line[:blank].rstrip())
                line = line[blank + 1 :].lstrip()
            else:
                part = max(line.rfind(mark, end // 2, end) for mark in "/_.") + 1
                part = part or _before_number(line, end)
                lines.append(line[:part])
                line = line[part:]
        lines.append(line)
    return lines


def _before_number(text: str, end: int) -> int:
    """Index up to ``end`` at which ``text`` breaks outside a number: ``d4`` would be read for ``d48``."""
    begin = end
    while text[begin].isdecimal() and begin > 0 and text[begin - 1].isdecimal():
        begin -= 1
    return begin or end


def _fitting(text: str, width: int) -> int:
    """Number of characters that ``width`` columns hold; one at least."""
    taken = 0
    for at, character in enumerate(text):
        taken += width_of(character)
        if taken > width:
            return max(1, at)
    return len(text)


def bytes_in_words(size: float) -> str:
    """Bytes in words, never all zeros: ``86.5 MB``, ``23 kB``, ``512 bytes``."""
    if size >= 1e5:
        return f"{size / 1e6:,.1f} MB"
    return f"{size / 1e3:.3g} kB" if size >= 1e3 else f"{size:.0f} bytes"


def paragraphs(text: str, width: int) -> str:
    """Text with lines of at most ``width`` columns, whose words stay whole.

    What goes on stands under the value of a line that begins with a name (``target   cpu``), else indented.
    """
    folded = []
    for line in text.split("\n"):
        head = re.match(r"\s*\S+ {2,}(?=\S)", line) or re.match(r"\s*", line)
        assert head is not None
        indent = head.end() if head[0].strip() else head.end() + 2
        folded += textwrap.wrap(
            line,
            width,
            subsequent_indent=" " * min(indent, width // 2),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(folded)
