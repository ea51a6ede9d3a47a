"""Python floats that change from call to call, such as a learning rate: tensors of one number in the graph.

Dynamo gives such a float as a tensor that is read as a Python number.  A graph that is compiled for the
number is of no use for the next one; arithmetic with a tensor of one number gives the same results.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from hetero_tvm.torch.rewrites.copies import copied, scalar_placeholders
from hetero_tvm.torch.rewrites.number_lists import is_on_lists, take_lists, takes_lists

OPENED = "open_number"
"""Key in the meta data of an argument that the graph took as a number before."""

_BETWEEN_NUMBERS = (operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.pow)
_WITH_TENSORS = frozenset(
    [
        *("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "true_divide", "subtract", "multiply"),
        *("divide", "iadd", "isub", "imul", "itruediv", "truediv", "fma.default"),
    ]
)
"""Names of functions and methods that take a tensor of one number in the place of a number."""
_WEIGHTED = {
    "add": "alpha", "add_": "alpha", "sub": "alpha", "sub_": "alpha",
    "addcmul": "value", "addcmul_": "value", "addcdiv": "value", "addcdiv_": "value",
}  # fmt: skip
"""Names of functions and methods -> keyword of a factor, which must be a number."""


def with_open_numbers(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with arithmetic on floats in tensors; itself where none can be.

    A float that is used in any other way (as a bound, in a comparison, as a result) stays a number, and so
    does what is computed in other types: of tensors of integers alone.
    """
    graph = copied(gm.graph)
    nodes = graph.find_nodes(op="placeholder")
    found = []
    for node in (nodes[i] for i in scalar_placeholders(gm)):
        if _is_float(node) and (uses := _uses(node)) is not None:
            node.meta[OPENED] = True
            found.append(uses)
    if not found:
        return gm
    numbers, tensors = (dict.fromkeys(node for uses in found for node in uses[part]) for part in (0, 1))
    for node in tensors:
        _take(graph, node, list(numbers))
    for number in numbers:
        if number.target in _BETWEEN_NUMBERS:
            number.meta.pop("example_value", None)  # no number any more
        else:  # it reads the tensor
            number.replace_all_uses_with(number.args[0])
            graph.erase_node(number)
    copy = torch.fx.GraphModule(gm, graph)
    copy.recompile()
    return copy


def _is_float(node: torch.fx.Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.dtype == torch.float64 and value.dim() == 0


def _uses(placeholder: torch.fx.Node) -> tuple[list[torch.fx.Node], list[torch.fx.Node]] | None:
    """Numbers that are computed from a float, and operators on tensors that use them; None where one cannot
    take a tensor."""
    numbers = list(placeholder.users)
    tensors: dict[torch.fx.Node, None] = {}
    for number in numbers:  # which grows
        for user in number.users:
            if user.op == "call_function" and user.target in _BETWEEN_NUMBERS and not _tensors(user):
                if user not in numbers:
                    numbers.append(user)
            elif _takes(user, set(numbers)):
                tensors[user] = None
            else:
                return None
    return numbers, list(tensors)


def _name(node: torch.fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    """Tensors among the operands of a node."""
    values = (value.meta.get("example_value") for value in node.all_input_nodes)
    return [value for value in values if isinstance(value, torch.Tensor)]


def _takes(node: torch.fx.Node, numbers: set[torch.fx.Node]) -> bool:
    """Whether an operator on tensors takes a tensor where it has one of the numbers."""
    result, name = node.meta.get("example_value"), _name(node)
    floats = [tensor for tensor in _tensors(node) if tensor.is_floating_point()]
    if is_on_lists(node):
        return len(floats) == len(_tensors(node)) > 0 and takes_lists(node, numbers)
    if not isinstance(result, torch.Tensor) or not floats or node.op not in ("call_function", "call_method"):
        return False
    factors = {key for key, value in node.kwargs.items() if value in numbers}
    if factors - {_WEIGHTED.get(name)}:
        return False
    return name in _WITH_TENSORS or not numbers.intersection(_flat(node.args))


def _flat(arguments: Any) -> list[Any]:
    return [a for a in torch.utils._pytree.tree_leaves(arguments) if isinstance(a, torch.fx.Node)]


def _take(graph: torch.fx.Graph, node: torch.fx.Node, numbers: list[torch.fx.Node]) -> None:
    """Let an operator take tensors in the place of numbers, of a type that does not widen its result."""
    wide = any(tensor.dtype == torch.float64 for tensor in _tensors(node))
    with graph.inserting_before(node):
        casts = {
            number: number if wide else graph.call_method("to", (number, torch.float32))
            for number in numbers
            if number in node.all_input_nodes
        }
        if is_on_lists(node):
            take_lists(graph, node, casts)
            return
        node.args = torch.fx.node.map_arg(node.args, lambda n: casts.get(n, n))
        factor = node.kwargs.get(_WEIGHTED.get(_name(node)))
        if factor in casts:
            _weigh(graph, node, casts[factor])
        elif _name(node) == "fma.default":  # of what Dynamo makes of sums with a factor
            one, other, x = node.args
            product = graph.call_function(operator.mul, (one, other))
            node.target, node.args = operator.add, (product, x)


def _weigh(graph: torch.fx.Graph, node: torch.fx.Node, factor: torch.fx.Node) -> None:
    """Write ``x + factor * term`` in the place of an operator with a factor."""
    (x, *terms), name = node.args, _name(node)
    kind, term = name.removesuffix("_"), terms[0]
    if kind in ("addcmul", "addcdiv"):
        term = graph.call_function(operator.mul if kind == "addcmul" else operator.truediv, tuple(terms))
    weighted = graph.call_function(operator.mul, (term, factor))
    node.op, node.target = "call_method", ("sub" if kind == "sub" else "add") + name[len(kind) :]
    node.args, node.kwargs = (x, weighted), {}
