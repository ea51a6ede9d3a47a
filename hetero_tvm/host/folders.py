"""Folders of this user: where data stays, and where what can be made again may be thrown away."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from hetero_tvm.errors import UsageError

_NAME = "hetero_tvm"


def user_data() -> Path:
    """Folder of what the user would miss: in ``$XDG_DATA_HOME``, else ``~/.local/share``."""
    return _base("XDG_DATA_HOME", ".local/share") / _NAME


def user_cache() -> Path:
    """Folder of what can be made again: in ``$XDG_CACHE_HOME``, else ``~/.cache``.

    A home that cannot be written to (``/nonexistent``, a read-only file system) is none; a cache that lies
    there already is read.
    """
    folder = _base("XDG_CACHE_HOME", ".cache") / _NAME
    if os.path.exists(folder) or os.path.isabs(os.environ.get("XDG_CACHE_HOME", "").strip()):
        return folder
    nearest = next(one for one in folder.parents if os.path.exists(one))
    if os.access(nearest, os.W_OK | os.X_OK):
        return folder
    try:
        return _temporary_home() / ".cache" / _NAME
    except FileNotFoundError:  # nothing can be written, as whoever tries will say
        return folder


def spare_cache() -> Path | None:
    """Folder for what is new where :func:`user_cache` is there and cannot be written to, as in an image that
    was filled before its root became read-only; None where it can, or nothing can be written anywhere."""
    folder = user_cache()
    if not os.path.exists(folder) or os.access(folder, os.W_OK | os.X_OK):
        return None
    try:
        return _temporary_home() / ".cache" / _NAME
    except FileNotFoundError:
        return None


def _base(variable: str, default: str) -> Path:
    """Path in ``variable`` where it is absolute (the rule of XDG), else ``default`` in the home.

    A user without a home (a container that runs as a number) gets a private folder among the temporary ones.

    Raises
    ------
    UsageError : another user could have written to that folder: code that is run lies in it.
    """
    chosen = os.environ.get(variable, "").strip()
    if os.path.isabs(chosen):
        return Path(chosen)
    try:
        return Path.home() / default
    except RuntimeError:
        try:
            return _temporary_home() / default
        except FileNotFoundError as error:
            raise UsageError(
                "this user has no home, and there is no folder for temporary files",
                hint=f"set HOME, or {variable}, to a folder of this user's own",
            ) from error


def _temporary_home() -> Path:
    """A folder among the temporary ones, made if it is not there, which nobody else may write to."""
    folder = Path(tempfile.gettempdir()) / f"hetero_tvm-user-{os.getuid()}"
    with contextlib.suppress(OSError):  # it is there; or nothing can be written, as whoever tries will say
        folder.mkdir(0o700)
    if os.path.lexists(folder):
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise UsageError(
                f"this user has no home that can be written to, and others may write to {folder}",
                hint="set HOME, or XDG_CACHE_HOME and XDG_DATA_HOME, to a folder of this user's own",
            )
    return folder
