"""Programs with open sizes whose translation would keep those of the example that they were traced with."""

from __future__ import annotations

import ast
import contextlib
import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend.torch.load import quiet, require

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_KNOWN = (
    "replacements", "var_to_range", "guards", "axioms", "divisible", "symbol_guard_counter",
    "deferred_runtime_asserts", "num_deferred_runtime_asserts", "replacements_slocs",
)  # fmt: skip
"""Attributes with what PyTorch knows of a program's symbols, which it adds to as it decides about them."""
_SIZE = re.compile(r"L\['(\w+)'\]\.size\(\)\[(\d+)\]")
_GUARD = "Guard failed: "
_LONGEST = 120
"""Letters that are shown of a condition; PyTorch writes long ones in full."""
_ARITHMETIC = (
    ast.Expression, ast.Compare, ast.Eq, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod,
    ast.UnaryOp, ast.USub, ast.Constant,
)  # fmt: skip


@contextlib.contextmanager
def sizes_kept(program: ExportedProgram) -> Iterator[list[Any]]:
    """Decisions about open sizes in the ``with`` block; after it the sizes are as open as before.

    A translation that compares a size with a number takes the example's side, and PyTorch writes down that
    this size is no other: the program is fixed from then on.
    """
    environments = {
        id(dim.node.shape_env): dim.node.shape_env
        for node in program.graph.find_nodes(op="placeholder")
        for dim in getattr(node.meta.get("val"), "shape", ())
        if hasattr(dim, "node")
    }.values()
    known = [
        {name: copy.copy(getattr(one, name)) for name in _KNOWN if hasattr(one, name)} for one in environments
    ]
    decided: list[Any] = []
    try:
        yield decided
    finally:
        for one, state in zip(environments, known, strict=True):
            decided += [guard.expr for guard in one.guards[len(state["guards"]) :]]
            for name, value in state.items():
                setattr(one, name, value)
            one._version_counter += 1
            one._replacements_version_counter += 1


def equations(program: ExportedProgram, shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Equations between sizes that hold in the program and not for these shapes.

    PyTorch exports with open sizes what it has fixed to the example's meanwhile (a table of positions), and
    keeps it as an equation that a call is checked by.  Tracing assumes at least 2 of an open dimension.
    """
    failed = []
    for text in dict.fromkeys(getattr(program, "_guards_code", ())):

        def size(match: re.Match[str]) -> str:
            name, axis = match[1], int(match[2])
            return str(max(2, shapes[name][axis])) if name in shapes else match[0]

        try:
            tree = ast.parse(_SIZE.sub(size, text), mode="eval")
        except SyntaxError:
            continue
        is_equation = isinstance(tree.body, ast.Compare) and isinstance(tree.body.ops[0], ast.Eq)
        if not is_equation or not all(isinstance(node, _ARITHMETIC) for node in ast.walk(tree)):
            continue
        with contextlib.suppress(ZeroDivisionError):
            if not eval(compile(tree, "<equation>", "eval"), {"__builtins__": {}}):
                failed.append(_SIZE.sub(r"\1.shape[\2]", text))
    return failed


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
            if not _is_global(node.args[1:2]):
                return True
    return False


def _is_global(sizes: Sequence[Any]) -> bool:
    """Whether pooling to these sizes has one window, the whole image, at every size."""
    wanted = sizes[0] if sizes else None
    return wanted == 1 or (isinstance(wanted, list | tuple) and bool(wanted) and set(wanted) == {1})


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
        if line.startswith(_GUARD):
            condition = re.sub(r"\.size\(\)\[(\d+)\]", r".shape[\1]", line.removeprefix(_GUARD))
            short = condition if len(condition) <= _LONGEST else f"{condition[:_LONGEST]} ..."
            at = ", ".join(f"{name} of {'x'.join(map(str, shape))}" for name, shape in shapes.items())
            raise ModelError(
                "The program was exported with a condition on its sizes that does not hold at all of them.",
                problems=[f"not for {at}: {short}"],
                hint="Give ranges without these sizes, or export the program once for each side of it.",
            ) from error
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
