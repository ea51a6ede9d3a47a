"""Buffers with live ranges, and MiniMalloc's CSV format for them.

The format is that of https://github.com/google/minimalloc: a header ``id,lower,upper,size``
(columns in any order, ``alignment`` and ``offset`` optional, others ignored), one buffer a row,
live in ``[lower, upper)``, sizes in bytes.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hetero_tvm.errors import UsageError, shortened
from hetero_tvm.host.files import odd_kind, replaced

LIMIT = 2**62
"""Times and the sum of all sizes must stay under this in magnitude: the planner is 64 bits wide."""

_REQUIRED = ("id", "lower", "upper", "size")
_OPTIONAL = ("alignment", "offset")
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")


@dataclass(frozen=True)
class Buffer:
    """A block of memory that is live in ``[lower, upper)``.

    ``size`` and ``alignment`` (a power of two; None: the planner's) are in bytes; ``lower`` and
    ``upper`` are in steps of any kind, for instance positions in a schedule.  A buffer with
    ``upper == lower`` or size 0 takes no memory.
    """

    id: str
    lower: int
    upper: int
    size: int
    alignment: int | None = None

    def problem(self) -> str | None:
        """Mistake in this buffer as text, or None."""
        if self.upper < self.lower:
            return f"upper {self.upper} is before lower {self.lower}"
        if self.size < 0:
            return f"size {self.size} is negative"
        if max(abs(self.lower), abs(self.upper), self.size) >= LIMIT:
            return "a value is beyond 2**62"
        if self.alignment is not None and not is_alignment(self.alignment):
            return f"alignment {self.alignment} is no power of two (up to 2**32)"
        return None


@dataclass(frozen=True)
class Problem:
    """Buffers to be given offsets in one arena.  Ids are unique.

    Raises :class:`UsageError` that lists what is wrong, buffer by buffer.
    """

    buffers: tuple[Buffer, ...]

    def __init__(self, buffers: Iterable[Buffer]):
        object.__setattr__(self, "buffers", tuple(buffers))
        found = [f"buffer {b.id!r}: {text}" for b in self.buffers if (text := b.problem())]
        found += [
            f"buffer {name!r}: this id is used {times} times" for name, times in _repeated(self.buffers)
        ]
        if not found and sum(b.size for b in self.buffers) >= LIMIT:
            found = ["the sum of all sizes is beyond 2**62"]
        if found:
            raise UsageError("the planning problem is not valid", problems=shortened(found))

    def __len__(self) -> int:
        return len(self.buffers)

    def max_live(self) -> int:
        """Largest number of bytes live at any one time: no plan has a lower peak."""
        return max_live((b.lower, b.upper, b.size) for b in self.buffers)

    def fullest(self) -> tuple[int, list[Buffer]]:
        """The first time at which most bytes are live, and the buffers that are; (0, []) without any."""
        changes = [(b.lower, b.size) for b in self.buffers if b.upper > b.lower]
        changes += [(b.upper, -b.size) for b in self.buffers if b.upper > b.lower]
        most = live = at = 0
        for time, group in itertools.groupby(sorted(changes), key=lambda change: change[0]):
            live += sum(size for _, size in group)
            if live > most:
                most, at = live, time
        return at, [b for b in self.buffers if b.lower <= at < b.upper and b.size] if most else []


def is_alignment(value: int) -> bool:
    """Whether ``value`` is a power of two up to 2**32."""
    return 0 < value <= 2**32 and value & (value - 1) == 0


def max_live(ranges: Iterable[tuple[int, int, int]]) -> int:
    """The highest sum of sizes over time, of (lower, upper, size)."""
    changes: dict[int, int] = {}
    for lower, upper, size in ranges:
        if upper > lower:
            changes[lower] = changes.get(lower, 0) + size
            changes[upper] = changes.get(upper, 0) - size
    live = peak = 0
    for time in sorted(changes):
        live += changes[time]
        peak = max(peak, live)
    return peak


# --- CSV -------------------------------------------------------------------------------------


def read_csv(path: str | Path) -> tuple[Problem, dict[str, int]]:
    """The buffers of a file, and their offsets where it has an ``offset`` column (else empty).

    Raises :class:`UsageError` that lists the lines with mistakes.
    """
    if (kind := odd_kind(path, pipes=True)) is not None:
        raise UsageError(f"{path} is {kind}, not a CSV file", hint="name a file, or /dev/stdin")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="name a CSV file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file (UTF-8): {error.reason}") from error
    return parse_csv(text, str(path))


def parse_csv(text: str, name: str = "the CSV") -> tuple[Problem, dict[str, int]]:
    """Read a text in the format of :func:`read_csv`'s files; ``name`` is for messages."""
    try:
        rows = [(line, row) for line, row in _rows(text) if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise UsageError(f"{name} is not a CSV file: {error}") from error
    if not rows:
        raise UsageError(f"{name} is empty", hint=f"its first line must be {','.join(_REQUIRED)}")
    columns = _columns(rows[0][1], name)
    buffers: list[Buffer] = []
    offsets: dict[str, int] = {}
    lines: dict[str, int] = {}
    mistakes: list[str] = []
    for line, row in rows[1:]:
        found, buffer, offset = _buffer(row, columns)
        if any(cell.strip() for cell in row[len(rows[0][1]) :]):
            found.append(f"{len(row)} cells, but the first line names {len(rows[0][1])} columns")
        if buffer is not None and buffer.id in lines:
            found.append(f"id {buffer.id!r} was used in line {lines[buffer.id]}")
        mistakes += [f"line {line}: {text}" for text in found]
        if buffer is None or found:
            continue
        lines[buffer.id] = line
        buffers.append(buffer)
        if offset is not None:
            offsets[buffer.id] = offset
    if mistakes:
        raise UsageError(f"{name} has lines that are not valid", problems=shortened(mistakes))
    return Problem(buffers), offsets


def write_csv(path: str | Path, problem: Problem, offsets: Mapping[str, int] | None = None) -> None:
    """Write the buffers, with an ``offset`` column when offsets are given.

    Raises :class:`UsageError` when the file cannot be written.
    """
    try:
        with replaced(path) as fresh:
            fresh.write_text(format_csv(problem, offsets), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def format_csv(problem: Problem, offsets: Mapping[str, int] | None = None) -> str:
    """The text that :func:`write_csv` writes."""
    aligned = any(b.alignment is not None for b in problem.buffers)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    extra = [*(["alignment"] if aligned else []), *(["offset"] if offsets is not None else [])]
    writer.writerow([*_REQUIRED, *extra])
    for b in problem.buffers:
        row: list[object] = [b.id, b.lower, b.upper, b.size]
        if aligned:
            row.append("" if b.alignment is None else b.alignment)
        if offsets is not None:
            row.append(offsets[b.id])
        writer.writerow(row)
    return out.getvalue()


def _rows(text: str) -> Iterable[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text), strict=True)
    for row in reader:
        yield reader.line_num, row


def _columns(header: Sequence[str], name: str) -> dict[str, int]:
    columns: dict[str, int] = {}
    twice = set()
    for index, cell in enumerate(header):
        if columns.setdefault(cell.strip().lower(), index) != index and cell.strip():
            twice.add(cell.strip().lower())
    if twice & {*_REQUIRED, *_OPTIONAL}:
        raise UsageError(f"{name} has two columns {', '.join(sorted(twice))}", hint="remove one of the two")
    missing = [column for column in _REQUIRED if column not in columns]
    if missing:
        raise UsageError(
            f"{name} has no column {', '.join(missing)}; its first line is {','.join(header)[:200]!r}",
            hint=f"the first line must name the columns: {','.join(_REQUIRED)}",
        )
    return columns


def _buffer(row: Sequence[str], columns: Mapping[str, int]) -> tuple[list[str], Buffer | None, int | None]:
    """Read one row: (mistakes, buffer or None, offset or None)."""
    found: list[str] = []

    def number(column: str, needed: bool) -> int | None:
        index = columns.get(column)
        cell = row[index].strip() if index is not None and index < len(row) else ""
        if not cell and not needed:
            return None
        if _WHOLE.fullmatch(cell):
            return int(cell)
        found.append(f"{column} is missing" if not cell else f"{column} {cell[:40]!r} is no whole number")
        return None

    name = row[columns["id"]].strip() if columns["id"] < len(row) else ""
    if not name:
        found.append("id is missing")
    lower, upper, size = (number(column, True) for column in _REQUIRED[1:])
    alignment, offset = number("alignment", False), number("offset", False)
    if found or lower is None or upper is None or size is None:
        return found, None, None
    buffer = Buffer(name, lower, upper, size, alignment)
    if text := buffer.problem():
        found.append(text)
    return found, buffer, offset


def _repeated(buffers: Sequence[Buffer]) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for buffer in buffers:
        counts[buffer.id] = counts.get(buffer.id, 0) + 1
    return [(name, count) for name, count in counts.items() if count > 1]
