"""Imports that leave PyTorch out; a module of its own because the runtime needs it without TVM's compiler."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def without_torch() -> Iterator[None]:
    """While open, ``import torch`` fails as if it were not installed.

    Does nothing when PyTorch is imported already: the time is spent, and hiding it from its
    own submodules would break them.
    """
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if sys.modules.get("torch", ...) is None:
            del sys.modules["torch"]
