"""Programs with open sizes whose translation would keep those of the example that they were traced with."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend.torch.load import quiet, require

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def depends_on_sizes(program: ExportedProgram) -> bool:
    """Whether the translation to ONNX computes numbers from sizes that the program leaves open.

    PyTorch's exporter makes windows of adaptive pooling from the example's height and width.
    """
    torch = require("torch")
    for node in program.graph.nodes:
        value = node.args[0].meta.get("val") if node.args and hasattr(node.args[0], "meta") else None
        is_open = isinstance(value, torch.Tensor) and any(
            isinstance(d, torch.SymInt) for d in value.shape[2:]
        )
        if node.op == "call_function" and "adaptive" in str(node.target) and is_open:
            return True
    return False


def with_sizes(program: ExportedProgram, shapes: Mapping[str, tuple[int, ...]]) -> ExportedProgram:
    """The program traced again with fixed shapes.

    Parameters
    ----------
    shapes : of the tensors that the program takes, by name.

    Raises
    ------
    ModelError : PyTorch cannot trace the program with these shapes.
    """
    torch = require("torch")
    try:
        with quiet(), torch.no_grad():
            args, kwargs = torch.utils._pytree.tree_unflatten(
                _inputs(torch, program, shapes), program.call_spec.in_spec
            )
            return torch.export.export(program.module(), args, kwargs)
    except Exception as error:
        line = next((text.strip() for text in str(error).splitlines() if text.strip()), "")
        raise ModelError(
            f"PyTorch cannot fix the shapes of the program. {type(error).__name__}: {line[:300]}",
            hint="Export the program with the shapes that it will run with, without dynamic_shapes.",
        ) from error


def _inputs(
    torch: ModuleType, program: ExportedProgram, shapes: Mapping[str, tuple[int, ...]]
) -> list[object]:
    """Zeros in place of the tensors that the program takes, and the other inputs as they are."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    kinds = torch.export.graph_signature.InputKind
    return [
        torch.zeros(shapes[spec.arg.name], dtype=values[spec.arg.name].dtype)
        if spec.arg.name in shapes
        else spec.arg.value
        for spec in program.graph_signature.input_specs
        if spec.kind is kinds.USER_INPUT
    ]
