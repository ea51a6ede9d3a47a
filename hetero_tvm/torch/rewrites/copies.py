"""Copies of graphs: with fixed values, or with fewer results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch


def output_arguments(graph: torch.fx.Graph) -> list[Any]:
    """Outputs of a graph, flat: nodes and Python values."""
    node = next(iter(graph.find_nodes(op="output")))
    return list(torch.utils._pytree.tree_leaves(node.args[0], is_leaf=lambda value: value is None))


def scalar_placeholders(gm: torch.fx.GraphModule) -> tuple[int, ...]:
    """Numbers of the arguments that are tensors only to be read as Python numbers (``.item()``)."""
    return tuple(
        i
        for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))
        if node.users and all(_is_read(user) for user in node.users)
    )


def _is_read(node: torch.fx.Node) -> bool:
    if node.op == "call_method":
        return node.target == "item"
    return node.target in (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)


def with_values(gm: torch.fx.GraphModule, values: dict[int, Any]) -> torch.fx.GraphModule:
    """A copy of the graph in which arguments, which stay arguments, have fixed values where they are read."""
    copy = torch.fx.GraphModule(gm, copied(gm.graph))
    nodes = copy.graph.find_nodes(op="placeholder")
    for index, value in values.items():
        for user in list(nodes[index].users):
            if _is_read(user):
                user.replace_all_uses_with(value)
                copy.graph.erase_node(user)
    copy.recompile()
    return copy


def returning(
    gm: torch.fx.GraphModule, kept: Iterable[int], orders: Mapping[int, tuple[int, ...]] | None = None
) -> torch.fx.GraphModule:
    """A copy of the graph that returns a tuple of the outputs with these numbers.

    ``orders`` : dimensions of some of them, by place in the tuple, in the order in which they are returned.
    """
    copy = torch.fx.GraphModule(gm, copied(gm.graph))
    outputs = output_arguments(copy.graph)
    node = next(iter(copy.graph.find_nodes(op="output")))
    returned = [outputs[index] for index in kept]
    with copy.graph.inserting_before(node):
        for place, order in (orders or {}).items():
            returned[place] = copy.graph.call_function(torch.permute, (returned[place], order))
    node.args = (tuple(returned),)
    # What nobody reads stays: it may change a tensor in place, which FX does not know of methods.
    copy.recompile()
    return copy


def copied(graph: torch.fx.Graph) -> torch.fx.Graph:
    """A copy of the nodes, which belongs to no module yet."""
    fresh = torch.fx.Graph()
    value = fresh.graph_copy(graph, {})
    fresh.output(value)
    return fresh
