"""Reading of TensorFlow Lite files: flatbuffer -> plain data.  Every defect of a file is a ModelError."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hetero_tvm.errors import ModelError, UsageError
from hetero_tvm.frontend.onnx.load import no_such_file
from hetero_tvm.host.files import odd_kind
from hetero_tvm.host.install import extra_command

SUFFIX = ".tflite"

_IDENTIFIER = b"TFL3"
_DTYPES = {
    "FLOAT32": "float32", "FLOAT16": "float16", "FLOAT64": "float64", "BFLOAT16": "bfloat16", "BOOL": "bool",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64", "INT4": "int4",
    "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """A tensor of a graph.

    Parameters
    ----------
    shape : its extents as the file was written; -1 in ``declared`` marks those that may differ.
    dtype : NumPy's name, or the file's where NumPy has none (``string``, ``resource``, ...).
    data : its value, for a constant.
    scale, zero, axis : float = scale * (stored - zero), along ``axis`` where there are several; None, None, 0
        for a tensor that is not quantised.
    """

    name: str
    shape: tuple[int, ...]
    declared: tuple[int, ...]
    dtype: str
    data: np.ndarray | None = None
    scale: np.ndarray | None = None
    zero: np.ndarray | None = None
    axis: int = 0

    @property
    def quantization(self) -> tuple[Any, ...] | None:
        """Type, scales and zero points, comparable; None for a tensor that is not quantised."""
        if self.scale is None or self.zero is None:
            return None
        return (self.dtype, self.scale.tobytes(), self.zero.tobytes())


@dataclass(frozen=True)
class Operator:
    """Kind of an operator (``CONV_2D``; a custom one by its name), numbers of tensors (-1: none), options."""

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any


@dataclass(frozen=True)
class Graph:
    """One subgraph: tensors by number, operators in order, numbers of its ends."""

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """A file: subgraphs, the first of which is run, and the names of its ends."""

    graphs: tuple[Graph, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def schema() -> Any:
    """The package ``tflite``, which knows the layout of the files.

    Raises
    ------
    UsageError : it is not installed.
    """
    try:
        import tflite
    except ImportError as error:
        raise UsageError(
            f"TensorFlow Lite files are read with the package tflite, which cannot be imported: {error}",
            hint=extra_command("tflite"),
        ) from error
    return tflite


def read_bytes(path: Path) -> bytes:
    """Content of a file that says it is TensorFlow Lite's.

    Raises
    ------
    ModelError : there is no such file, it cannot be read, or it is something else.
    """
    if (kind := odd_kind(path)) is not None:
        raise ModelError(f"{path} is {kind}, not a TensorFlow Lite file.")
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise no_such_file(path, "*.tflite") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}.") from error
    if data[4:8] != _IDENTIFIER:
        raise ModelError(
            f"{path} is not a TensorFlow Lite file, or it is truncated ({len(data)} bytes).",
            hint="Check that the download or the conversion finished.",
        )
    return data


def read_program(data: bytes, where: str) -> Program:
    """Decode a file's bytes.

    Raises
    ------
    UsageError : the package ``tflite`` is missing.
    ModelError : the bytes are broken.
    """
    tflite = schema()
    try:
        return _Reader(tflite, data).program()
    except ModelError:
        raise
    except Exception as error:  # flatbuffers checks no offsets: a broken file fails anywhere
        raise ModelError(
            f"{where} is a broken TensorFlow Lite file: {type(error).__name__}: {error}",
            hint="Check that the download or the conversion finished.",
        ) from error


def _names(enumeration: Any) -> dict[int, str]:
    return {value: name for name, value in vars(enumeration).items() if not name.startswith("_")}


class _Reader:
    def __init__(self, tflite: Any, data: bytes):
        self._tflite, self._data = tflite, data
        self._model = tflite.Model.GetRootAsModel(data, 0)
        self._kinds, self._types = _names(tflite.BuiltinOperator), _names(tflite.TensorType)
        self._tables = [_names(tflite.BuiltinOptions), _names(tflite.BuiltinOptions2)]

    def program(self) -> Program:
        model = self._model
        graphs = tuple(self._graph(model.Subgraphs(i)) for i in range(model.SubgraphsLength()))
        if not graphs:
            raise ModelError("the TensorFlow Lite file holds no graph")
        main = graphs[0]
        given: list[dict[int, str]] = [{}, {}]
        signatures = [model.SignatureDefs(i) for i in range(model.SignatureDefsLength())]
        for signature in [one for one in signatures if one.SubgraphIndex() == 0][:1]:
            for index in range(signature.InputsLength()):
                given[0][signature.Inputs(index).TensorIndex()] = signature.Inputs(index).Name().decode()
            for index in range(signature.OutputsLength()):
                given[1][signature.Outputs(index).TensorIndex()] = signature.Outputs(index).Name().decode()
        ends = [
            _distinct([found.get(i, main.tensors[i].name) for i in numbers])
            for found, numbers in zip(given, (main.inputs, main.outputs), strict=True)
        ]
        return Program(graphs, ends[0], ends[1])

    def _graph(self, raw: Any) -> Graph:
        tensors = tuple(self._tensor(raw.Tensors(i)) for i in range(raw.TensorsLength()))
        operators = tuple(self._operator(raw.Operators(i)) for i in range(raw.OperatorsLength()))
        graph = Graph(tensors, operators, _numbers(raw.InputsAsNumpy()), _numbers(raw.OutputsAsNumpy()))
        used = [n for one in operators for n in (*one.inputs, *one.outputs)]
        if any(not -1 <= n < len(tensors) for n in used):
            raise ModelError("an operator of the TensorFlow Lite file names a tensor that is not there")
        if any(not 0 <= n < len(tensors) for n in (*graph.inputs, *graph.outputs)):
            raise ModelError("an end of the TensorFlow Lite file is a tensor that is not there")
        return graph

    def _tensor(self, raw: Any) -> Tensor:
        stored = self._types[raw.Type()]
        shape = _numbers(raw.ShapeAsNumpy())
        declared = _numbers(raw.ShapeSignatureAsNumpy()) or shape
        tensor = Tensor(
            name=(raw.Name() or b"").decode("utf-8", "replace"),
            shape=shape,
            declared=declared if len(declared) == len(shape) else shape,
            dtype=_DTYPES.get(stored, stored.lower()),
        )
        buffer = self._buffer(raw.Buffer())
        if len(buffer):
            if raw.Sparsity() is not None:
                raise ModelError(
                    f"tensor {tensor.name!r} is stored sparsely, which is not read",
                    hint="convert the model without sparsity",
                )
            tensor = replace(tensor, data=_array(buffer, tensor))
        details = raw.Quantization()
        if details is None or not details.ScaleLength() or tensor.dtype not in _QUANTISED:
            return tensor
        scale = np.array(details.ScaleAsNumpy(), np.float32)
        zero = (
            np.array(details.ZeroPointAsNumpy(), np.int64) if details.ZeroPointLength() else np.zeros(1, int)
        )
        axis = int(details.QuantizedDimension()) if scale.size > 1 else 0
        zero = np.broadcast_to(zero, scale.shape).astype(np.int64)
        return replace(tensor, scale=scale, zero=zero, axis=axis)

    def _buffer(self, number: int) -> np.ndarray:
        raw = self._model.Buffers(number)
        if raw.Offset() > 1:  # large files keep their weights behind the flatbuffer
            return np.frombuffer(self._data, np.uint8, raw.Size(), raw.Offset())
        found = raw.DataAsNumpy()
        return found if isinstance(found, np.ndarray) else np.zeros(0, np.uint8)

    def _operator(self, raw: Any) -> Operator:
        code = self._model.OperatorCodes(raw.OpcodeIndex())
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        kind = self._kinds.get(number, f"operator {number}")
        if kind == "CUSTOM":
            kind = (code.CustomCode() or b"CUSTOM").decode("utf-8", "replace")
        return Operator(
            kind, _numbers(raw.InputsAsNumpy()), _numbers(raw.OutputsAsNumpy()), self._options(raw)
        )

    def _options(self, raw: Any) -> Any:
        """The table of options, decoded: a mapping for a custom operator; None without one."""
        custom = raw.CustomOptionsAsNumpy()
        if isinstance(custom, np.ndarray) and custom.size:
            return _map(custom)
        pairs = [
            (raw.BuiltinOptionsType(), raw.BuiltinOptions()),
            (raw.BuiltinOptions2Type(), raw.BuiltinOptions2()),
        ]
        for names, (number, table) in zip(self._tables, pairs, strict=True):
            if number and table is not None and (found := getattr(self._tflite, names.get(number, ""), None)):
                options = found()
                options.Init(table.Bytes, table.Pos)
                return options
        return None


_QUANTISED = ("int4", "int8", "uint8", "int16", "int32")


def _numbers(array: Any) -> tuple[int, ...]:
    """A vector of the flatbuffer, which is 0 where it is absent."""
    return tuple(int(x) for x in array) if isinstance(array, np.ndarray) else ()


def _map(stored: np.ndarray) -> dict[str, Any] | None:
    """Options of a custom operator; None where they are no map of FlexBuffers, which nothing else reads."""
    from flatbuffers import flexbuffers

    try:
        found = flexbuffers.Loads(stored.tobytes())
    except Exception:  # bytes of any other layout, which is the operator's own affair
        return None
    return found if isinstance(found, dict) else None


def _array(buffer: np.ndarray, tensor: Tensor) -> np.ndarray | None:
    """Value of a constant; None for a type that NumPy has not."""
    if tensor.dtype == "int4":  # two to a byte, the lower half first
        halves = np.stack([buffer << 4, buffer], -1).view(np.int8) >> 4
        return halves.reshape(-1)[: math.prod(tensor.shape)].reshape(tensor.shape)
    if tensor.dtype not in _DTYPES.values():
        return None
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, tensor.dtype, None) or tensor.dtype)
    return np.frombuffer(buffer.tobytes(), dtype).reshape(tensor.shape)


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Names of ends without TensorFlow's prefixes, each once and none empty."""
    short = [name.removeprefix("serving_default_").removesuffix(":0").replace(":", "_") for name in names]
    return tuple(
        name if name and short.count(name) == 1 else f"{name or 'tensor'}_{index}"
        for index, name in enumerate(short)
    )
