"""TensorFlow Lite files of a few operators, written for tests."""

from dataclasses import dataclass, field

import flatbuffers
import flatbuffers.flexbuffers
import numpy as np
import tflite

TYPES = {
    name: name.upper()
    for name in "float32 float16 int8 uint8 int16 int32 uint32 int64 bool complex64".split()
}


@dataclass
class T:
    """A tensor: ``data`` for a constant; ``variable`` for a state; scales, zero points where quantised."""

    shape: tuple
    dtype: str = "float32"
    data: np.ndarray | None = None
    scale: tuple = ()
    zero: tuple = ()
    axis: int = 0
    declared: tuple | None = None
    variable: bool = False


def const(array, **more):
    array = np.asarray(array)
    return T(array.shape, str(array.dtype), array, **more)


@dataclass
class Call:
    """An operator: numbers of its tensors, name and fields of its options (a map for a custom one)."""

    kind: str
    inputs: tuple
    outputs: tuple
    options: str = ""
    fields: dict = field(default_factory=dict)


def _vector(b, values, start, one):
    start(b, len(values))
    for value in reversed(values):
        one(value)
    return b.EndVector()


def _table(b, name, fields):
    getattr(tflite, f"{name}Start")(b)
    for key, value in fields.items():
        getattr(tflite, f"{name}Add{key}")(b, value)
    return getattr(tflite, f"{name}End")(b)


def _tensor(b, number, tensor):
    name = b.CreateString(f"t{number}")
    shape = b.CreateNumpyVector(np.array(tensor.shape, np.int32))
    fields = {
        "Shape": shape,
        "Type": getattr(tflite.TensorType, TYPES[tensor.dtype]),
        "Buffer": number + 1,
        "Name": name,
    }
    if tensor.variable:
        fields["IsVariable"] = True
    if tensor.declared is not None:
        fields["ShapeSignature"] = b.CreateNumpyVector(np.array(tensor.declared, np.int32))
    if tensor.scale:
        scale = b.CreateNumpyVector(np.array(tensor.scale, np.float32))
        zero = b.CreateNumpyVector(np.array(tensor.zero or [0] * len(tensor.scale), np.int64))
        fields["Quantization"] = _table(
            b,
            "QuantizationParameters",
            {"Scale": scale, "ZeroPoint": zero, "QuantizedDimension": tensor.axis},
        )
    return _table(b, "Tensor", fields)


def _call(b, kinds, call):
    fields = {
        "OpcodeIndex": kinds.index(call.kind),
        "Inputs": b.CreateNumpyVector(np.array(call.inputs, np.int32)),
        "Outputs": b.CreateNumpyVector(np.array(call.outputs, np.int32)),
    }
    if not hasattr(tflite.BuiltinOperator, call.kind):
        stored = bytes(flatbuffers.flexbuffers.Dumps(call.fields))
        fields["CustomOptions"] = b.CreateByteVector(stored)
    elif call.options:
        fields["BuiltinOptions"] = _table(b, call.options, call.fields)
        fields["BuiltinOptionsType"] = getattr(tflite.BuiltinOptions, call.options)
    return _table(b, "Operator", fields)


def file(tensors, calls, inputs, outputs):
    """Bytes of a file with one graph."""
    b = flatbuffers.Builder(1024)
    kinds = list(dict.fromkeys(call.kind for call in calls))
    refer = b.PrependUOffsetTRelative
    buffers = [_table(b, "Buffer", {})]
    for tensor in tensors:
        data = (
            {}
            if tensor.data is None
            else {"Data": b.CreateByteVector(np.ascontiguousarray(tensor.data).tobytes())}
        )
        buffers.append(_table(b, "Buffer", data))
    made = _vector(
        b, [_tensor(b, n, t) for n, t in enumerate(tensors)], tflite.SubGraphStartTensorsVector, refer
    )
    operators = _vector(b, [_call(b, kinds, c) for c in calls], tflite.SubGraphStartOperatorsVector, refer)
    ends = [b.CreateNumpyVector(np.array(numbers, np.int32)) for numbers in (inputs, outputs)]
    graph = _table(
        b, "SubGraph", {"Tensors": made, "Operators": operators, "Inputs": ends[0], "Outputs": ends[1]}
    )
    codes = []
    for kind in kinds:
        number = getattr(tflite.BuiltinOperator, kind, tflite.BuiltinOperator.CUSTOM)
        version = 2 if kind == "BROADCAST_TO" else 1
        fields = {"DeprecatedBuiltinCode": min(number, 127), "BuiltinCode": number, "Version": version}
        if number == tflite.BuiltinOperator.CUSTOM:
            fields["CustomCode"] = b.CreateString(kind)
        codes.append(_table(b, "OperatorCode", fields))
    fields = {
        "Version": 3,
        "OperatorCodes": _vector(b, codes, tflite.ModelStartOperatorCodesVector, refer),
        "Subgraphs": _vector(b, [graph], tflite.ModelStartSubgraphsVector, refer),
        "Buffers": _vector(b, buffers, tflite.ModelStartBuffersVector, refer),
    }
    b.Finish(_table(b, "Model", fields), b"TFL3")
    return bytes(b.Output())


def one(kind, operands, results, options="", **fields):
    """Bytes of a file with one operator; operands without data are inputs, None is an absent operand."""
    tensors = [tensor for tensor in operands if tensor is not None]
    numbers = iter(range(len(tensors)))
    taken = tuple(-1 if tensor is None else next(numbers) for tensor in operands)
    given = [n for n, tensor in enumerate(tensors) if tensor.data is None and not tensor.variable]
    out = tuple(range(len(tensors), len(tensors) + len(results)))
    return file([*tensors, *results], [Call(kind, taken, out, options, fields)], given, out)
