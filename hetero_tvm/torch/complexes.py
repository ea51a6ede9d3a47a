"""Complex numbers at the ends of graphs as real ones with a last axis of two; signals of spectra."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hetero_tvm.frontend.torch.decompositions import decompositions
from hetero_tvm.torch.call import TensorCall
from hetero_tvm.torch.examine import Source
from hetero_tvm.torch.rewrites.copies import copied, output_arguments


def with_real_ends(
    gm: torch.fx.GraphModule, arguments: Sequence[Any], taken: Sequence[int], given: Sequence[int]
) -> tuple[torch.fx.GraphModule, list[Any]]:
    """A copy of the graph with the parts of its complex ends, and arguments like those that it takes.

    Parameters
    ----------
    taken, given : numbers of the arguments and of the results that are complex.
    """
    copy = torch.fx.GraphModule(gm, copied(gm.graph))
    graph = copy.graph
    placeholders = graph.find_nodes(op="placeholder")
    for index in taken:
        node = placeholders[index]
        node.meta = {}
        with graph.inserting_after(node):  # parts of divided graphs have arguments between their nodes
            whole = graph.call_function(torch.view_as_complex, (node,))
        node.replace_all_uses_with(whole, delete_user_cb=lambda user, own=whole: user is not own)
    end = next(iter(graph.find_nodes(op="output")))
    outputs = output_arguments(graph)
    with graph.inserting_before(end):
        for index in given:
            plain = graph.call_function(torch.resolve_conj, (outputs[index],))
            outputs[index] = graph.call_function(torch.view_as_real, (plain,))
    end.args = (tuple(outputs),)
    copy.recompile()
    real = [
        torch.empty((*a.shape, 2), dtype=a.dtype.to_real(), device="meta") if i in taken else a
        for i, a in enumerate(arguments)
    ]
    return copy, real


def with_own_signals(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with our own ``istft``; itself where it has none.

    PyTorch's reads values of the window to refuse one that leaves gaps, which no trace can do.
    """
    if not any(node.target is torch.istft for node in gm.graph.nodes):
        return gm
    copy = torch.fx.GraphModule(gm, copied(gm.graph))
    for node in copy.graph.nodes:
        if node.target is torch.istft:
            node.target = _signal
    copy.recompile()
    return copy


def _signal(*given: Any, **named: Any) -> torch.Tensor:
    if "input" in named:  # as torchaudio calls it; ours has the name of the operator
        given = (named.pop("input"), *given)
    found = decompositions()[torch.ops.aten.istft.default](*given, **named)
    return torch.istft(*given, **named) if found is NotImplemented else found


class ComplexCall:
    """A call of a library of real tensors, as the function of complex ones that its graph is.

    Parameters
    ----------
    call : the library of what :func:`with_real_ends` makes.
    taken, given : numbers of the arguments and of the results that are complex.
    outputs : where each output comes from.
    """

    def __init__(
        self, call: TensorCall, taken: Sequence[int], given: Sequence[int], outputs: Sequence[Source]
    ):
        self.library = call.library
        self._call, self._taken, self._given = call, tuple(taken), frozenset(given)
        self._outputs = tuple(outputs)

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Outputs of the graph for ``arguments``."""
        parts = list(arguments)
        for index in self._taken:
            parts[index] = torch.view_as_real(arguments[index].detach().resolve_conj().resolve_neg())
        results = self._call(parts)
        return [
            arguments[place]
            if kind == "argument"
            else torch.view_as_complex(result)
            if kind == "result" and place in self._given
            else result
            for result, (kind, place) in zip(results, self._outputs, strict=True)
        ]
