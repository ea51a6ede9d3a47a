"""Outputs of a model in float32, as other runtimes give them, and in float64, as near to exact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from hetero_tvm.errors import HeteroTVMError, InputError, ModelError, UsageError
from hetero_tvm.frontend.signature import ImportedModel
from hetero_tvm.reference.double import to_double
from hetero_tvm.reference.operators import REFERENCE_OPS


@dataclass(frozen=True)
class Reference:
    """Outputs in signature order; ``float32_engine`` names the runtime of the float32 ones."""

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
    float64 = run_double(model.onnx_model, fed, outputs)
    exact = tuple(float64[name] for name in outputs)
    theirs = _run_source(model, fed)
    if theirs is not None and _contradicts(theirs, float32, exact):
        # Our conversion is wrong, and so is whatever is computed from it: the file itself is the judge.
        wide = tuple(y.astype(np.float64) if is_float(y.dtype) else y for y in theirs)
        return Reference(theirs, wide, f"{engine}, on the model as it came")
    return Reference(float32, exact, engine)


def intermediate(
    model: ImportedModel, inputs: Mapping[str, np.ndarray], tensor_names: Iterable[str]
) -> dict[str, np.ndarray]:
    """Compute tensors inside the cleaned ONNX model in float64, by ONNX tensor name.

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
    return run_double(model.onnx_model, _checked_inputs(model, inputs), wanted)


def tensors_of_nodes(model: ImportedModel) -> dict[str, tuple[str, ...]]:
    """Output tensors by ONNX node name: turns the name of a kernel into names for :func:`intermediate`."""
    tensors: dict[str, tuple[str, ...]] = {}
    for node in model.onnx_model.graph.node:
        tensors[node.name] = tensors.get(node.name, ()) + tuple(name for name in node.output if name)
    return tensors


def _checked_inputs(model: ImportedModel, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays in the order of the signature; raises :class:`InputError` that lists what does not fit."""
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


def _run_source(model: ImportedModel, inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, ...] | None:
    """Outputs of the model as it came, by onnxruntime; None where that is no judge.

    Of models in half precision onnxruntime rounds every step, of quantised ones it saturates some products.
    """
    if model.source_model is None or model.stored != "float32":
        return None
    try:
        import onnxruntime
    except ImportError:
        return None
    try:
        source = model.source_model()
        quantised = ("Quant", "QLinear", "Integer")
        if any(part in node.op_type for node in source.graph.node for part in quantised):
            return None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            source.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return tuple(session.run([spec.name for spec in model.signature.outputs], inputs))
    except Exception:  # lacks a kernel or an opset; the file is gone; weights beyond protobuf's 2 GiB
        return None


#: A difference between the file and our conversion of it that no rounding explains: this fraction of the
#: largest output, and this many times the error of float32.
_CONVERSION_ERROR = 1e-2
_CONVERSION_FACTOR = 10.0


def _contradicts(
    theirs: tuple[np.ndarray, ...], float32: tuple[np.ndarray, ...], float64: tuple[np.ndarray, ...]
) -> bool:
    """Whether the outputs of the file are others than those of our conversion of it."""
    for y, own, exact in zip(theirs, float32, float64, strict=True):
        if y.shape != exact.shape:
            return True
        if not is_float(exact.dtype) or not y.size:
            continue
        y, own = y.astype(np.float64), own.astype(np.float64)
        finite = np.isfinite(y) & np.isfinite(own) & np.isfinite(exact)
        if not finite.any():
            continue
        error = np.abs(y - exact)[finite].max()
        largest = np.abs(exact[finite]).max()
        if error > max(_CONVERSION_ERROR * largest, _CONVERSION_FACTOR * np.abs(own - exact)[finite].max()):
            return True
    return False


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


def run_double(
    proto: onnx.ModelProto, inputs: dict[str, np.ndarray], outputs: list[str]
) -> dict[str, np.ndarray]:
    """Compute the tensors ``outputs`` of a model, every float in float64."""
    model, weights = to_double(proto, outputs)
    fed = {
        name: array.astype(np.float64) if is_float(array.dtype) else array for name, array in inputs.items()
    }
    return dict(zip(outputs, _evaluate(model, weights | fed, outputs), strict=True))


def _evaluate(
    proto: onnx.ModelProto, inputs: Mapping[str, np.ndarray], outputs: list[str] | None
) -> list[np.ndarray]:
    """Run onnx's evaluator with our operators; ``outputs`` None means the model's own."""
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


def is_float(dtype: np.dtype) -> bool:
    """Whether a dtype is a floating-point one, bfloat16 included."""
    return dtype.kind == "f" or dtype.name == "bfloat16"
