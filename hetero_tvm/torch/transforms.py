"""Transformed functions (``torch.func``) in graphs, and the stack of levels that tracing may leave open."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def is_transformed(gm: torch.fx.GraphModule) -> bool:
    """Whether a graph opens a level of ``grad``, ``vmap`` or ``jvp``."""
    return any(
        "functorch" in (getattr(node.target, "__module__", "") or "")
        and "increment_nesting" in getattr(node.target, "__name__", "")
        for node in gm.graph.nodes
        if node.op == "call_function"
    )


@contextlib.contextmanager
def levels_closed() -> Iterator[None]:
    """Close the levels that an error inside leaves open: later calls would run in them."""
    before = _depth()
    try:
        yield
    finally:
        while _depth() > before:
            torch._C._functorch.pop_dynamic_layer_stack()


def _depth() -> int:
    return len(torch._C._functorch.get_interpreter_stack() or ())
