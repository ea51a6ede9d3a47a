"""Front ends: model files and objects -> Relax with fixed shapes and a signature."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from onnx import ModelProto

from hetero_tvm import zoo
from hetero_tvm.errors import ModelError, UsageError, expect
from hetero_tvm.frontend.bounds import within
from hetero_tvm.frontend.dimensions import Shapes, named
from hetero_tvm.frontend.kernels.importer import import_description
from hetero_tvm.frontend.onnx.importer import import_onnx, open_onnx
from hetero_tvm.frontend.onnx.relax import source_names
from hetero_tvm.frontend.ranges import import_open
from hetero_tvm.frontend.signature import ImportedModel, Signature, Span, TensorSpec, parse_shape_option
from hetero_tvm.frontend.stablehlo.importer import import_stablehlo, open_stablehlo
from hetero_tvm.frontend.stablehlo.load import SUFFIXES, is_serialized
from hetero_tvm.frontend.telling import LEAST_TELLING
from hetero_tvm.frontend.tflite.importer import import_tflite, open_tflite
from hetero_tvm.frontend.tflite.load import SUFFIX as TFLITE

__all__ = [
    "ImportedModel",
    "Signature",
    "Span",
    "TensorSpec",
    "import_model",
    "import_onnx",
    "parse_shape_option",
    "source_names",
]


_TORCH = (".pt2", ".pt", ".pth")
_OTHERS = (*_TORCH, ".json", TFLITE, *SUFFIXES)
"""Endings of files that are no ONNX models."""
_PROGRAM = "torch.export.exported_program.ExportedProgram"
_EXPORTS = {
    "torch.nn": "torch.export.export(model.eval(), example_inputs)",
    "sklearn": "skl2onnx.to_onnx(model, X[:1])",
    "keras": "model.export('model.onnx', format='onnx')",
    "jax": "jax.export.export(jax.jit(function))(*example_inputs)",
}
"""Calls that export a model, by the package that its class comes from."""


def import_model(
    source: Any,
    *,
    shapes: Mapping[str, Sequence[int | str | Span]] | None = None,
    batch: int | None = None,
    sequence: int | None = None,
    seed: int = 0,
    trust: bool = False,
    values: Mapping[str, Any] | None = None,
) -> ImportedModel:
    """Import a model: ``zoo:NAME``, a file (ONNX, ``.pt2``, ``.tflite``, StableHLO, JSON), or an object.

    Objects are an ``onnx.ModelProto``, a ``torch.export.ExportedProgram`` or the ``ONNXProgram``
    that ``torch.onnx.export`` returns.

    Parameters
    ----------
    shapes : dimensions by input name, for inputs that the model leaves symbolic; a :class:`Span` for a
        dimension that stays open, a string (``"past + sequence"``) for one that is a sum of others.  The name
        of a dimension stands for all of that name: ``{"past": (Span(0, 512),)}``.
    batch, sequence : sizes by role: options of a zoo model, or values of symbols with such names.
    trust : whether a ``.pt2`` file may run code while it is read.
    seed : seed of a zoo model's weights.
    values : numbers or arrays by input name, of inputs of an ONNX model that never change: they become
        constants of it.

    Raises
    ------
    UsageError : a source that is not (or not yet) supported.
    ModelError : see :func:`import_onnx` and :func:`hetero_tvm.frontend.torch.importer.import_torch`; unknown
        zoo names list the known ones.
    """
    expect(shapes, (Mapping, type(None)), "shapes are sizes by name of an input, as in {'x': (1, 128)}")
    shapes = None if shapes is None else {name: _dimensions(name, sizes) for name, sizes in shapes.items()}
    expect(values, (Mapping, type(None)), "values are numbers by name of an input, as in {'rate': 16000}")
    source = getattr(source, "model_proto", source)  # torch.onnx.ONNXProgram
    if values and not _is_onnx(source):
        raise UsageError(
            "values= fixes inputs of ONNX models only",
            hint="export the model without these inputs, or to ONNX",
        )
    if _are_open(source, shapes or {}):
        return _import_open(source, shapes or {}, batch, sequence, seed, trust, values)
    if isinstance(source, str) and source.startswith("zoo:"):
        return _import_zoo(source.removeprefix("zoo:"), shapes or {}, batch, sequence, seed)
    if isinstance(source, ModelProto):
        return import_onnx(source, shapes=shapes, batch=batch, sequence=sequence, values=values)
    if isinstance(source, str | Path):
        suffix = _ending(source)
        if suffix in _TORCH:
            return _import_torch(source, shapes=shapes, batch=batch, sequence=sequence, trust=trust)
        if suffix == ".json":
            return import_description(source)
        if suffix in SUFFIXES:
            return import_stablehlo(source, shapes=shapes)
        if suffix == TFLITE:
            return import_tflite(source, shapes=shapes, batch=batch)
        if not Path(source).exists() and str(source) in zoo.names():
            raise ModelError(f"There is no model file {source}.", hint=f"Did you mean zoo:{source}?")
        return import_onnx(source, shapes=shapes, batch=batch, sequence=sequence, values=values)
    if _is_jax(source):
        return import_stablehlo(source, shapes=shapes)
    if _kind(source) == _PROGRAM:
        return _import_torch(source, shapes=shapes, batch=batch, sequence=sequence)
    raise UsageError(
        f"A model is zoo:NAME, a path, an onnx.ModelProto, a torch.export.ExportedProgram or what jax.export "
        f"gives, not {_kind(source).removeprefix('builtins.')}.",
        hint=_export_of(source),
    )


def _export_of(source: Any) -> str | None:
    """Advice for an object of another package that is a model there; None for what is none."""
    modules = {f"{base.__module__}." for base in type(source).__mro__}
    for package, call in _EXPORTS.items():
        if any(module.startswith(f"{package}.") for module in modules):
            return f"Export it first: {call}."
    return f"Export it first: {_EXPORTS['jax']}, if it is a function of JAX." if callable(source) else None


def _dimensions(name: str, sizes: Any) -> tuple[int | str | Span, ...]:
    """The given dimensions, NumPy's integers as Python's.  :class:`UsageError` for what are none."""
    expect(name, (str,), "shapes are sizes by name of an input, as in {'x': (1, 128)}: a name is a text")
    found: list[int | str | Span] = []
    if isinstance(sizes, Sequence) and not isinstance(sizes, str | bytes):
        for size in sizes:
            if isinstance(size, Integral) and not isinstance(size, bool):
                found.append(int(size))
            elif isinstance(size, Span) or (isinstance(size, str) and any(map(str.isalpha, size))):
                found.append(size)
        if len(found) == len(sizes):
            return tuple(found)
    raise UsageError(
        f"shapes[{name!r}] is a list of whole numbers, as in (1, 128), not {sizes!r}",
        hint="a range of sizes is hetero_tvm.Span(8, 256), a sum of two dimensions 'past + sequence'",
    )


def _are_open(source: Any, shapes: Shapes) -> bool:
    """Whether ``shapes`` hold ranges or sums, or may name dimensions."""
    is_path = isinstance(source, str | Path)
    suffix = _ending(source)
    is_torch = suffix in _TORCH or _kind(source) == _PROGRAM
    if not (is_path or isinstance(source, ModelProto) or is_torch or _is_jax(source)):
        return False
    if any(isinstance(size, Span | str) for sizes in shapes.values() for size in sizes):
        return True
    there = False
    with contextlib.suppress(OSError):  # a name that is too long for a file
        there = not is_path or Path(source).exists()
    taken = _is_onnx(source) or is_torch or suffix in (TFLITE, *SUFFIXES) or _is_jax(source)
    return there and taken and any(len(sizes) == 1 for sizes in shapes.values())


def _kind(source: Any) -> str:
    return f"{type(source).__module__}.{type(source).__qualname__}"


def _is_jax(source: Any) -> bool:
    return hasattr(source, "mlir_module_serialized")  # jax.export.Exported


def _import_open(
    source: Any,
    shapes: Shapes,
    batch: int | None,
    sequence: int | None,
    seed: int,
    trust: bool,
    values: Mapping[str, Any] | None,
) -> ImportedModel:
    """Import a model with ranges of lengths; a file is read once."""
    options: dict[str, Any] = {"batch": batch, "sequence": sequence}
    if isinstance(source, str) and source.startswith("zoo:"):
        zoo_name = source.removeprefix("zoo:")
        if by_name := [name for name in ("batch", "sequence") if name in shapes]:
            raise UsageError(
                f"models of the zoo take {' and '.join(by_name)} as options, or ranges for their inputs",
                hint="--batch 4 --sequence 128, or --shape input_ids=1..4x8..128 for every input",
            )
        names = [("batch", "sequence") if len(dims) == 2 else ("batch",) for dims in shapes.values()]
        declared = {name: dims for name, dims in zip(shapes, names, strict=True)}
        return import_open(
            shapes, declared, lambda fixed: _import_zoo(zoo_name, fixed, batch, sequence, seed)
        )
    suffix = _ending(source)
    by_places: set[str] = set()
    if suffix in _TORCH or _kind(source) == _PROGRAM:
        from hetero_tvm.frontend.torch.importer import open_torch

        declared, most, load_asked = open_torch(
            source, trust=trust, telling=LEAST_TELLING, by_places=by_places, **options
        )
        told = named(shapes, declared, **options)
        asked = within(told, declared, most)
        return import_open(asked, declared, lambda fixed: load_asked(fixed, asked), by_places, told)
    elif suffix == TFLITE:
        declared, load = open_tflite(source, batch=batch)
    elif suffix in SUFFIXES or _is_jax(source):
        declared, load = open_stablehlo(source)
    else:
        declared, load = open_onnx(source, **options, values=values, by_places=by_places)
    return import_open(named(shapes, declared, **options), declared, load, by_places)


def _is_onnx(source: Any) -> bool:
    """Whether a source is an ONNX model: in memory, or a file that is nothing else by its name."""
    if not isinstance(source, str | Path):
        return isinstance(source, ModelProto)
    return not str(source).startswith("zoo:") and _ending(source) not in _OTHERS


def _ending(source: Any) -> str:
    """Ending of a file's name, or the one that it would have by its content; empty for what is no path."""
    if not isinstance(source, str | Path):
        return ""
    ending = Path(source).suffix.lower()
    return ending if ending in _OTHERS or not is_serialized(Path(source)) else SUFFIXES[-1]


def _import_torch(source: Any, **options: Any) -> ImportedModel:
    # PyTorch is slow to import, and optional.
    from hetero_tvm.frontend.torch.importer import import_torch

    return import_torch(source, **options)


def _import_zoo(
    name: str, shapes: Mapping[str, Sequence[int]], batch: int | None, sequence: int | None, seed: int
) -> ImportedModel:
    """Build a zoo model for the asked sizes; ``shapes`` of its inputs set batch and sequence."""
    for given in shapes.values():
        if len(given) in (2, 4):
            batch = given[0] if batch is None else batch
        if len(given) == 2:
            sequence = given[1] if sequence is None else sequence
    model = zoo.build(name, batch=batch, sequence=sequence, seed=seed)
    return import_onnx(model, shapes=shapes, name=name)
