"""PyTorch operators that can be translated: by its exporter's registry, by a decomposition, or by ours."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from hetero_tvm.frontend.torch.decompositions import decompositions, traced_alone
from hetero_tvm.frontend.torch.load import quiet, require
from hetero_tvm.frontend.torch.registry import registry

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
    table = _all_decompositions()
    if operator not in table:
        return False
    inside = traced_alone(node, operator, table)
    return inside is not None and all(registry().is_registered(made.target) for made in inside)


def _all_decompositions() -> dict[Any, Any]:
    """Decompositions of ours, then PyTorch's: of operators without ours, and of calls that ours leave."""
    theirs = decomposition_table()

    def either(operator: Any, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            found = function(*args, **kwargs)
            return theirs[operator](*args, **kwargs) if found is NotImplemented else found

        return call

    ours = decompositions()
    return theirs | ours | {o: either(o, function) for o, function in ours.items() if o in theirs}


@functools.lru_cache(maxsize=1)
def decomposition_table() -> dict[Any, Any]:
    """PyTorch's decompositions of operators that its exporter has no translation of."""
    decomposition = require("torch.onnx._internal.exporter._decomp")
    with quiet():
        direct = set(decomposition.get_onnx_implemented_overloads(registry()))
        return decomposition.create_onnx_friendly_decomposition_table(direct)
