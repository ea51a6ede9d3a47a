"""Calls whose arguments share memory that the graph changes: PyTorch runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hetero_tvm.torch.specializing import Compiled


def unless_shared(call: Compiled, gm: torch.fx.GraphModule, changed: Sequence[int]) -> Compiled:
    """``call``, or the graph itself where an argument that it changes shares memory with another one.

    Graphs of fixed sizes do not need it: Dynamo compiles another one when arguments begin to overlap.  A
    variant of a graph of open sizes is made outside of Dynamo's sight, for arguments that are apart.

    Parameters
    ----------
    changed : numbers of the arguments that the graph changes.
    """
    if not changed:
        return call
    return lambda *given: gm(*given) if share_memory(given, changed) else call(*given)


def share_memory(arguments: Sequence[Any], changed: Sequence[int]) -> bool:
    """Whether a tensor of ``changed`` numbers lies in bytes among which another argument lies, too."""
    spans = [_span(a) if isinstance(a, torch.Tensor) else (0, 0) for a in arguments]
    written = frozenset(changed)
    furthest = furthest_written = 0  # ends of what begins before
    for (start, end), number in sorted((span, i) for i, span in enumerate(spans) if span[1]):
        if start < furthest_written or (number in written and start < furthest):
            return True
        furthest = max(furthest, end)
        if number in written:
            furthest_written = max(furthest_written, end)
    return False


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte of a tensor, and the one behind its last; strides may leave others between them."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return 0, 0
    steps = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (steps + 1) * tensor.element_size()
