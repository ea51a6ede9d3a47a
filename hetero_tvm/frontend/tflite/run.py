"""Judge of a TensorFlow Lite file: the file itself, run by LiteRT."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Collection, Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np
import onnx

from hetero_tvm.errors import ModelError, ShapeError, UsageError, last_line
from hetero_tvm.frontend.tflite.load import Program
from hetero_tvm.host.install import extra_command

_PACKAGES = {"ai_edge_litert": "ai-edge-litert", "tflite_runtime": "tflite-runtime"}


def interpreter_module() -> tuple[Any, str] | None:
    """LiteRT's module of interpreters and its name with the version; None where none is installed."""
    for module, distribution in _PACKAGES.items():
        try:
            found = importlib.import_module(f"{module}.interpreter")
        except ImportError:
            continue
        return found, f"{distribution} {metadata.version(distribution)}"
    return None


class LitertFile:
    """A file as LiteRT runs it.

    Parameters
    ----------
    data : bytes of the file.
    program : the same, decoded.
    shapes : shapes of its inputs, in order.
    model : its translation to ONNX, for other runtimes.
    coarse : whether LiteRT computes more coarsely than the file says, in steps that it chooses at run time.
    """

    exact = False

    def __init__(
        self,
        data: bytes,
        program: Program,
        shapes: Sequence[tuple[int, ...]],
        model: onnx.ModelProto,
        coarse: bool,
    ):
        self._data, self._program, self._shapes, self._model = data, program, list(shapes), model
        self.coarse = coarse
        found = interpreter_module()
        self.available = found is not None
        self.engine = (
            "no LiteRT, which would run the file itself (pip install ai-edge-litert)"
            if found is None
            else found[1]
        )

    def run(self, inputs: Mapping[str, np.ndarray], *, double: bool = False) -> tuple[np.ndarray, ...]:
        """Outputs in signature order, floats widened to float64 for ``double``.

        Raises
        ------
        ModelError : LiteRT cannot run the file.
        UsageError : LiteRT is not installed.
        """
        found = interpreter_module()
        if found is None:
            raise UsageError(
                "LiteRT, which runs TensorFlow Lite files, is not installed",
                hint=extra_command("tflite"),
            )
        try:
            interpreter = opened(found[0], self._data, self._program, [np.shape(x) for x in inputs.values()])
            main = self._program.graphs[0]
            for number, array in zip(main.inputs, inputs.values(), strict=True):
                interpreter.set_tensor(number, np.ascontiguousarray(array))
            interpreter.invoke()
            arrays = [np.array(interpreter.get_tensor(number)) for number in main.outputs]
        except (RuntimeError, ValueError) as error:
            raise ModelError(f"{self.engine} cannot run this file: {last_line(error)}") from error
        return tuple(x.astype(np.float64) if double and x.dtype.kind == "f" else x for x in arrays)

    def tensors(self, inputs: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, np.ndarray]:
        """{}: names inside the translation are not those of the file."""
        return {}

    def to_onnx(self) -> onnx.ModelProto:
        """The translation to ONNX."""
        return self._model


def opened(
    module: Any, data: bytes, program: Program, shapes: Sequence[tuple[int, ...]], plain: bool = False
) -> Any:
    """An interpreter of a file, ready for inputs of given shapes.

    ``plain`` : without the delegates that take whole parts of a graph, so that it knows every tensor.
    """
    main = program.graphs[0]
    kinds = module.OpResolverType
    kind = kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES if plain else kinds.AUTO
    made = module.Interpreter(model_content=data, experimental_op_resolver_type=kind)
    for number, shape in zip(main.inputs, shapes, strict=True):
        if main.tensors[number].shape != tuple(shape):
            made.resize_tensor_input(number, list(shape))
    made.allocate_tensors()
    return made


def shapes_at(data: bytes, program: Program, shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Shapes of all tensors of the first graph, for inputs of given shapes.

    Those that follow from shapes that are computed are known once the graph has run, which it does on zeros.

    Raises
    ------
    UsageError : LiteRT, which knows them, is not installed.
    ShapeError : the file does not take these shapes.
    """
    found = interpreter_module()
    if found is None:
        raise UsageError(
            "Other sizes than a TensorFlow Lite file was written with need LiteRT, which is not installed",
            hint=f"{extra_command('tflite')}, or leave the shapes as they are",
        )
    try:
        interpreter = opened(found[0], data, program, shapes, plain=True)
        for one in interpreter.get_input_details():
            if np.dtype(one["dtype"]).kind in "fiub":
                interpreter.set_tensor(one["index"], np.zeros(one["shape"], one["dtype"]))
        with contextlib.suppress(RuntimeError):  # what cannot run on zeros keeps the shapes that are planned
            interpreter.invoke()
        details = {one["index"]: one for one in interpreter.get_tensor_details()}
    except (RuntimeError, ValueError) as error:
        raise ShapeError(f"The file does not take these shapes: {last_line(error)}") from error
    tensors = program.graphs[0].tensors
    return [
        tuple(int(x) for x in details[n]["shape"]) if n in details else tensor.shape
        for n, tensor in enumerate(tensors)
    ]
