"""PyTorch front end: from an exported program (object or ``.pt2`` file) to :class:`ImportedModel`.

PyTorch's own exporter translates the program to ONNX, and the ONNX front end does the rest: one
clean-up, one set of converters, one form for the fusion rules.  Names are those of the program:
``model.layers.0.self_attn.q_proj/linear_3`` is node ``linear_3`` of that module.  The imported
model keeps the program, which judges its numbers (see :mod:`hetero_tvm.frontend.torch.run`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from hetero_tvm.errors import ShapeError, UsageError
from hetero_tvm.frontend.onnx.importer import import_onnx
from hetero_tvm.frontend.onnx.shapes import declared_dimensions, fix_input_shapes
from hetero_tvm.frontend.signature import ImportedModel, Span
from hetero_tvm.frontend.torch.causes import refuse_without_values
from hetero_tvm.frontend.torch.load import load_program, require
from hetero_tvm.frontend.torch.run import TorchProgram
from hetero_tvm.frontend.torch.specialize import depends_on_sizes, equations, sizes_kept, with_sizes
from hetero_tvm.frontend.torch.state import with_state
from hetero_tvm.frontend.torch.to_onnx import to_onnx

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def import_torch(
    source: str | Path | ExportedProgram,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    sequence: int | None = None,
    name: str | None = None,
    trust: bool = False,
) -> ImportedModel:
    """Import a program exported by ``torch.export`` with fixed shapes.

    Parameters
    ----------
    source : path of a ``.pt2`` file, or a ``torch.export.ExportedProgram`` (not changed).
    shapes : dimensions by input name, for dimensions that the program leaves open.
    batch, sequence : sizes of open dimensions: the first of any input is a batch, the second of
        inputs with two or three dimensions is a sequence.
    name : name of the result; by default the stem of the file.
    trust : whether a file may run code while it is read (see ``untrusted.py``).

    Raises
    ------
    UsageError : PyTorch or its ONNX exporter (onnxscript) is not installed, or the source is no program.
    ModelError : the file is broken, or the program is not a function of tensors.
    UnsupportedOperatorError : operators without translation (all are listed).
    ShapeError : shapes are missing, contradictory, or outside what the program was exported for.
    """
    _, _, load = open_torch(source, batch=batch, sequence=sequence, name=name, trust=trust, open_sizes=False)
    return load(shapes or {})


def open_torch(
    source: str | Path | ExportedProgram,
    *,
    batch: int | None = None,
    sequence: int | None = None,
    name: str | None = None,
    trust: bool = False,
    telling: int = 0,
    open_sizes: bool = True,
    by_places: Collection[str] = (),
) -> tuple[
    dict[str, list[int | str | None] | None], dict[str, list[int | None]], Callable[..., ImportedModel]
]:
    """Read a program once, to import it at several sizes; arguments and errors as :func:`import_torch`.

    Sizes up to ``telling`` are never beyond what the program was exported for: they tell how its numbers
    follow from sizes, and it never runs with them.  ``open_sizes`` : whether each model is one of several, of
    which each has other sizes; ``by_places`` : see :func:`hetero_tvm.frontend.onnx.importer.open_onnx`.

    Returns
    -------
    The dimensions of its inputs, the largest sizes of these that it was exported for (None: any), and what
    imports it with given shapes, of the ranges that were asked for.
    """
    if isinstance(source, str | Path):
        program = load_program(Path(source), trust)
        name = name or Path(source).stem
    else:
        program = source
    torch = require("torch")
    if not isinstance(program, torch.export.ExportedProgram):
        raise UsageError(
            f"A PyTorch program is a path or a torch.export.ExportedProgram, not {type(source)}."
        )
    refuse_without_values({**program.constants, **program.state_dict}.items())
    program, _ = with_state(program)
    with sizes_kept(program) as decided:
        model = to_onnx(program)
    inputs = model.proto.graph.input
    dims = _open_inputs(torch, program)
    for value in inputs:
        for dim, extent in zip(value.type.tensor_type.shape.dim, dims[value.name], strict=True):
            if isinstance(extent, int):  # PyTorch fixed it while it traced, and the exporter writes a symbol
                dim.dim_value = extent

    def load(
        shapes: Mapping[str, Sequence[int]], asked: Mapping[str, Sequence[Any]] = MappingProxyType({})
    ) -> ImportedModel:
        sizes = fix_input_shapes(inputs, shapes, batch=batch, sequence=sequence, least=0)
        values = _refuse_outside(dims, program.range_constraints, sizes, telling, asked)
        if failed := equations(program, sizes):
            raise ShapeError(
                "PyTorch fixed sizes of the program when it was exported, though they are open.",
                problems=[f"{equation} in the program" for equation in failed],
                hint="Export the model with an example of the sizes that it will run with.",
            )
        is_other = any(decision.subs(values) != True for decision in decided)  # noqa: E712 of SymPy
        fixed = to_onnx(with_sizes(program, sizes)) if is_other or depends_on_sizes(program) else model
        options = {
            "name": name or "torch_program",
            "least": 0,
            "open_sizes": open_sizes,
            "by_places": by_places,
        }
        imported = import_onnx(fixed, shapes=sizes, **options)
        return dataclasses.replace(imported, original=TorchProgram(program, list(sizes)))

    return declared_dimensions(inputs), _largest(dims, program.range_constraints), load


_UNBOUNDED = 1 << 31
"""Sizes from which on an end is none: PyTorch's own for what has no end."""


def _largest(inputs: Mapping[str, list[Any]], ranges: Mapping[Any, Any]) -> dict[str, list[int | None]]:
    """Largest sizes of the dimensions of inputs that a program was exported for; None for any."""

    def largest(dim: Any) -> int | None:
        if isinstance(dim, int):
            return dim
        uppers = {symbol: ranges[symbol].upper for symbol in dim.free_symbols if symbol in ranges}
        bound = dim.subs(uppers)
        return int(bound) if bound.is_Integer and 0 < bound < _UNBOUNDED else None

    return {name: [largest(dim) for dim in dims] for name, dims in inputs.items()}


def _open_inputs(torch: ModuleType, program: ExportedProgram) -> dict[str, list[Any]]:
    """Dimensions of each tensor input in the program: numbers or expressions of symbols."""
    names = set(program.graph_signature.user_inputs)

    def extent(dim: Any) -> Any:
        expr = dim.node.expr if isinstance(dim, torch.SymInt) else dim
        return int(expr) if getattr(expr, "is_Integer", False) else expr

    return {
        node.name: [extent(dim) for dim in node.meta["val"].shape]
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in names and isinstance(node.meta.get("val"), torch.Tensor)
    }


def _refuse_outside(
    inputs: Mapping[str, list[Any]],
    ranges: Mapping[Any, Any],
    shapes: Mapping[str, tuple[int, ...]],
    telling: int,
    asked: Mapping[str, Sequence[Any]],
) -> dict[Any, int]:
    """Refuse sizes that the program was not exported for, all at once; values of its symbols.

    Tracing assumes at least 2 of a symbol, so its value is no less.
    """
    values: dict[Any, int] = {}
    computed, problems = [], []
    for name, shape in shapes.items():
        for axis, (dim, size) in enumerate(zip(inputs[name], shape, strict=True)):
            if isinstance(dim, int):
                continue
            if not dim.is_Symbol:
                computed.append((name, axis, dim, size))
                continue
            bounds = ranges.get(dim)
            # Tracing assumes at least 2 wherever it is not told otherwise; 1 then works as well.
            low = 1 if bounds is None or bounds.lower <= 2 else int(bounds.lower)
            if values.setdefault(dim, size) != size:
                problems.append(f"{name}: dimension {axis} is {size}, elsewhere {values[dim]}")
            if bounds is None or values[dim] != size:
                continue
            span = asked[name][axis] if name in asked and axis < len(asked[name]) else None
            if isinstance(span, Span) and span.high is not None and span.high > bounds.upper:
                size = span.high  # also where it is no more than the sizes that tell
            elif low <= size <= telling:
                continue
            if not low <= size <= bounds.upper:
                problems.append(f"{name}: dimension {axis} is {size}; exported for {low} to {bounds.upper}")
    for name, axis, dim, size in computed:  # 32 * h alone tells h
        if len(unknown := dim.free_symbols - set(values)) == 1 and len(dim.free_symbols) == 1:
            one = unknown.pop()
            slope = dim.coeff(one)
            if slope.is_Integer and slope and (dim - slope * one).is_Integer:
                count, rest = divmod(size - int(dim - slope * one), int(slope))
                if rest == 0:
                    values[one] = count
                    bounds = ranges.get(one)
                    low = 1 if bounds is None or bounds.lower <= 2 else int(bounds.lower)
                    if bounds is not None and not low <= count <= max(bounds.upper, telling):
                        ends = f"{dim.subs(one, low)} to {dim.subs(one, bounds.upper)}"
                        problems.append(f"{name}: dimension {axis} is {size}; exported for {ends}")
    for name, axis, dim, size in computed:
        wanted = dim.subs(values)
        if wanted.is_number and wanted != size:
            problems.append(f"{name}: dimension {axis} is {size}, other inputs make it {wanted}")
    if problems:
        raise ShapeError(
            "The program was not exported for these shapes.",
            problems=problems,
            hint="Give other shapes, or export it with wider dynamic_shapes.",
        )
    return {symbol: max(2, value) for symbol, value in values.items()}
