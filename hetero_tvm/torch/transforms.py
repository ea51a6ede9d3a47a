"""Transformed functions (``torch.func``) in graphs, and what all threads share of PyTorch's tracing."""

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
    before, forward = _depth(), _in_forward_mode()
    try:
        yield
    finally:
        while _depth() > before:
            torch._C._functorch.pop_dynamic_layer_stack()
        if not forward and _in_forward_mode():  # of jvp, jacfwd and hessian; there is never more than one
            torch._C._exit_dual_level(level=0)


@contextlib.contextmanager
def traced_alone() -> Iterator[None]:
    """Hold Dynamo's lock while a graph is traced outside of Dynamo: at a call, or in the backward pass.

    Tracing changes what all threads share (whether PyTorch traces, handlers of operators).  The flag lets
    calls of compiled functions in other threads pass, as while Dynamo compiles.
    """
    from torch._dynamo.convert_frame import compile_lock  # slow to import

    with compile_lock, torch.compiler._compile_session_context():
        yield


def _depth() -> int:
    return len(torch._C._functorch.get_interpreter_stack() or ())


def _in_forward_mode() -> bool:
    """Whether a level of forward differentiation is open: PyTorch tells by refusing a second one."""
    try:
        torch._C._exit_dual_level(level=torch._C._enter_dual_level())
    except RuntimeError:
        return True
    return False
