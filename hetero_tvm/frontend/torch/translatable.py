"""PyTorch operators that can be translated: by its exporter's registry, by a decomposition, or by ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero_tvm.frontend.torch.decompositions import decompositions, traced_alone, with_others
from hetero_tvm.frontend.torch.registry import decomposition_table, registry

if TYPE_CHECKING:
    from torch.fx import Node


def is_translatable(node: Node) -> bool:
    """Whether a node of a functional ATen graph has a translation, directly or after decomposition.

    What is no operator of PyTorch's dispatcher (``operator.getitem``) is taken to have one.  The node's
    arguments are described by their ``meta["val"]``.
    """
    operator = node.target
    if not hasattr(operator, "_schema") or registry().is_registered(operator):
        return True
    table = with_others(decompositions(), decomposition_table())
    if operator not in table:
        return False
    inside = traced_alone(node, operator, table)
    return inside is not None and all(registry().is_registered(made.target) for made in inside)
