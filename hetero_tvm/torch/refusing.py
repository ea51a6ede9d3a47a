"""Graphs that cannot be compiled: PyTorch runs them, and says so once, with all reasons."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hetero_tvm.errors import HeteroTVMError
from hetero_tvm.torch.options import RAISE, Options


class FallbackWarning(UserWarning):
    """A graph, or a part of it, runs in PyTorch."""


def refused(
    gm: torch.fx.GraphModule, error: HeteroTVMError, options: Options
) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """The graph as PyTorch runs it, after a warning.

    Raises
    ------
    HeteroTVMError : ``error``, with ``refused="raise"``.
    """
    say(
        f"PyTorch runs a graph of {len(gm.graph.nodes)} nodes that hetero_tvm cannot compile.", error, options
    )
    return lambda arguments: gm(*arguments)


def say(what: str, error: HeteroTVMError, options: Options) -> None:
    """Warn of what runs in PyTorch, or raise the reason with ``refused="raise"``."""
    options.tell(event="refused", reason=str(error))
    if options.refused == RAISE:
        raise error
    warnings.warn(
        f"{what}\n{error}\n(torch.compile(..., options={{'refused': 'raise'}}) makes this an error.)",
        FallbackWarning,
        stacklevel=2,
    )
