"""A checksum of code and constants inside the library, so that damage is an error and not a wrong number.

It covers what the dynamic loader maps (the segments of the file), so a library may be stripped, and moved
without its sidecar.  A field in a section of its own holds it: :func:`seal` writes it after linking.

Words of 64 bits go to lanes of a polynomial (odd multiplier, modulo 2**64), which NumPy computes for all
lanes at once; a hash of the lanes is kept.  One changed word always changes its lane.  3 to 4 GB/s of a
core, where SHA-256 makes 1 to 2.  It is no protection against intent.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from pathlib import Path

import numpy as np

from hetero_tvm.errors import BuildError, LibraryError
from hetero_tvm.runtime import elf

SECTION = ".hetero_sum"
# Written in two parts, so that the marker occurs in the libraries only.
MAGIC = b"\x89hetero_tvm" + b"-sum\r\n\x1a\n"
SIZE = 16
_LANES = 8192
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_BLOCK = 8 * _LANES
_RESIDENT = 1024
"""Blocks that may be in memory at a time."""
_verified: set[tuple[int, int, int, int]] = set()


def seal(path: str | os.PathLike[str]) -> None:
    """Write the checksum of a linked library into its field.

    Raises
    ------
    BuildError : there is no such field.
    """
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        at = _field(data)
        if at is None:
            raise BuildError(f"{path} has no room for a checksum", hint="compile embed_source(...) into it")
        data[at : at + SIZE] = _checksum(data, at)


def verify(path: Path) -> None:
    """Compare a library with its checksum, once per file; one without, from an older release, passes.

    Raises
    ------
    LibraryError : a byte is not what was exported.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            if identity in _verified:
                return
            at = _field(data)
            good = at is None or bytes(data[at : at + SIZE]) == _checksum(data, at)
    except (OSError, ValueError, struct.error) as error:
        raise LibraryError(f"cannot read {path}: {error}", hint="copy or export it again") from error
    if not good:
        raise LibraryError(
            f"{path} is damaged: code or constants are not what was exported (wrong checksum)",
            hint="copy or export it again; verify=False or HETERO_TVM_VERIFY=0 loads it all the same",
        )
    _verified.add(identity)


def _field(data: mmap.mmap) -> int | None:
    """Offset of the checksum; None where the library has none.

    Raises :class:`ValueError` where its mark is overwritten: a page of zeros must not pass.
    """
    section = elf.section(data, SECTION.encode())
    at = section[0] if section else data.find(MAGIC)
    if at < 0:
        return None
    if at + len(MAGIC) + SIZE > len(data) or data[at : at + len(MAGIC)] != MAGIC:
        raise ValueError("the place of its checksum is damaged")
    return at + len(MAGIC)


def _checksum(data: mmap.mmap, field: int) -> bytes:
    digest = hashlib.blake2b(digest_size=SIZE)
    for start, stop in elf.segments(data):
        # The ELF header names the section table, which `strip` moves.
        for low, high in _without(max(start, elf.HEADER), stop, field, field + SIZE):
            digest.update(struct.pack("<Q", high - low))
            _add(digest, np.frombuffer(data, np.uint8, high - low, low), data)
    return digest.digest()


def _without(start: int, stop: int, low: int, high: int) -> list[tuple[int, int]]:
    """A range of bytes without another."""
    parts = [(start, min(stop, low)), (max(start, high), stop)]
    return [part for part in parts if part[0] < part[1]]


def _add(digest: hashlib._Hash, part: np.ndarray, data: mmap.mmap) -> None:
    whole = len(part) // _BLOCK * _BLOCK
    lanes = np.zeros(_LANES, np.uint64)
    for number, block in enumerate(part[:whole].view("<u8").reshape(-1, _LANES)):
        np.multiply(lanes, _FACTOR, out=lanes)
        np.add(lanes, block, out=lanes)
        if number % _RESIDENT == 0:
            data.madvise(mmap.MADV_DONTNEED)  # the file's pages, which would stay in memory
    digest.update(lanes.tobytes())
    digest.update(part[whole:].tobytes())
