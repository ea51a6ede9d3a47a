"""Graphs of which only parts can be compiled: the rest runs in PyTorch between them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from hetero_tvm.errors import HeteroTVMError
from hetero_tvm.frontend.torch.translatable import is_translatable
from hetero_tvm.torch.compiling import compile_graph
from hetero_tvm.torch.examine import examine
from hetero_tvm.torch.options import Options
from hetero_tvm.torch.refusing import refused, say
from hetero_tvm.torch.rewrites.copies import output_arguments
from hetero_tvm.torch.specializing import Compiled

_LEAST = 3
"""Nodes below which a part of a graph runs faster in PyTorch than between two conversions."""
_DEEPEST = 6
"""Times that a part is divided again, when it is refused for another operator."""


def compile_parts(
    gm: torch.fx.GraphModule,
    arguments: Sequence[Any],
    bound: Mapping[int, Any],
    error: HeteroTVMError,
    options: Options,
    depth: int = 0,
) -> Compiled:
    """Compile what can be compiled of a functional graph of ATen operators of fixed shapes, after a warning.

    Parameters
    ----------
    arguments : tensors like those that it will get; values of its nodes are described by ``meta["val"]``.
    bound : arguments whose values become part of the libraries.
    error : why the graph is refused as a whole.

    Raises
    ------
    HeteroTVMError : ``error``, with ``refused="raise"``.
    """
    eager = {n.target for n in gm.graph.nodes if n.op == "call_function" and not is_translatable(n)}
    eager |= _named(gm, error)
    count = len(gm.graph.nodes)
    if not eager or depth == _DEEPEST:
        return refused(gm, error, options)
    names = ", ".join(sorted(map(str, eager)))
    say(f"PyTorch runs parts of a graph of {count} nodes: {names}.", error, options)
    partitioner = CapabilityBasedPartitioner(gm, _Supported(eager), allows_single_node_partition=False)
    proposed = [part for part in partitioner.propose_partitions() if len(part.nodes) >= _LEAST]
    if not proposed:
        return lambda given: gm(*given)
    fused = partitioner.fuse_partitions(proposed)
    placeholders = fused.graph.find_nodes(op="placeholder")
    values = {placeholders[index]: value for index, value in bound.items()}
    for node in list(fused.graph.find_nodes(op="call_module")):
        part = getattr(fused, str(node.target))
        given = [_like(argument) for argument in node.args]
        own = {i: values[argument] for i, argument in enumerate(node.args) if argument in values}
        setattr(fused, str(node.target), _Part(part, _compiled(part, given, own, options, depth)))
    return lambda given: fused(*given)


def in_memory_as_traced(gm: torch.fx.GraphModule, call: Compiled, ordered: int | None) -> Compiled:
    """``call``, whose results get the strides that the graph was traced with; the first ``ordered`` only.

    AOTAutograd takes views of results by these strides.
    """
    traced = [n.meta.get("val") if isinstance(n, torch.fx.Node) else n for n in output_arguments(gm.graph)]

    def run(given: Sequence[Any]) -> list[Any]:
        found = list(call(given))
        for place, value in enumerate(traced[:ordered]):
            result = found[place]
            if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
                continue
            if result is None:  # a token, which orders effects and is nothing in a call
                continue
            if result.stride() != value.stride() and result.shape == value.shape:
                found[place] = torch.empty_strided(value.shape, value.stride(), dtype=result.dtype).copy_(
                    result
                )
        return found

    return run


def _compiled(
    gm: torch.fx.GraphModule, given: Sequence[Any], bound: Mapping[int, Any], options: Options, depth: int
) -> Compiled:
    try:
        return compile_graph(gm, given, bound, examine(gm, given), options)
    except HeteroTVMError as error:
        return compile_parts(gm, given, bound, error, options, depth + 1)


class _Supported(OperatorSupportBase):
    def __init__(self, eager: set[Any]):
        self._eager = eager

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        return node.op == "call_function" and node.target not in self._eager


class _Part(torch.nn.Module):
    """A compiled part in the place of its nodes."""

    def __init__(self, gm: torch.fx.GraphModule, call: Compiled):
        super().__init__()
        self._call = call
        returned = next(iter(gm.graph.find_nodes(op="output"))).args[0]
        self._single = isinstance(returned, torch.fx.Node)

    def forward(self, *arguments: Any) -> Any:
        found = self._call(arguments)
        if self._single and isinstance(found, list | tuple):
            return found[0]
        return found


def _like(argument: Any) -> Any:
    """A tensor like the one that a node gives."""
    value = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else argument
    if isinstance(value, torch.Tensor):
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
    return value


def _named(gm: torch.fx.GraphModule, error: HeteroTVMError) -> set[Any]:
    """Operators of the graph that an error names, or whose nodes it names."""
    words = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", str(error).partition("What to do:")[0]))
    plain = {re.sub(r"_\d+$", "", word) for word in words}
    found = set()
    for node in gm.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            base = node.target._schema.name.partition("::")[2]
            if base in plain and len(base) > 2:
                found.add(node.target)
    return found
