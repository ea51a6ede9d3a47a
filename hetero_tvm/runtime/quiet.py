"""Drop the lines that TVM prints for every constant, and nothing else."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import BinaryIO

# TVM logs one such line per constant that it saves or loads; there is no switch for it.
_NOISE = re.compile(rb"[^\n]*Scope (?:Saving|Loaded):[^\n]*(?:\n|\Z)")
_lock = threading.RLock()
_depth = 0


@contextlib.contextmanager
def quiet_fd2() -> Iterator[None]:
    """While open, TVM's "Scope Saving/Loaded" lines do not reach file descriptor 2.

    Everything else written there (by this process or its children) appears, in order, when the
    block ends.  Nested blocks act as one; other threads' messages are delayed likewise.
    """
    global _depth
    with _lock:
        if _depth:
            yield
            return
        try:
            saved = os.dup(2)
        except OSError:  # no such descriptor: nobody is listening
            yield
            return
        _flush_stderr()
        _depth += 1
        try:
            with _held_text() as held:
                os.dup2(held.fileno(), 2)
                try:
                    yield
                finally:
                    _flush_stderr()
                    os.dup2(saved, 2)
                    held.seek(0)
                    rest = _NOISE.sub(b"", held.read())
                    while rest:
                        rest = rest[os.write(2, rest) :]
        finally:
            _depth -= 1
            os.close(saved)


def _held_text() -> BinaryIO:
    """A file in memory, so that no folder need be writable; a temporary one where the kernel has none."""
    try:
        return open(os.memfd_create("stderr", os.MFD_CLOEXEC), "w+b")
    except (AttributeError, OSError):
        return tempfile.TemporaryFile()


def _flush_stderr() -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def _after_fork_in_child() -> None:
    global _lock, _depth
    _lock, _depth = threading.RLock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
