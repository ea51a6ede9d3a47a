"""Folders of this user: where data stays, and where what can be made again may be thrown away."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_NAME = "hetero_tvm"


def user_data() -> Path:
    """Folder of what the user would miss: in ``$XDG_DATA_HOME``, else ``~/.local/share``."""
    return _base("XDG_DATA_HOME", ".local/share") / _NAME


def user_cache() -> Path:
    """Folder of what can be made again: in ``$XDG_CACHE_HOME``, else ``~/.cache``."""
    return _base("XDG_CACHE_HOME", ".cache") / _NAME


def _base(variable: str, default: str) -> Path:
    """Path in ``variable`` where it is absolute (the rule of XDG), else ``default`` in the home.

    A user without a home (a container that runs as a number) gets a folder among the temporary ones.
    """
    chosen = os.environ.get(variable, "").strip()
    if os.path.isabs(chosen):
        return Path(chosen)
    try:
        return Path.home() / default
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"user-{os.getuid()}" / default
