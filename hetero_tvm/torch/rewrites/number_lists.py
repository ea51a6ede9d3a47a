"""Operators on lists of tensors (``torch._foreach_add_``) that read a number: lists of tensors in its place.

Optimizers with ``foreach=True``, which is PyTorch's default on GPUs, write all parameters by one such call.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

_PREFIX = "_foreach_"
_BINARY = {"add": "alpha", "sub": "alpha", "mul": None, "div": None}
"""Operators on two lists, or on a list and a number -> keyword of a factor of the second list."""
_TERNARY = {"addcmul": torch._foreach_mul, "addcdiv": torch._foreach_div}
"""Operators on three lists and a factor -> what the second and the third give before it is added."""


def is_on_lists(node: torch.fx.Node) -> bool:
    """Whether a node calls an operator on lists of tensors."""
    return node.op == "call_function" and getattr(node.target, "__name__", "").startswith(_PREFIX)


def takes_lists(node: torch.fx.Node, numbers: Collection[torch.fx.Node]) -> bool:
    """Whether an operator on lists takes lists of tensors where it has some of the numbers."""
    kind, (first, *others) = _kind(node), node.args
    if not isinstance(first, list | tuple) or any(n in numbers for n in first):
        return False
    if kind in _TERNARY:
        given = (*others, *node.kwargs.values())
        return (
            len(given) == 3 and set(node.kwargs) <= {"value", "scalars"} and _replaceable(given[2], numbers)
        )
    if kind not in _BINARY or len(others) != 1 or set(node.kwargs) - {_BINARY[kind]}:
        return False
    factor = node.kwargs.get(_BINARY[kind])
    if factor in numbers:
        return not _has_number(others[0], numbers)
    return factor in (None, 1) and _replaceable(others[0], numbers)


def take_lists(
    graph: torch.fx.Graph, node: torch.fx.Node, casts: Mapping[torch.fx.Node, torch.fx.Node]
) -> None:
    """Write an operator that :func:`takes_lists`, with the tensors of one number in ``casts``.

    The caller has set the place where nodes are inserted to before ``node``.
    """
    kind, (first, *others) = _kind(node), node.args
    in_place = node.target.__name__.endswith("_")

    def as_list(number: Any) -> list[Any]:
        given = list(number) if isinstance(number, list | tuple) else [number] * len(first)
        return [casts[n] for n in given]

    if kind in _TERNARY:
        one, other, factor = (*others, *node.kwargs.values())
        term = graph.call_function(_TERNARY[kind], (one, other))
        kind, second = "add", graph.call_function(torch._foreach_mul, (term, as_list(factor)))
    elif node.kwargs.get("alpha") in casts:
        factor = as_list(node.kwargs["alpha"])
        second = graph.call_function(torch._foreach_mul, (others[0], factor))
    else:
        second = as_list(others[0])
    node.target = getattr(torch, f"{_PREFIX}{kind}{'_' if in_place else ''}")
    node.args, node.kwargs = (first, second), {}


def _has_number(argument: Any, numbers: Collection[torch.fx.Node]) -> bool:
    """Whether an argument is one of the numbers, or a list with some of them."""
    return any(n in numbers for n in (argument if isinstance(argument, list | tuple) else [argument]))


def _replaceable(argument: Any, numbers: Collection[torch.fx.Node]) -> bool:
    """Whether an argument is one of the numbers, or a list of nothing else."""
    given = argument if isinstance(argument, list | tuple) else [argument]
    return bool(given) and all(n in numbers for n in given)


def _kind(node: torch.fx.Node) -> str:
    return node.target.__name__.removeprefix(_PREFIX).removesuffix("_")
