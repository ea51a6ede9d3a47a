"""Words for errors that are none of ours: the system's refusals, and defects."""

from __future__ import annotations

import errno

from hetero_tvm.host.files import NO_ROOM

DEBUG_VARIABLE = "HETERO_TVM_DEBUG"
_NO_ROOM = NO_ROOM | {errno.EROFS}
"""Reasons of the system's why a file cannot be written that are no fault of ours."""


def in_words(error: Exception) -> tuple[str, str, int]:
    """Text of an error, the line that says what to do, and the exit status of a command that it ends."""
    if isinstance(error, OSError) and (error.errno in _NO_ROOM or "temporary" in str(error)):
        return str(error), "What to do: free some space, or name another folder with TMPDIR", 1
    if isinstance(error, PermissionError) and error.filename is not None:
        what = f"{error.filename}: {error.strerror}"
        return what, "What to do: let this user read and enter it (chmod, chown), or name another", 2
    return f"{type(error).__name__}: {error}", f"(a defect of hetero_tvm; {DEBUG_VARIABLE}=1 shows where)", 1
