"""The backend for ``torch.compile``: what Dynamo calls with each graph."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hetero_tvm.torch.attributes import as_arguments, changed_attributes, owned_attributes, values
from hetero_tvm.torch.complexes import with_own_signals
from hetero_tvm.torch.functional import trained
from hetero_tvm.torch.inference import inference
from hetero_tvm.torch.options import FROZEN, Options
from hetero_tvm.torch.recurrent import take_recurrent_layers
from hetero_tvm.torch.rewrites.numbers import with_open_numbers
from hetero_tvm.torch.rewrites.places import with_tensor_places
from hetero_tvm.torch.specializing import Compiled, Specialized, symbolic_sizes

NAME = "hetero_tvm"


def hetero_tvm(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo: ``torch.compile(model, backend="hetero_tvm")``.

    Parameters
    ----------
    gm : operators of PyTorch; parameters are arguments of the graph.
    example_inputs : arguments of the first call.
    options : see :class:`hetero_tvm.torch.options.Options`.
    mode : PyTorch's word for effort; all mean the same here.

    Raises
    ------
    UsageError : an option is wrong (all are listed).
    HeteroTVMError : with ``options={"refused": "raise"}``, the reasons why a graph cannot be compiled.
    """
    chosen = Options.of(options)
    if owned := owned_attributes(gm):
        changed = owned if symbolic_sizes(example_inputs) else changed_attributes(gm, example_inputs)
        graph = as_arguments(gm, owned, [name for name in owned if name not in changed])
        whole = hetero_tvm(graph, [*example_inputs, *values(gm, owned)], options=options, mode=mode)
        return lambda *given: whole(*given, *values(gm, owned))
    gradients = torch.is_grad_enabled() and any(
        isinstance(value, torch.Tensor) and value.requires_grad for value in example_inputs
    )

    def make(
        graph: torch.fx.GraphModule, arguments: Sequence[Any], frozen: dict[int, torch.Tensor]
    ) -> Compiled:
        if gradients:
            return trained(graph, arguments, chosen)
        return inference(graph, arguments, frozen, chosen)

    def make_whole(
        graph: torch.fx.GraphModule, arguments: Sequence[Any], frozen: dict[int, torch.Tensor]
    ) -> Compiled:
        changed = changed_attributes(graph, arguments)
        if not changed:
            return make(graph, arguments, frozen)
        whole = make(as_arguments(graph, changed), [*arguments, *values(graph, changed)], frozen)
        return lambda given: whole([*given, *values(graph, changed)])

    freeze = not gradients and chosen.parameters == FROZEN
    plain = with_open_numbers(with_tensor_places(with_own_signals(gm)))
    compiled = Specialized(plain, example_inputs, make_whole, freeze, chosen.shapes)
    compiled.prepare(example_inputs)
    return compiled.__call__


def register() -> None:
    """Tell Dynamo the backend's name, where the package is not installed with its entry point.

    Dynamo's setting for recurrent layers is told of the backend too.
    """
    take_recurrent_layers(hetero_tvm)
    installed = importlib.metadata.entry_points(group="torch_dynamo_backends")
    if NAME not in installed.names:
        from torch._dynamo import list_backends, register_backend  # slow to import

        if NAME not in list_backends(exclude_tags=()):
            register_backend(hetero_tvm, name=NAME)
