"""Scratch folders that no killed process leaves behind for long."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from hetero_tvm.errors import UsageError

_SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder in ``parent`` for as long as this is open; those of processes that were killed are removed.

    ``prefix`` (hidden: ``.export-``) is what their names begin with.  The owner of a folder holds a lock on
    it, which ends with the process: a folder that nobody holds is litter.
    """
    _sweep(parent, prefix)
    path, descriptor = _make(parent, prefix)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def temporary_folder(prefix: str) -> AbstractContextManager[Path]:
    """A :func:`scratch_folder` where temporary files lie; ``prefix`` begins with ``hetero_tvm-``.

    In a container whose root is read-only these lie in shared memory.

    Raises
    ------
    UsageError : nothing can be written to at all.
    """
    try:
        return scratch_folder(Path(tempfile.gettempdir()), prefix)
    except FileNotFoundError as error:
        if os.access(_SHARED_MEMORY, os.W_OK | os.X_OK):
            return scratch_folder(_SHARED_MEMORY, prefix)
        raise UsageError(
            "there is no folder for temporary files", hint="export TMPDIR=/path/to/a/folder"
        ) from error


def _make(parent: Path, prefix: str) -> tuple[Path, int]:
    """A new folder, and the descriptor that holds its lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # swept by another process before it was ours
            continue
        if _locked(descriptor) is not False and path.is_dir():
            return path, descriptor
        os.close(descriptor)


def _locked(descriptor: int) -> bool | None:
    """Whether we have the lock; None where the file system has none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _sweep(parent: Path, prefix: str) -> None:
    for path in parent.glob(f"{prefix}*"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # gone meanwhile, a file, or not ours to read
            continue
        try:
            if _locked(descriptor):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)
