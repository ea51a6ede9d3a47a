"""Files that appear whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors that say that a disk, a quota or a limit is exhausted."""


@contextlib.contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Path to write to in place of ``path``, which gets the content when the block ends without an error.

    Processes that use the old file keep it.  What is no plain file (a terminal, ``/dev/null``) is written to
    directly.

    Raises
    ------
    OSError : as the block, or the file system, raises it; ``path`` is what it was then.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        yield path
        return
    path = path.resolve()  # a link stays one
    fresh = path.with_name(f".{secrets.token_hex(6)}{path.suffix}")
    try:
        yield fresh
        sync(fresh)
        os.replace(fresh, path)
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink()


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file that appears whole or not at all (see :func:`replaced`); text in UTF-8, with names of
    files that are none byte by byte.

    Raises
    ------
    OSError : the file system's error, with the name of the file; ``path`` is what it was then.
    """
    try:
        with replaced(path) as fresh:
            fresh.write_bytes(
                content.encode(errors="surrogateescape") if isinstance(content, str) else content
            )
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from error


_LOCKS = 32
"""Files that stand for all folders; two of one file wait for each other now and then."""


@contextlib.contextmanager
def alone(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Wait for other processes and threads of this user that hold ``folder``, and hold it while this is open.

    The lock is a file among the temporary ones: the folder itself may be locked by who made it, for as long
    as it is used.  Where no such file can be made, or the file system has no locks, nobody waits.
    """
    found = os.stat(folder)
    stripe = (found.st_dev + found.st_ino) % _LOCKS
    try:
        path = Path(tempfile.gettempdir()) / f".hetero_tvm-{os.getuid()}-{stripe:02}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def odd_kind(path: str | os.PathLike[str], pipes: bool = False) -> str | None:
    """Kind of what is there in place of a plain file, and could be read without end; None for a file.

    Parameters
    ----------
    pipes : whether the end of a pipe that this process holds (``/dev/stdin``) is as good as a file.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # whoever opens it says why
        return None
    if stat.S_ISFIFO(mode) and pipes and os.path.realpath(path).startswith("/proc/"):
        return None
    kinds = (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((text for is_kind, text in kinds if is_kind(mode)), None)


def sync(path: str | os.PathLike[str]) -> None:
    """Put a file's content on the disk: some file systems tell only then that there is no room."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_full(error: BaseException) -> bool:
    """Whether an error, of the system or in a compiler's words, says that there is no room."""
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return True
    text = str(error)
    return any(os.strerror(number) in text for number in NO_ROOM)
