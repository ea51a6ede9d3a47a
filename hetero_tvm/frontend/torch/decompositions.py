"""PyTorch operators in terms of others, where its exporter has no translation or a wrong one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hetero_tvm.frontend.torch import antialias, doubles
from hetero_tvm.frontend.torch.load import quiet, require
from hetero_tvm.frontend.torch.operators import (
    attention,
    bags,
    complexes,
    convolution,
    counting,
    divisions,
    elements,
    encoders,
    factors,
    groups,
    indexing,
    losses,
    matrices,
    moments,
    pooling,
    quantizers,
    recurrence,
    scatters,
    signals,
    special,
)

if TYPE_CHECKING:
    from types import ModuleType

    from torch.export import ExportedProgram
    from torch.fx import Node


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Functions of tensors that compute the same, by operator; also those of packages that are imported."""
    torch = require("torch")
    table = _of_pytorch() | groups.decompositions(torch) | quantizers.decompositions(torch)
    if hasattr(torch.ops.prims, "fma"):  # Inductor's, which Dynamo writes for some of torch's functions
        table[torch.ops.prims.fma.default] = lambda x, y, z: x * y + z
    return table


@functools.lru_cache(maxsize=1)
def _of_pytorch() -> dict[Any, Callable[..., Any]]:
    torch = require("torch")
    table: dict[Any, Callable[..., Any]] = {}
    parts = (
        antialias, attention, bags, convolution, counting, divisions, doubles, elements, encoders, factors,
        indexing, losses, matrices, moments, pooling, recurrence, scatters, signals, special,
    )  # fmt: skip
    for part in parts:
        table |= part.decompositions(torch)
    return table


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """The program without the operators that are decomposed here; itself where it has none."""
    torch = require("torch")
    table = decompositions()
    if _is_complex(program):
        table = complexes.decompositions(torch, program) | table
    is_asked = _asks(torch, table)
    if not any(
        isinstance(node.target, torch._ops.OpOverload) and is_asked(node)
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
    ):
        return program
    with quiet(), torch.no_grad():
        return program.run_decompositions(dict(table))


def _asks(torch: ModuleType, table: dict[Any, Callable[..., Any]]) -> Callable[[Node], bool]:
    """Test of a call of an operator: whether a function of the table replaces it, with its arguments."""
    parts = (antialias, doubles, elements, indexing, moments, pooling)
    conditions = {_base(o): test for part in parts for o, test in part.in_part(torch).items()}
    bases = {_base(operator) for operator in table}

    def is_asked(node: Node) -> bool:
        base = _base(node.target)
        return base in bases and (base not in conditions or conditions[base](node))

    return is_asked


def _is_complex(program: ExportedProgram) -> bool:
    """Whether a value of the program is a tensor of complex numbers."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    return any(hasattr(value, "dtype") and value.dtype.is_complex for value in values)


def _base(operator: Any) -> tuple[str, str]:
    """Name and overload of an operator, the same for its form in place."""
    return operator._schema.name.rstrip("_"), operator._overloadname
