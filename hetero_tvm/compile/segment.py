"""One more segment for a linked library: its large constants, written straight to the file.

Through the compiler and the linker they would be in memory three times, and code could not reach what lies
2 GiB away.  The dynamic loader maps the segment; a section over it keeps it when the library is stripped.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hetero_tvm.errors import BuildError
from hetero_tvm.runtime import elf

SEGMENT_FLAGS = ["-Wl,--build-id=sha1"]
"""Options of the linker: the note becomes the entry of the segment in the file's table."""

SECTION = b".hetero_data"
PLACE = b".hetero_at"
"""Section of the field that tells the code where the segment lies (``runtime/cpp/constants.cc``)."""
_MAGIC = b"hetero_tvm-data\0"
_PAGE = 1 << 16  # the largest page of any processor
_LOAD, _NOTE = 1, 4
_SEGMENT, _SECTION = struct.Struct("<IIQQQQQQ"), struct.Struct("<IIQQQQIIQQ")


def append_segment(path: Path, size: int, pieces: Iterable[Any]) -> None:
    """Append ``pieces``, of ``size`` bytes together, as a read-only segment that the loader maps.

    Raises
    ------
    BuildError : the linker left no entry for it in the library.
    OSError : the file cannot be written.
    """
    with path.open("r+b") as file:
        header = file.read(elf.HEADER)
        segment_table, section_table = struct.unpack_from("<QQ", header, 32)
        segments, sections, names = struct.unpack_from("<H2xHH", header, 56)
        entries = [_read(file, _SEGMENT, segment_table, n) for n in range(segments)]
        loads = [n for n, entry in enumerate(entries) if entry[0] == _LOAD]
        notes = [n for n, entry in enumerate(entries) if entry[0] == _NOTE and n > max(loads, default=n)]
        rows = [_read(file, _SECTION, section_table, n) for n in range(sections)]
        texts = _bytes(file, rows[names][4], rows[names][5])
        place = [row for row in rows if _name(texts, row[0]) == PLACE]
        if not notes or not place or _bytes(file, place[0][4], len(_MAGIC)) != _MAGIC:
            raise BuildError(
                f"the linker left no place for the constants in {path.name}",
                hint="use g++ or clang++ with GNU ld, gold or lld (CXX names the compiler)",
            )
        address = _aligned(max(entries[n][3] + entries[n][6] for n in loads))
        offset = _aligned(file.seek(0, os.SEEK_END))
        file.truncate(offset)
        file.seek(offset)
        written = sum(file.write(piece) for piece in pieces)
        if written != size:
            raise BuildError(f"{written} bytes of constants were written to {path.name}, not {size}")
        # The table of sections, with one more, goes behind.
        at = file.tell()
        file.write(texts + SECTION + b"\0")
        rows[names] = (*rows[names][:4], at, len(texts) + len(SECTION) + 1, *rows[names][6:])
        rows.append((len(texts), 1, 2, address, offset, size, 0, 0, 64, 0))
        file.write(bytes(-file.tell() % 8))
        table = file.tell()
        for row in rows:
            file.write(_SECTION.pack(*row))
        file.seek(segment_table + notes[0] * _SEGMENT.size)
        file.write(_SEGMENT.pack(_LOAD, 4, offset, address, address, size, size, _PAGE))
        file.seek(place[0][4] + len(_MAGIC))
        file.write(struct.pack("<QQ", address - place[0][3], size))
        file.seek(40)
        file.write(struct.pack("<Q", table))
        file.seek(60)
        file.write(struct.pack("<H", len(rows)))


def _read(file: Any, form: struct.Struct, table: int, number: int) -> tuple[int, ...]:
    return form.unpack(_bytes(file, table + number * form.size, form.size))


def _bytes(file: Any, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _name(texts: bytes, start: int) -> bytes:
    return texts[start : texts.find(b"\0", start)]


def _aligned(size: int) -> int:
    return -(-size // _PAGE) * _PAGE
