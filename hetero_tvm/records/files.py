"""Files of lines that several processes append to, and replace, at once."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hetero_tvm.errors import RecordError
from hetero_tvm.host.files import is_full


@contextlib.contextmanager
def open_locked(path: Path) -> Iterator[int]:
    """Descriptor of a record file that nobody else writes to meanwhile; made where there is none.

    A file that was replaced by another one while this waited for it is opened again.  An empty file is not
    left behind by what fails.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if _is_at(descriptor, path):
                    with _unless_empty(descriptor, path):
                        yield descriptor
                    return
            finally:
                os.close(descriptor)
    except OSError as error:
        room = "free some space, or " if is_full(error) else ""
        raise RecordError(
            f"the tuning record cannot be written to {path}: {error.strerror}",
            hint=f"{room}name another folder: --logs, or logs= in Python",
        ) from error


@contextlib.contextmanager
def _unless_empty(descriptor: int, path: Path) -> Iterator[None]:
    """Remove a locked file that is empty where this ends with an error; who waits for it makes another."""
    try:
        yield
    except BaseException:
        if os.fstat(descriptor).st_size == 0:
            with contextlib.suppress(OSError):
                path.unlink()
        raise


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def append_lines(descriptor: int, lines: Sequence[str]) -> tuple[int, int]:
    """Append lines durably; gives the size of the file before and after.

    A file that ends in the middle of a line gets a newline first.
    """
    size = os.fstat(descriptor).st_size
    if not lines:
        return size, size
    torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
    data = b"\n" * torn + "".join(line + "\n" for line in lines).encode()
    try:
        if os.write(descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)  # what is there of the lines is no record
        raise
    return size, size + len(data)
