"""Indexing by tensors of one integer, such as a cache's position: an element or a row found at run time.

PyTorch reads the integer to make a view, and what follows depends on a value.  Selection and assignment by
index compute the same without reading it.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from hetero_tvm.torch.rewrites.copies import copied

_INDEX, _PUT = torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default


def with_tensor_places(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with such indexing expressed by index; itself where it has none.

    What must be a view stays one: it is returned, or read after something is written.
    """
    if not any(_places(node) for node in gm.graph.nodes):
        return gm
    graph = copied(gm.graph)
    for node in list(graph.nodes):
        if places := _places(node):
            if node.target is operator.setitem:
                _assign(graph, node, places)
            elif not _is_view(node):
                _select(graph, node, places)
    copy = torch.fx.GraphModule(gm, graph)
    copy.recompile()
    return copy


def _places(node: torch.fx.Node) -> dict[int, torch.fx.Node]:
    """Indices that are tensors of one integer, by the dimension that they are for after all others."""
    if node.op != "call_function" or node.target not in (operator.getitem, operator.setitem):
        return {}
    tensor = _value(node.args[0])
    if tensor is None:
        return {}
    found, dimension = {}, 0
    for part in _indices(node, tensor.dim()):
        index = _value(part)
        if index is not None:
            if index.dim() or index.dtype == torch.bool or index.is_floating_point():
                return {}
            found[dimension] = part
        elif not (part is None or isinstance(part, int | slice)) or isinstance(part, bool):
            return {}
        dimension += not isinstance(part, int)
    return found


def _indices(node: torch.fx.Node, rank: int) -> list[Any]:
    """Indices of a node, one for each dimension from the first on, and None for new ones."""
    given = node.args[1]
    parts = list(given) if isinstance(given, tuple | list) else [given]
    if Ellipsis in parts:
        place = parts.index(Ellipsis)
        missing = rank - sum(part is not None for part in parts) + 1
        parts[place : place + 1] = [slice(None)] * missing
    return parts


def _rest(graph: torch.fx.Graph, node: torch.fx.Node) -> tuple[torch.fx.Node, torch.Tensor]:
    """View by the other indices, and a tensor like it."""
    source = node.args[0]
    tensor = _value(source)
    parts = [slice(None) if _value(part) is not None else part for part in _indices(node, tensor.dim())]
    values = torch.fx.node.map_arg(tuple(parts), lambda n: n.meta["example_value"])
    like = tensor[values]
    if all(part == slice(None) for part in parts):
        return source, tensor
    view = graph.call_function(operator.getitem, (source, tuple(parts)))
    view.meta["example_value"] = like
    return view, like


def _select(graph: torch.fx.Graph, node: torch.fx.Node, places: dict[int, torch.fx.Node]) -> None:
    with graph.inserting_before(node):
        found, _ = _rest(graph, node)
        for dimension, index in sorted(places.items(), reverse=True):
            found = graph.call_function(_INDEX, (found, [None] * dimension + [index]))
    found.meta.update(node.meta)
    node.replace_all_uses_with(found)
    graph.erase_node(node)


def _assign(graph: torch.fx.Graph, node: torch.fx.Node, places: dict[int, torch.fx.Node]) -> None:
    value = node.args[2]
    given = _value(value)
    with graph.inserting_before(node):
        view, like = _rest(graph, node)
        if given is None:
            value = graph.call_function(torch.full, ((), value), {"dtype": like.dtype})
        elif given.dim() > like.dim() - len(places):
            return
        elif given.dtype != like.dtype:
            value = graph.call_method("to", (value, like.dtype))
        indices = [places.get(dimension) for dimension in range(max(places) + 1)]
        graph.call_function(_PUT, (view, indices, value))
    graph.erase_node(node)


def _is_view(node: torch.fx.Node) -> bool:
    """Whether it shows that the selection is a view: it is returned, or read after something is written."""
    reached, waiting = {node}, [node]
    while waiting:
        for user in set(waiting.pop().users) - reached:
            reached.add(user)
            if user.target not in _ARITHMETIC:  # results of arithmetic are memory of their own
                waiting.append(user)
    order = list(node.graph.nodes)
    last = max(order.index(user) for user in reached)
    between = order[order.index(node) + 1 : last + 1]
    return any(n.op == "output" or (_writes(n) and not _writes_back(n, node)) for n in between)


def _writes(node: torch.fx.Node) -> bool:
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    named = name.endswith("_") and not name.endswith("__")
    asked = node.kwargs.get("inplace") or node.kwargs.get("out") is not None
    return bool(named or asked or node.target is operator.setitem or node.target in _IN_PLACE)


def _writes_back(node: torch.fx.Node, selected: torch.fx.Node) -> bool:
    """Whether a node is one of the two of ``x[i] += y``, of which ``selected`` is the first."""
    if node.target is operator.setitem:
        return node.args[:2] == selected.args and _writes_back(node.args[2], selected)
    return node.target in _IN_PLACE and node.args[0] is selected and node.next.target is operator.setitem


_ARITHMETIC = frozenset((operator.add, operator.sub, operator.mul, operator.truediv, operator.matmul))
_IN_PLACE = frozenset((operator.iadd, operator.isub, operator.imul, operator.itruediv))


def _value(node: Any) -> torch.Tensor | None:
    """Tensor that a node was traced with."""
    value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None
