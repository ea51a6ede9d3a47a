"""Files of records that several processes append to: whole lines, and who is alone with a folder."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hetero_tvm.records.files import append_lines, open_locked


def append_line(path: Path, line: str) -> tuple[int, int]:
    """Append one line durably (see :func:`append_lines`); gives the size of the file before and after."""
    with open_locked(path) as descriptor:
        return append_lines(descriptor, [line])


def lines_between(path: Path, begin: int, end: int | None) -> bytes:
    """Bytes of a file from ``begin`` to ``end``; to the end of its last whole line where that is None.

    b"" where there are none, or no file any more.
    """
    try:
        with path.open("rb") as file:
            file.seek(begin)
            data = file.read() if end is None else file.read(max(0, end - begin))
    except OSError:
        return b""
    return data[: data.rfind(b"\n") + 1] if end is None else data


def unwritable(path: Path) -> Path | None:
    """Obstacle to writing a file: itself, or the first folder above that exists; None when there is none."""
    existing = next(one for one in (path, *path.absolute().parents) if one.exists())
    if existing == path:
        return None if path.is_file() and os.access(path, os.W_OK) else path
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return existing
    try:  # some file systems, as /proc, take no files from those who may write there
        tempfile.TemporaryDirectory(dir=existing, prefix=".records-").cleanup()
    except OSError:
        return existing
    return None


@contextmanager
def alone_in(folder: Path) -> Iterator[bool]:
    """Whether no other process holds this folder; held while open, and no longer than this process lives.

    True also where the file system has no locks: nobody can tell there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield True
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        except BlockingIOError:
            alone = False
        except OSError:
            alone = True
        yield alone
    finally:
        os.close(descriptor)
