"""Import of TensorFlow Lite files, through the ONNX front end: what is fused in models is fused in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hetero_tvm.errors import ShapeError
from hetero_tvm.frontend.onnx.importer import import_onnx
from hetero_tvm.frontend.signature import ImportedModel
from hetero_tvm.frontend.tflite.load import Graph, Program, read_bytes, read_program
from hetero_tvm.frontend.tflite.run import LitertFile, interpreter_module, shapes_at
from hetero_tvm.frontend.tflite.translation import to_onnx


def import_tflite(
    source: str | Path,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    name: str | None = None,
) -> ImportedModel:
    """Import a file, with the shapes that it was written with or others that it takes.

    Parameters
    ----------
    source : path of a ``.tflite`` file.
    shapes : shapes of inputs by name, where they differ from the file's; LiteRT must be installed then.
    batch : first extent of the inputs that leave it open.
    name : of the result; by default the stem of the file.

    Raises
    ------
    UsageError : the package ``tflite`` is missing, or ``ai-edge-litert`` where other shapes are asked for.
    ModelError : the file is broken, or no TensorFlow Lite file.
    ShapeError : unknown inputs, or shapes that the file does not take.
    UnsupportedOperatorError : operators without a translation (all are listed).
    """
    _, load = open_tflite(source, batch=batch, name=name)
    return load(shapes or {})


def open_tflite(
    source: str | Path, *, batch: int | None = None, name: str | None = None
) -> tuple[dict[str, list[int | str | None] | None], Callable[[Any], ImportedModel]]:
    """Read a file once, to import it at several sizes.

    Returns
    -------
    The dimensions of its inputs as the file declares them, and what imports it with given shapes.
    """
    path = Path(source)
    data = read_bytes(path)
    program = read_program(data, str(path))

    def load(shapes: Mapping[str, Sequence[int]]) -> ImportedModel:
        sized = _sized(data, program, shapes, batch)
        model = to_onnx(sized)
        main = sized.graphs[0]
        imported = import_onnx(model, name=name or path.stem)
        ends = [main.tensors[number].shape for number in main.inputs]
        return dataclasses.replace(
            imported, original=LitertFile(data, program, ends, model, _is_coarse(sized))
        )

    return _declared(program), load


def _declared(program: Program) -> dict[str, list[int | str | None] | None]:
    """Dimensions of the inputs; one symbol for all open batches."""
    main = program.graphs[0]
    return {
        name: [
            extent if extent >= 0 else "batch" if axis == 0 else f"{name}_{axis}"
            for axis, extent in enumerate(main.tensors[number].declared)
        ]
        for name, number in zip(program.inputs, main.inputs, strict=True)
    }


def _sized(data: bytes, program: Program, shapes: Mapping[str, Sequence[int]], batch: int | None) -> Program:
    """The program for inputs of given shapes."""
    main = program.graphs[0]
    unknown = [name for name in shapes if name not in program.inputs]
    if unknown:
        raise ShapeError(
            f"The file has no input {', '.join(map(repr, unknown))}.",
            hint=f"Its inputs: {', '.join(program.inputs)}.",
        )
    wanted = []
    for name, number in zip(program.inputs, main.inputs, strict=True):
        tensor = main.tensors[number]
        shape = tuple(int(x) for x in shapes.get(name, tensor.shape))
        if name not in shapes and batch is not None and tensor.declared[:1] == (-1,):
            shape = (batch, *shape[1:])
        if len(shape) != len(tensor.shape):
            raise ShapeError(f"Input {name!r} has {len(tensor.shape)} dimensions, not {len(shape)}.")
        wanted.append(shape)
    is_as_written = wanted == [main.tensors[number].shape for number in main.inputs]
    if is_as_written and not (_has_open_values(main) and interpreter_module()):
        return program
    if not is_as_written and len(program.graphs) > 1:
        raise ShapeError(
            "A file with loops or branches keeps the shapes that it was written with.",
            hint="Convert the model for the shapes that you need.",
        )
    found = shapes_at(data, program, wanted)
    tensors = tuple(
        tensor if tensor.data is not None else dataclasses.replace(tensor, shape=shape)
        for tensor, shape in zip(main.tensors, found, strict=True)
    )
    return dataclasses.replace(
        program, graphs=(dataclasses.replace(main, tensors=tensors), *program.graphs[1:])
    )


def _has_open_values(graph: Graph) -> bool:
    """Whether extents inside of a graph are 1 only because they were open where it was converted.

    Keras writes a batch that is open as 1, and with it the rows that tokens, or blocks of pixels, become.
    """
    ends = {*graph.inputs, *graph.outputs}
    return any(
        -1 in tensor.declared and tensor.data is None and number not in ends
        for number, tensor in enumerate(graph.tensors)
    )


def _is_coarse(program: Program) -> bool:
    """Whether anything is computed in steps: of 8 bits, or of those that LiteRT chooses for 8-bit weights."""
    return any(
        tensor.scale is not None and operator.kind not in ("DEQUANTIZE", "QUANTIZE")
        for graph in program.graphs
        for operator in graph.operators
        for tensor in (graph.tensors[number] for number in operator.inputs if number >= 0)
    )
