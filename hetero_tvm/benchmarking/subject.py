"""The subject of a comparison: our library, the model for the other runtimes, and the inputs for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hetero_tvm.errors import UsageError, did_you_mean
from hetero_tvm.runtime import Signature, read_manifest

if TYPE_CHECKING:
    import onnx

    from hetero_tvm.frontend.signature import ImportedModel

_INLINE_LIMIT = 1 << 30  # larger models are saved with their weights in a file beside them


@dataclass(frozen=True)
class Subject:
    """One model in the forms that runtimes take.

    Parameters
    ----------
    files : by the keys that :func:`hetero_tvm.benchmarking.compare.compare` takes.
    inputs : arrays by input name.
    """

    name: str
    files: dict[str, Path | None]
    inputs: dict[str, np.ndarray]


def from_library(library: Path, model: ImportedModel | None, source: str | None, folder: Path) -> Subject:
    """An exported library, with the imported ``model`` it was made from (None: ours alone).

    ``source`` is what ``model`` was imported from, ``folder`` receives the files for the workers.

    Raises :class:`UsageError` when the model has another signature than the library.
    """
    manifest = read_manifest(library)
    files: dict[str, Path | None] = {"library": library, "model": None, "clean_model": None}
    if model is None:
        return Subject(manifest.name, files, _plain_inputs(manifest.signature))
    _check_same(manifest.signature, model.signature, library, str(source))
    from hetero_tvm.reference import sample_inputs

    files["model"] = save(with_fixed_inputs(_original(source, model), model.signature), folder / "model.onnx")
    files["clean_model"] = save(model.onnx_model, folder / "clean.onnx")
    return Subject(manifest.name, files, sample_inputs(model.onnx_model))


def _original(source: str | None, model: ImportedModel) -> onnx.ModelProto:
    """Model before our import: other runtimes look for patterns as exporters write them."""
    import onnx

    if model.original is not None:
        return model.original.to_onnx()
    if isinstance(source, str) and source.startswith("zoo:"):
        from hetero_tvm import zoo

        first = model.signature.inputs[0].shape
        sizes: dict[str, int] = {"batch": int(first[0])}
        if len(first) == 2:
            sizes["sequence"] = int(first[1])
        return zoo.build(source.removeprefix("zoo:"), **sizes)
    return onnx.load(str(source))


def with_fixed_inputs(proto: onnx.ModelProto, signature: Signature) -> onnx.ModelProto:
    """A copy of ``proto`` whose inputs have the shapes of ``signature``; nothing else is touched."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    shapes = {spec.name: spec.shape for spec in signature.inputs}
    for value in copy.graph.input:
        if value.name in shapes:
            for dimension, size in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=True):
                dimension.dim_value = int(size)
    return copy


def save(proto: onnx.ModelProto, path: Path) -> Path:
    """Write an ONNX model, with external data when it is large."""
    import onnx

    large = proto.ByteSize() > _INLINE_LIMIT
    onnx.save_model(proto, str(path), save_as_external_data=large, location=path.name + ".data")
    return path


def _check_same(ours: Signature, theirs: Signature, library: Path, source: str) -> None:
    problems = [
        f"input {have} in the library, {want} in the model"
        for have, want in zip(ours.inputs, theirs.inputs, strict=False)
        if (have.name, tuple(have.shape), have.dtype) != (want.name, tuple(want.shape), want.dtype)
    ]
    if len(ours.inputs) != len(theirs.inputs):
        problems.append(f"{len(ours.inputs)} inputs in the library, {len(theirs.inputs)} in the model")
    if problems:
        raise UsageError(
            f"{library} was not built from {source}",
            problems=problems,
            hint="name the model and the --shape that the library was built with",
        )


def _plain_inputs(signature: Signature) -> dict[str, np.ndarray]:
    """Inputs made without knowledge of the model: random floats, ones for integers."""
    from hetero_tvm.runtime.arrays import numpy_dtype

    generator = np.random.default_rng(0)
    inputs = {}
    for spec in signature.inputs:
        if not spec.static:
            raise UsageError(f"input {spec} has no fixed shape", hint="name the model with --model")
        dtype = numpy_dtype(spec.dtype)
        random = generator.standard_normal(spec.shape) if dtype.kind not in "biu" else np.ones(spec.shape)
        inputs[spec.name] = random.astype(dtype)
    return inputs


def choose_runtimes(
    peers: Sequence[str], table: Mapping[str, Sequence[str]], installed: Callable[[str], bool]
) -> tuple[list[str], list[str]]:
    """Runtimes to run, and those that are not installed, for the values of ``--vs``.

    Raises :class:`UsageError` for an unknown name.
    """
    unknown = [name for name in peers if name not in table]
    if unknown:
        guesses = [guess for name in unknown if (guess := did_you_mean(name, table))]
        raise UsageError(
            f"--vs: unknown runtime {', '.join(unknown)}",
            hint=" ".join([*guesses, f"choose among {', '.join(table)}"]),
        )
    names = [name for peer in dict.fromkeys(peers) for name in table[peer]]
    return [n for n in names if installed(n)], [n for n in names if not installed(n)]
