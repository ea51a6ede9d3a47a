"""Tensors that a graph holds itself, and that change: made arguments.

Dynamo gives an optimizer's parameters as attributes of the graph, and, where Inductor's ``freezing`` is set,
those of a module too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hetero_tvm.errors import ModelError
from hetero_tvm.torch.examine import examine
from hetero_tvm.torch.rewrites.copies import copied

_MARK = "_dynamo_static_input_type"
"""Attribute that Dynamo writes on tensors that a module or an optimizer owns."""


def owned_attributes(gm: torch.fx.GraphModule) -> list[str]:
    """Names of the tensors that the graph holds but somebody else owns: parameters, buffers, states."""
    held = {name: _attribute(gm, name) for name in _attributes(gm)}
    return [
        name
        for name, value in held.items()
        if isinstance(value, torch.Tensor)
        and (isinstance(value, torch.nn.Parameter) or value.requires_grad or hasattr(value, _MARK))
    ]


def changed_attributes(gm: torch.fx.GraphModule, arguments: Sequence[Any]) -> list[str]:
    """Names of the tensors that the graph holds and changes, or may change, when it runs.

    Parameters
    ----------
    arguments : tensors and numbers, in the order of the graph's placeholders; none is symbolic.
    """
    held = [name for name in _attributes(gm) if isinstance(_attribute(gm, name), torch.Tensor)]
    if not held:
        return []
    try:
        changed = examine(as_arguments(gm, held), [*arguments, *values(gm, held)]).changed
    except ModelError:  # the graph will not be compiled as a whole either
        return held
    return [name for i, name in enumerate(held, len(arguments)) if i in changed]


def as_arguments(
    gm: torch.fx.GraphModule, names: Sequence[str], static: Sequence[str] = ()
) -> torch.fx.GraphModule:
    """A copy of the graph whose last arguments are these of its attributes.

    Parameters
    ----------
    static : names of those that have the same values at most calls, as a module's parameters do.
    """
    graph = copied(gm.graph)
    copy = torch.fx.GraphModule(gm, graph)
    last = list(graph.find_nodes(op="placeholder"))[-1:]
    for name in names:
        with graph.inserting_after(last[0]) if last else graph.inserting_before(next(iter(graph.nodes))):
            last = [graph.placeholder(name.replace(".", "_"))]
        last[0].meta["example_value"] = _attribute(gm, name)
        last[0].meta["tensor_dict"] = {_MARK: "unguarded"} if name in static else {}
        for node in [n for n in graph.find_nodes(op="get_attr") if n.target == name]:
            node.replace_all_uses_with(last[0])
            graph.erase_node(node)
    copy.recompile()
    return copy


def values(gm: torch.fx.GraphModule, names: Sequence[str]) -> list[torch.Tensor]:
    """Tensors that these attributes are now."""
    return [_attribute(gm, name) for name in names]


def _attributes(gm: torch.fx.GraphModule) -> list[str]:
    return list(dict.fromkeys(str(node.target) for node in gm.graph.find_nodes(op="get_attr")))


def _attribute(gm: torch.fx.GraphModule, name: str) -> Any:
    value: Any = gm
    for part in name.split("."):
        value = getattr(value, part)
    return value
