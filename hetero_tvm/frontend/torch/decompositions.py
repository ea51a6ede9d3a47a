"""PyTorch operators in terms of others, where PyTorch's exporter has no translation or one that loses its meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Functions of tensors that compute the same, by operator."""
    return {}
