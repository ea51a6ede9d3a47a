"""The parts of the ELF format that show a library's machine and sections without loading it."""

from __future__ import annotations

import mmap
import platform
import struct
from pathlib import Path

from hetero_tvm.errors import LibraryError

HEADER = 64
"""Size of the ELF header."""

_MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_ALIASES = {"AMD64": "x86_64", "arm64": "aarch64"}


def forbidden(path: Path, error: PermissionError) -> LibraryError:
    """Error of ours for a library that this user may not read, which is no damaged one."""
    hint = "let this user read it (chmod, chown), or name another"
    return LibraryError(f"{path} cannot be read: {error.strerror}", hint=hint)


def check_machine(path: Path) -> None:
    """Refuse a file that the dynamic loader of this machine would refuse, and say why.

    Raises :class:`LibraryError` when ``path`` is no 64-bit shared library of this architecture, or may not be
    read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except PermissionError as error:
        raise forbidden(path, error) from error
    if len(head) < 64 or head[:4] != b"\x7fELF":
        raise LibraryError(
            f"{path} is not a shared library (no ELF header)",
            hint="name what build or tune wrote, or export it again",
        )
    kind, machine = struct.unpack_from("<HH", head, 16)
    built_for = _MACHINES.get(machine, f"ELF machine {machine}")
    here = _ALIASES.get(platform.machine(), platform.machine())
    if head[4] != 2 or head[5] != 1 or built_for != here:
        raise LibraryError(
            f"{path} is built for {built_for}, this machine is {here}",
            hint="build the model again for this machine (--target)",
        )
    if kind != 3:
        raise LibraryError(f"{path} is an ELF file, but not a shared library", hint="export to a .so")


def section(data: mmap.mmap | bytes, name: bytes) -> tuple[int, int] | None:
    """(offset, size) of a section of a 64-bit little-endian ELF file, or None.

    Raises :class:`ValueError` when the section table lies beyond the end: the file is cut off.
    """
    if len(data) < 64:
        raise ValueError("shorter than an ELF header")
    (table,) = struct.unpack_from("<Q", data, 40)
    entry, count, names_index = struct.unpack_from("<HHH", data, 58)
    if not table or not count:
        return None
    if entry < 64 or table + entry * count > len(data) or names_index >= count:
        raise ValueError("its section table lies beyond its end")

    def header(index: int) -> tuple[int, int, int]:
        at = table + index * entry
        (label,) = struct.unpack_from("<I", data, at)
        offset, size = struct.unpack_from("<QQ", data, at + 24)
        return label, offset, size

    _, names_at, names_size = header(names_index)
    names = data[names_at : names_at + names_size]
    for index in range(count):
        label, offset, size = header(index)
        if names[label : names.find(b"\0", label)] == name:
            return offset, size
    return None


def segments(data: mmap.mmap | bytes) -> list[tuple[int, int]]:
    """(start, end) in the file of what the dynamic loader maps.

    Raises :class:`ValueError` when the table of segments or a segment lies beyond the end.
    """
    (table,) = struct.unpack_from("<Q", data, 32)
    entry, count = struct.unpack_from("<HH", data, 54)
    if entry < 56 or table + entry * count > len(data):
        raise ValueError("its table of segments lies beyond its end")
    found = []
    for at in range(table, table + entry * count, entry):
        (kind,) = struct.unpack_from("<I", data, at)
        (offset,) = struct.unpack_from("<Q", data, at + 8)
        (size,) = struct.unpack_from("<Q", data, at + 32)
        if kind == 1:
            if offset + size > len(data):
                raise ValueError("a segment lies beyond its end")
            found.append((offset, offset + size))
    return found
