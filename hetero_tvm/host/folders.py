"""Folders of the user, as the XDG specification has them: what may be lost, and what should not be."""

from __future__ import annotations

import os
from pathlib import Path

_NAME = "hetero_tvm"


def user_cache_folder() -> Path:
    """Folder of what can be made again: ``$XDG_CACHE_HOME/hetero_tvm``, by default below ``~/.cache``."""
    return _below("XDG_CACHE_HOME", ".cache")


def user_data_folder() -> Path:
    """Folder of what should be kept: ``$XDG_DATA_HOME/hetero_tvm``, by default below ``~/.local/share``."""
    return _below("XDG_DATA_HOME", ".local/share")


def _below(variable: str, default: str) -> Path:
    """A relative path in the variable does not count, as the specification says."""
    chosen = os.environ.get(variable, "").strip()
    if os.path.isabs(chosen):
        return Path(chosen) / _NAME
    return Path(os.path.expanduser("~")) / default / _NAME
