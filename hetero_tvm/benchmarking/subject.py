"""The subject of a comparison: our library, the model for the other runtimes, and the inputs for all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hetero_tvm.errors import UsageError, did_you_mean
from hetero_tvm.generation.facts import EMBEDDING
from hetero_tvm.reference.given import checked_inputs, read_inputs
from hetero_tvm.runtime import Signature, TensorSpec, read_manifest
from hetero_tvm.runtime.signature import size_of

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


@dataclass(frozen=True)
class Sizes:
    """Sizes and values that the user names for inputs.

    Parameters
    ----------
    shapes : whole shapes by input name.
    batch, sequence : sizes of open dimensions by role.
    given : file of arrays by input name; None: they are drawn.
    """

    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    batch: int | None = None
    sequence: int | None = None
    given: Path | None = None


def from_library(
    library: Path,
    model: ImportedModel | None,
    source: str | None,
    folder: Path,
    sizes: Sizes = Sizes(),  # noqa: B008 (frozen)
) -> Subject:
    """An exported library, with the imported ``model`` it was made from (None: ours alone).

    ``source`` is what ``model`` was imported from, ``folder`` receives the files for the workers.

    Raises
    ------
    UsageError : the model has another signature than the library, or sizes do not fit it.
    InputError : the given arrays do not fit.
    """
    manifest = read_manifest(library)
    files: dict[str, Path | None] = {"library": library, "model": None, "clean_model": None}
    given = None if sizes.given is None else read_inputs(sizes.given)
    if model is None:
        if EMBEDDING in manifest.language and given is None and not sizes.shapes:
            raise UsageError(
                "inputs of a model that embeds texts are the tokens of one",
                hint=f"python -m hetero_tvm.bench {library.parent} --shape ids=128 --shape positions=128",
            )
        if manifest.language and given is None and not sizes.shapes:
            raise UsageError(
                "inputs of a language model are texts",
                hint=f"python -m hetero_tvm.bench {library.parent} --decode; for one call --shape NAME=SIZE",
            )
        if given is None:
            given = _plain_inputs(_fixed(manifest.signature, sizes))
        return Subject(manifest.name, files, checked_inputs(_shaped_like(manifest.signature, given), given))
    _check_same(_at_sizes_of(manifest.signature, model.signature), model.signature, library, str(source))
    from hetero_tvm.frontend.onnx.values import fix_values
    from hetero_tvm.frontend.torch.run import TorchProgram
    from hetero_tvm.reference import sample_inputs

    original = fix_values(_original(source, model), model.values)
    files["model"] = save(with_fixed_inputs(original, model.signature), folder / "model.onnx")
    files["clean_model"] = save(model.onnx_model, folder / "clean.onnx")
    if isinstance(model.original, TorchProgram):
        files["program"] = model.original.save(folder / "program.pt2")
    inputs = sample_inputs(model.onnx_model) if given is None else checked_inputs(model.signature, given)
    return Subject(manifest.name, files, inputs)


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


def _at_sizes_of(ours: Signature, theirs: Signature) -> Signature:
    """The library's signature at the sizes of a model, where it leaves sizes open that the model has.

    :class:`UsageError` lists those that lie outside of its ranges.
    """
    names = {spec.name for spec in ours.inputs}
    shapes = {spec.name: spec.shape for spec in theirs.inputs if spec.static}
    return _fixed(ours, Sizes(shapes)) if ours.symbols and names == shapes.keys() else ours


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


def _fixed(signature: Signature, sizes: Sizes) -> Signature:
    """The signature with the dimensions that the user names.  :class:`UsageError` lists what does not fit."""
    names = [spec.name for spec in signature.inputs]
    symbols = {symbol.name: symbol for symbol in signature.symbols}
    problems = [f"there is no input {name!r}" for name in sizes.shapes if name not in {*names, *symbols}]
    highest = {name: symbol.high for name, symbol in symbols.items()}
    fixed, asked = [], []
    known: dict[str, int] = {}
    if unusable := [
        f"{name}: {size} is no size to call with"
        for name, given in sizes.shapes.items()
        for size in given
        if not isinstance(size, int)
    ]:
        raise UsageError(
            "these sizes do not fit the library",
            problems=[*problems, *unusable],
            hint=_inputs_told(signature),
        )
    known.update({name: given[0] for name, given in sizes.shapes.items() if name not in names})
    for spec in signature.inputs:
        given = sizes.shapes.get(spec.name, spec.shape)
        for index, (name, size) in enumerate(zip(spec.shape, given, strict=False)):
            if name in symbols and isinstance(size := _size(size, index, sizes), int):
                known.setdefault(str(name), size)
    for spec in signature.inputs:
        shape = tuple(sizes.shapes.get(spec.name, spec.shape))
        shape = tuple(_known_size(dimension, index, sizes, known) for index, dimension in enumerate(shape))
        wanted = list(zip(spec.shape, shape, strict=True)) if len(shape) == len(spec.shape) else [(0, 1)]
        if any(isinstance(have, int) and have != want for have, want in wanted):
            problems.append(f"{spec.name} is {list(spec.shape)} in the library, not {list(shape)}")
        if open_ones := [size for size in shape if isinstance(size, str)]:
            problems.append(f"{spec.name}: how large is {', '.join(map(repr, open_ones))}?")
            asked.append(f"--shape {spec.name}={'x'.join(str(highest.get(size, size)) for size in shape)}")
        for have, want in wanted:
            symbol = symbols.get(have)
            if symbol is not None and isinstance(want, int) and want not in symbol.sizes:
                problems.append(f"{spec.name}: {have} is {want}, {symbol.misfit(want)}")
        fixed.append(replace(spec, shape=shape))
    first = signature.inputs[0].shape[:1] if signature.inputs else ()
    if sizes.batch is not None and first and isinstance(first[0], int) and first[0] != sizes.batch:
        problems.append(f"the library was built for a batch of {first[0]}, not {sizes.batch}")
    if problems:
        raise UsageError(
            "these sizes do not fit the library",
            problems=problems,
            hint=f"{_inputs_told(signature)}{'; for example ' if asked else ''}{' '.join(asked)}",
        )
    return Signature(tuple(fixed), signature.outputs)


def _known_size(dimension: int | str, index: int, sizes: Sizes, known: Mapping[str, int]) -> int | str:
    """Size of a dimension: of a sum, what the sizes that it adds make it."""
    if isinstance(dimension, str):
        with contextlib.suppress(KeyError):
            return size_of(dimension, known)
        if " " in dimension:  # an expression, and no name that tells a role
            return dimension
    return _size(dimension, index, sizes)


def _inputs_told(signature: Signature) -> str:
    """The inputs, the ranges of their open dimensions, and what other sizes would need."""
    ranges = f" for {', '.join(map(str, signature.symbols))}" if signature.symbols else ""
    inputs = ", ".join(map(str, signature.inputs))
    return f"its inputs: {inputs}{ranges}; a model that is built anew can have other sizes"


def _size(dimension: int | str, index: int, sizes: Sizes) -> int | str:
    """Size of a dimension, by its role where the library leaves it open."""
    if isinstance(dimension, int):
        return dimension
    name = dimension.lower()
    if "past" in name:
        return dimension
    if sizes.batch is not None and ("batch" in name or index == 0):
        return sizes.batch
    if sizes.sequence is not None and ("seq" in name or "len" in name or index == 1):
        return sizes.sequence
    return dimension


def _shaped_like(signature: Signature, arrays: Mapping[str, np.ndarray]) -> Signature:
    """The signature with open dimensions as ``arrays`` have them, where their ranks agree."""

    def shaped(spec: TensorSpec) -> TensorSpec:
        shape = np.shape(arrays.get(spec.name, ()))
        if spec.static or len(shape) != len(spec.shape):
            return spec
        pairs = zip(spec.shape, shape, strict=True)
        return replace(spec, shape=tuple(have if isinstance(want, str) else want for want, have in pairs))

    return Signature(tuple(map(shaped, signature.inputs)), signature.outputs)


def _plain_inputs(signature: Signature) -> dict[str, np.ndarray]:
    """Inputs made without knowledge of the model: random floats, ones for integers."""
    from hetero_tvm.runtime.arrays import numpy_dtype

    generator = np.random.default_rng(0)
    inputs = {}
    for spec in signature.inputs:
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
    names = list(dict.fromkeys(name for peer in peers for name in table[peer]))
    return [n for n in names if installed(n)], [n for n in names if not installed(n)]
