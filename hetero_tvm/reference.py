"""Reference numbers for a model: float32 as other runtimes give them, float64 as near to exact.

A compiled model is judged by its distance from the float64 result, next to the distance that a
float32 reference has from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm._reference_ops import REFERENCE_OPS
from hetero_tvm.errors import HeteroTVMError, InputError, ModelError, UsageError
from hetero_tvm.frontend.signature import ImportedModel

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
#: Tolerance: this many times the float32 reference's own error, ...
OWN_ERROR_FACTOR = 2.0
#: ... or this fraction of the largest output, whichever is larger.
RELATIVE_FLOOR = 1e-5


# ---- inputs --------------------------------------------------------------------------------


def sample_inputs(model: onnx.ModelProto | ImportedModel, seed: int = 0) -> dict[str, np.ndarray]:
    """Realistic inputs by name, equal for equal seeds.

    Integers that index a table stay inside it, masks are ones with a few trailing zeros, floats
    are standard normal, booleans random.

    Raises
    ------
    ModelError : an input has no fixed shape (import the model first).
    """
    proto = model.onnx_model if isinstance(model, ImportedModel) else model
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    consumers = _consumers(proto.graph)
    inputs = {}
    for value in proto.graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        dims = [dim.dim_value for dim in tensor.shape.dim]
        if any(dim < 1 for dim in dims):
            raise ModelError(
                f"Input {value.name!r} has no fixed shape.", hint="Import the model with shapes first."
            )
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        # One generator per input: adding an input does not change the others.
        generator = np.random.default_rng([seed, *value.name.encode()])
        inputs[value.name] = _sample(value.name, dims, dtype, generator, consumers, weights)
    return inputs


def _sample(name, dims, dtype, generator, consumers, weights) -> np.ndarray:
    if dtype.kind not in "iu":
        if _is_mask(name, consumers):
            return _mask(dims, dtype)
        if dtype.kind == "b":
            return generator.integers(0, 2, dims).astype(bool)
        return np.asarray(generator.standard_normal(dims)).astype(dtype)
    rows = _table_rows(name, consumers, weights)
    if rows is None and _is_mask(name, consumers):
        return _mask(dims, dtype)
    if rows is None and "position" in name.lower() and dims:
        return np.broadcast_to(np.arange(dims[-1]), dims).astype(dtype)
    return np.asarray(generator.integers(0, rows or 8, dims)).astype(dtype)


def _mask(dims: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Ones with a few zeros at the end of each row, as padding gives."""
    mask = np.ones(dims, dtype)
    if dims and dims[-1] >= 4:
        mask[..., -max(1, dims[-1] // 16) :] = 0
    return mask


def _consumers(graph: onnx.GraphProto) -> dict[str, list[onnx.NodeProto]]:
    consumers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node)
    return consumers


_KEEPS_VALUES = frozenset(
    {"Cast", "Unsqueeze", "Squeeze", "Reshape", "Identity", "Expand", "Flatten", "Transpose"}
)


def _reached(name: str, consumers: Mapping[str, list[onnx.NodeProto]]) -> list[tuple[onnx.NodeProto, str]]:
    """Nodes that compute with an input's values, behind casts and reshapes; with the name they read."""
    found, stack, seen = [], [name], set()
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        for node in consumers.get(current, ()):
            if node.op_type in _KEEPS_VALUES and node.input[0] == current:
                stack.append(node.output[0])
            elif node.op_type != "Shape":
                found.append((node, current))
    return found


def _table_rows(name, consumers, weights) -> int | None:
    """The number of rows of the smallest table that an integer input indexes."""
    rows = []
    for node, read in _reached(name, consumers):
        if node.op_type in ("Gather", "GatherElements") and len(node.input) > 1 and node.input[1] == read:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            if node.input[0] in weights:
                rows.append(weights[node.input[0]].dims[axis])
    return min(rows, default=None)


def _is_mask(name, consumers) -> bool:
    if "mask" in name.lower():
        return True
    users = {node.op_type for node, _ in _reached(name, consumers)}
    cast = any(node.op_type in ("Cast", "Unsqueeze") for node in consumers.get(name, ()))
    return cast and bool(users) and users <= {"Sub", "Equal", "Where", "Not", "And"}


# ---- running -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """Outputs in signature order; ``float32_engine`` names who computed the float32 ones."""

    float32: tuple[np.ndarray, ...]
    float64: tuple[np.ndarray, ...]
    float32_engine: str


def run_reference(model: ImportedModel, inputs: Mapping[str, np.ndarray]) -> Reference:
    """Run a model in float32 and in float64.

    A model that did not come from ONNX is run by its own framework, so that a fault of our
    translation shows.  ONNX models are run in float32 by onnxruntime where it is installed, else by
    onnx's evaluator, and by that in float64.

    Raises
    ------
    InputError : names, shapes or dtypes do not fit the signature.
    ModelError : an operator has no reference implementation.
    """
    fed = _checked_inputs(model, inputs)
    if model.original is not None:
        original = model.original
        return Reference(original.run(fed), original.run(fed, double=True), original.engine)
    float32, engine = _run_float32(model.onnx_model, fed)
    outputs = [spec.name for spec in model.signature.outputs]
    float64 = _run_double(model.onnx_model, fed, outputs)
    return Reference(float32, tuple(float64[name] for name in outputs), engine)


def intermediate(
    model: ImportedModel, inputs: Mapping[str, np.ndarray], tensor_names: Iterable[str]
) -> dict[str, np.ndarray]:
    """Tensors inside the cleaned ONNX model, by ONNX tensor name, computed in float64.

    Raises
    ------
    UsageError : the model has no such tensor (lists all unknown names).
    """
    wanted = list(dict.fromkeys(tensor_names))
    graph = model.onnx_model.graph
    known = {name for node in graph.node for name in node.output if name}
    known |= {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise UsageError(f"The model has no tensor {', '.join(map(repr, unknown))}.")
    return _run_double(model.onnx_model, _checked_inputs(model, inputs), wanted)


def tensors_of_nodes(model: ImportedModel) -> dict[str, tuple[str, ...]]:
    """Output tensors by ONNX node name: from the name of a kernel to what :func:`intermediate` takes."""
    tensors: dict[str, tuple[str, ...]] = {}
    for node in model.onnx_model.graph.node:
        tensors[node.name] = tensors.get(node.name, ()) + tuple(name for name in node.output if name)
    return tensors


def _checked_inputs(model: ImportedModel, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    specs = {spec.name: spec for spec in model.signature.inputs}
    problems = [f"there is no input {name!r}" for name in inputs if name not in specs]
    for name, spec in specs.items():
        if name not in inputs:
            problems.append(f"input {name!r} is missing")
        elif (np.shape(inputs[name]), str(np.asarray(inputs[name]).dtype)) != (spec.shape, spec.dtype):
            array = np.asarray(inputs[name])
            problems.append(f"{spec} expected, got {array.dtype}{list(array.shape)}")
    if problems:
        raise InputError("The inputs do not fit the model.", problems=problems)
    return {name: np.asarray(inputs[name]) for name in specs}


def _run_float32(proto: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> tuple[tuple[np.ndarray, ...], str]:
    try:
        import onnxruntime
    except ImportError:
        onnxruntime = None
    if onnxruntime is not None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(
                proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            return tuple(session.run(None, inputs)), f"onnxruntime {onnxruntime.__version__}"
        except Exception:
            # Lacks a kernel or an opset, or the model is beyond protobuf's 2 GiB: the evaluator
            # has neither limit.  If it fails too, its error names the operator.
            pass
    return tuple(_evaluate(proto, inputs, None)), f"onnx {onnx.__version__} reference evaluator"


def _run_double(
    proto: onnx.ModelProto, inputs: dict[str, np.ndarray], outputs: list[str]
) -> dict[str, np.ndarray]:
    model, weights = to_double(proto, outputs)
    fed = {
        name: array.astype(np.float64) if _is_float(array.dtype) else array for name, array in inputs.items()
    }
    return dict(zip(outputs, _evaluate(model, weights | fed, outputs), strict=True))


def _evaluate(proto, inputs, outputs) -> list[np.ndarray]:
    from onnx.reference import ReferenceEvaluator  # slow to import

    try:
        with np.errstate(all="ignore"):
            return ReferenceEvaluator(proto, new_ops=list(REFERENCE_OPS)).run(outputs, inputs)
    except HeteroTVMError:
        raise
    except Exception as error:
        raise ModelError(
            f"The reference evaluator cannot run this model: {type(error).__name__}: {error}"
        ) from error


# ---- float32 -> float64 --------------------------------------------------------------------


def to_double(
    proto: onnx.ModelProto, outputs: Sequence[str] | None = None
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model with all its floats as float64 (weights, inputs, constants, casts), and its weights.

    The weights come as arrays, to be fed like inputs: as protobuf they would be copied several
    times.  ``outputs`` names the tensors to return, by default the model's own outputs.  Values
    stay what they were (masks of finfo(float32).min, rounded constants): only arithmetic becomes
    finer.
    """
    model = onnx.ModelProto(ir_version=proto.ir_version)
    model.opset_import.extend(proto.opset_import)
    _double_graph(proto.graph, model.graph)
    if outputs is not None:
        del model.graph.output[:]
        model.graph.output.extend(helper.make_value_info(name, onnx.TypeProto()) for name in outputs)
    return model, {tensor.name: _double_array(tensor) for tensor in proto.graph.initializer}


def _double_graph(source: onnx.GraphProto, result: onnx.GraphProto) -> None:
    """Copy a graph without its initializers."""
    result.name = source.name
    result.input.extend(_double_value(value) for value in source.input)
    result.output.extend(_double_value(value) for value in source.output)
    for node in source.node:
        copy = result.node.add()
        copy.CopyFrom(node)
        _double_node(copy)


def _double_array(tensor: TensorProto) -> np.ndarray:
    array = numpy_helper.to_array(tensor)
    return array.astype(np.float64) if tensor.data_type in _FLOATS else array


def _double_value(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    if copy.type.tensor_type.elem_type in _FLOATS:
        copy.type.tensor_type.elem_type = TensorProto.DOUBLE
    return copy


def _double_tensor(tensor: TensorProto) -> TensorProto:
    if tensor.data_type not in _FLOATS:
        return tensor
    return numpy_helper.from_array(_double_array(tensor), tensor.name)


def _double_node(node: onnx.NodeProto) -> None:
    if node.op_type == "Constant" and any(a.name in ("value_float", "value_floats") for a in node.attribute):
        attribute = node.attribute[0]
        value = np.array(attribute.f if attribute.name == "value_float" else attribute.floats, np.float64)
        node.attribute[0].CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))
        return
    if node.op_type == "ConstantOfShape" and not node.attribute:
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))
    for attribute in node.attribute:
        # types named by attributes: Cast, EyeLike, SequenceEmpty, DequantizeLinear, ...
        if attribute.name in ("to", "dtype", "output_dtype") and attribute.i in _FLOATS:
            attribute.i = TensorProto.DOUBLE
        if attribute.HasField("t"):
            attribute.t.CopyFrom(_double_tensor(attribute.t))
        if attribute.HasField("g"):
            inner = onnx.GraphProto()
            _double_graph(attribute.g, inner)
            inner.initializer.extend(_double_tensor(tensor) for tensor in attribute.g.initializer)
            attribute.g.CopyFrom(inner)


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


# ---- judging -------------------------------------------------------------------------------


@dataclass(frozen=True)
class OutputAccuracy:
    """Errors of one output against the float64 reference.

    ``relative_error`` is the largest error by the largest value; integer outputs have tolerance 0.
    """

    max_error: float
    reference_error: float
    relative_error: float
    tolerance: float
    largest: float
    ok: bool
    note: str = ""

    def __str__(self) -> str:
        text = (
            f"max error {self.max_error:.3g} (relative {self.relative_error:.3g}), "
            f"float32 reference {self.reference_error:.3g}, tolerance {self.tolerance:.3g}"
        )
        verdict = "ok" if self.ok else "BEYOND TOLERANCE"
        return f"{text}: {verdict}" + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True)
class Accuracy:
    """Errors of all outputs; ``ok`` when every one is within its tolerance."""

    outputs: tuple[OutputAccuracy, ...]

    @property
    def ok(self) -> bool:
        return all(output.ok for output in self.outputs)

    def __str__(self) -> str:
        return "\n".join(f"output {index}: {output}" for index, output in enumerate(self.outputs))


def compare(
    outputs: np.ndarray | Sequence[np.ndarray],
    reference: Reference,
    *,
    floor: float = RELATIVE_FLOOR,
    least_cosine: float = -1.0,
) -> Accuracy:
    """Judge outputs: error <= max(2 x the float32 reference's own, ``floor`` x the largest output).

    ``least_cosine`` : of the angle between an output and the reference (for coarser dtypes).

    Infinities and NaN must stand where the float64 reference, or the float32 one, has them.
    Integer and boolean outputs must be equal.
    """
    outputs = [outputs] if isinstance(outputs, np.ndarray) else list(outputs)
    if len(outputs) != len(reference.float64):
        raise UsageError(f"{len(outputs)} outputs given, the reference has {len(reference.float64)}.")
    pairs = zip(outputs, reference.float32, reference.float64, strict=True)
    return Accuracy(
        tuple(
            _compare_one(np.asarray(y), np.asarray(f32), np.asarray(f64), floor, least_cosine)
            for y, f32, f64 in pairs
        )
    )


def _compare_one(
    y: np.ndarray, float32: np.ndarray, float64: np.ndarray, floor: float, least_cosine: float
) -> OutputAccuracy:
    def failed(note: str) -> OutputAccuracy:
        return OutputAccuracy(np.inf, np.nan, np.inf, 0.0, np.nan, False, note)

    if y.shape != float64.shape:
        return failed(f"shape {list(y.shape)} instead of {list(float64.shape)}")
    if not _is_float(float64.dtype):
        if _is_float(y.dtype):
            return failed(f"dtype {y.dtype} instead of {float64.dtype}")
        wrong = int(np.count_nonzero(y != float64))
        largest = float(np.abs(float64.astype(np.float64)).max(initial=0))
        error = float(np.abs(y.astype(np.float64) - float64.astype(np.float64)).max(initial=0))
        note = f"{wrong} of {y.size} integers differ" if wrong else "exact"
        return OutputAccuracy(
            error, 0.0, error / largest if largest else error, 0.0, largest, wrong == 0, note
        )
    y64, own = y.astype(np.float64), float32.astype(np.float64)
    # Where float32 overflows and float64 does not, the float32 reference's view is as good.
    with np.errstate(over="ignore"):
        special = ~np.isfinite(float64) | ~np.isfinite(own)
    misplaced = (~np.isfinite(y64) & ~special) | (special & ~_same(y64, float64) & ~_same(y64, own))
    if misplaced.any():
        return failed(f"{int(misplaced.sum())} NaN or infinite values differ from the reference")
    finite = ~special
    largest = float(np.abs(float64[finite]).max(initial=0))
    error = float(np.abs(y64[finite] - float64[finite]).max(initial=0))
    own_error = float(np.abs(own[finite] - float64[finite]).max(initial=0))
    tolerance = max(OWN_ERROR_FACTOR * own_error, floor * largest)
    ok, note = error <= tolerance, ""
    if least_cosine > -1.0:
        angle = _cosine(y64[finite], float64[finite])
        ok, note = ok and angle >= least_cosine, f"cosine {angle:.6f}"
    return OutputAccuracy(
        error, own_error, error / largest if largest else error, tolerance, largest, ok, note
    )


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.vdot(a, b)) / length if length else float(np.array_equal(a, b))


def _same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Equal, with NaN equal to NaN."""
    return (a == b) | (np.isnan(a) & np.isnan(b))
