"""Outputs of a model in float32, as other runtimes give them, and in float64, as near to exact."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import onnx
from onnx import helper

from hetero_tvm.errors import HeteroTVMError, InputError, ModelError, UsageError
from hetero_tvm.frontend.onnx.evaluator import REFERENCE_OPS
from hetero_tvm.frontend.onnx.graph.constants import node_inputs
from hetero_tvm.frontend.onnx.graph.nodes import drop_attributes, with_results
from hetero_tvm.frontend.signature import ImportedModel
from hetero_tvm.frontend.stored import StoredModel
from hetero_tvm.host import mapped
from hetero_tvm.reference.double import to_double, without_weights
from hetero_tvm.reference.draws import with_draws
from hetero_tvm.reference.inputs import FREE, sample_inputs

T = TypeVar("T")


@dataclass(frozen=True)
class Reference:
    """Outputs in signature order.

    Attributes
    ----------
    float32_engine : name of the runtime of the float32 ones.
    spread : how far rounding errors move each element, of models that round (:mod:`reference.rounding`).
    places : whether integers may be places (of the largest value, say): near ties, any other is as good.
    """

    float32: tuple[np.ndarray, ...]
    float64: tuple[np.ndarray, ...]
    float32_engine: str
    spread: tuple[np.ndarray, ...] = ()
    places: bool = True


def run_sampled(model: ImportedModel, seed: int = 0) -> tuple[dict[str, np.ndarray], Reference]:
    """Sampled inputs that a model takes, and what it makes of them; see :func:`run_drawn`.

    Raises
    ------
    ModelError : an operator has no reference implementation, or every draw has an index that leads outside.
    """
    return run_drawn(lambda free: sample_inputs(model, seed, free), lambda drawn: run_reference(model, drawn))


def run_drawn(
    draw: Callable[[int], dict[str, np.ndarray]], run: Callable[[dict[str, np.ndarray]], T]
) -> tuple[dict[str, np.ndarray], T]:
    """Inputs that ``draw`` gives, its integers below a bound where nothing says what they are, and what
    ``run`` makes of them.

    Integers that become indices behind some arithmetic are drawn smaller until none leads outside.  Where the
    model refuses them for another reason (bags of embeddings begin at 0, and none before another), all are 0.

    Raises
    ------
    ModelError : an operator has no reference implementation, or every draw has an index that leads outside.
    """
    for free in (FREE, 2, 1):
        inputs = draw(free)
        try:
            return inputs, run(inputs)
        except ModelError as error:
            zeros = {n: np.zeros_like(a) if a.dtype.kind in "iu" else a for n, a in inputs.items()}
            if type(error.__cause__) is not RuntimeError or not any(
                a.dtype.kind in "iu" for a in zeros.values()
            ):
                raise
            return zeros, run(zeros)
        except InputError as error:
            if not isinstance(error.__cause__, IndexError):
                raise
            if free == 1:
                raise ModelError(
                    f"no inputs that were drawn fit the model: {error.message}",
                    hint="give some that do: check(inputs=...), --inputs FILE.npz",
                ) from error
    raise AssertionError("the last of the draws returns or raises")


def run_reference(model: ImportedModel, inputs: Mapping[str, np.ndarray]) -> Reference:
    """Run a model in float32 and in float64.

    A model that did not come from ONNX is run by its own framework, so that a fault of our
    translation shows.  ONNX models, and those whose framework knows no float64, are run in float32 by
    onnxruntime where it is installed, else by onnx's evaluator, and by that in float64; the file as it came
    is run too, and is the judge where it contradicts them.

    Raises
    ------
    InputError : names, shapes or dtypes do not fit the signature.
    ModelError : an operator has no reference implementation.
    """
    fed = _checked_inputs(model, inputs)
    original = model.original
    if original is not None and original.exact:
        return Reference(original.run(fed), original.run(fed, double=True), original.engine)
    float32, engine = _run_float32(model.clean, fed)
    outputs = [spec.name for spec in model.signature.outputs]
    float64 = run_double(model.clean, fed, outputs)
    mapped.release()
    exact = model.signature.trimmed([float64[name] for name in outputs])
    float32 = model.signature.trimmed(float32)
    theirs = _run_source(model, fed)
    mapped.settle()
    if original is not None:
        engine = f"{engine}, beside {original.engine}"
    contradicts = _is_far if original is not None and original.coarse else _contradicts
    if theirs is not None and contradicts(theirs, float32, exact):
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
    graph = model.clean.proto.graph
    known = {name for node in graph.node for name in node.output if name}
    known |= {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise UsageError(f"The model has no tensor {', '.join(map(repr, unknown))}.")
    return run_double(model.clean, _checked_inputs(model, inputs), wanted)


def tensors_of_nodes(model: ImportedModel) -> dict[str, tuple[str, ...]]:
    """Output tensors by ONNX node name: turns the name of a kernel into names for :func:`intermediate`."""
    tensors: dict[str, tuple[str, ...]] = {}
    for node in model.clean.proto.graph.node:
        tensors[node.name] = tensors.get(node.name, ()) + tuple(name for name in node.output if name)
    return tensors


def source_tensors(
    model: ImportedModel, inputs: Mapping[str, np.ndarray], names: Collection[str]
) -> dict[str, np.ndarray]:
    """Results of nodes of an ONNX model as it came, by onnxruntime and in order, of those in ``names``.

    {} where onnxruntime is no judge.
    """
    if not _is_judged(model):
        return {}
    given = {spec.name: np.asarray(inputs[spec.name]) for spec in model.signature.inputs}
    source = _settled(model, given)
    if source is None:
        return {}
    wanted = [name for node in source.proto.graph.node for name in node.output if name in names]
    values = _onnxruntime(StoredModel(with_results(source.proto, wanted), source.arrays), wanted, given)
    if values is None:
        return {}
    return {n: value for n, value in zip(wanted, values, strict=True) if isinstance(value, np.ndarray)}


def program_tensors(
    model: ImportedModel, inputs: Mapping[str, np.ndarray], names: Collection[str]
) -> dict[str, np.ndarray]:
    """Values inside a program of another framework, of those ``names`` that it has, in float64."""
    if model.original is None:
        return {}
    return model.original.tensors({name: np.asarray(value) for name, value in inputs.items()}, names)


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


def run_as_given(
    model: ImportedModel, inputs: Mapping[str, np.ndarray], *, double: bool = False
) -> tuple[np.ndarray, ...] | None:
    """Outputs of the model as it came, at any sizes that it takes, in float32 or in float64; None where
    nobody can tell."""
    if model.original is not None and model.original.exact:
        return model.original.run(inputs, double=double)
    if not double:
        return _run_source(model, dict(inputs))
    source = _settled(model, inputs) if model.original is None and _is_judged(model) else None
    if source is None:
        return None
    names = [spec.name for spec in model.signature.results]
    try:
        found = run_double(source, inputs, names)
    except ModelError:  # an operator that onnx's evaluator lacks
        return None
    return tuple(found[name] for name in names)


def _run_source(model: ImportedModel, inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, ...] | None:
    """Outputs of the model as it came, by its framework or onnxruntime; None where that is no judge."""
    if model.original is not None:
        return model.original.run(inputs) if model.original.available else None
    if not _is_judged(model):
        return None
    source = _settled(model, inputs)
    names = [spec.name for spec in model.signature.results]
    return None if source is None else _onnxruntime(source, names, inputs)


def _settled(model: ImportedModel, inputs: Mapping[str, np.ndarray]) -> StoredModel | None:
    """The file as it came, with the random numbers that its library draws; None where nobody knows them."""
    assert model.source is not None
    arrays = model.source.arrays
    proto = with_draws(
        model.source.proto, lambda asked, names: _onnxruntime(StoredModel(asked, arrays), names, inputs)
    )
    return None if proto is None else StoredModel(proto, arrays)


def _is_judged(model: ImportedModel) -> bool:
    """Whether onnxruntime is a judge of the model as it came.

    Of models in half precision it rounds every step, of quantised ones it saturates some products.
    """
    if model.source is None or model.stored != "float32":
        return False
    quantised = ("Quant", "QLinear", "Integer")
    return not any(part in node.op_type for node in model.source.proto.graph.node for part in quantised)


def _onnxruntime(
    model: StoredModel, outputs: list[str] | None, inputs: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, ...] | None:
    """Outputs by onnxruntime, which reads our large weights where they are; None where it cannot run this."""
    try:
        import onnxruntime
    except ImportError:
        return None
    # As initializers it would copy all weights, for good; inputs it reads where they are.  Quantised weights
    # and those that an operator wants to be constant must be initializers.
    floats = {name: array for name, array in model.arrays.items() if array.dtype.kind == "f"}
    for fed in [floats, {}] if floats else [{}]:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.disable_prepacking", "1")  # one call only: no second copies
        rest = {name: array for name, array in model.arrays.items() if name not in fed}
        if rest:
            values = map(onnxruntime.OrtValue.ortvalue_from_numpy, rest.values())
            options.add_external_initializers(list(rest), list(values))
        try:
            session = onnxruntime.InferenceSession(
                _with_inputs(model.proto, fed).SerializeToString(),
                options,
                providers=["CPUExecutionProvider"],
            )
            return tuple(session.run(outputs, {**inputs, **fed}))
        except Exception:  # lacks a kernel or an opset
            continue
        finally:
            mapped.release()
    return None


def _with_inputs(proto: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """Copy a model with some of its initializers as inputs, and without leave to round the others.

    ``accuracy_level`` of a product with packed weights lets ONNX Runtime round what they are multiplied with
    to 8 bits: a judge does not.
    """
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    for node in model.graph.node:
        drop_attributes(node, "accuracy_level")
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    del model.graph.initializer[:]
    model.graph.initializer.extend(tensor for name, tensor in tensors.items() if name not in names)
    listed = {value.name for value in proto.graph.input}
    model.graph.input.extend(
        helper.make_tensor_value_info(name, tensors[name].data_type, tensors[name].dims)
        for name in names
        if name not in listed
    )
    return model


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
        if not y.size:
            continue
        if not is_float(exact.dtype):  # where rounding decides, float32 and float64 may differ too
            if np.any((y != exact) & (own == exact)):
                return True
            continue
        y, own = y.astype(np.float64), own.astype(np.float64)
        alike = (np.isfinite(own) == np.isfinite(exact)) & (np.isnan(own) == np.isnan(exact))
        if np.any(alike & (np.isnan(y) != np.isnan(exact))) or np.any(
            alike & (np.isinf(y) != np.isinf(exact)) & ~np.isnan(exact)
        ):
            return True
        finite = np.isfinite(y) & np.isfinite(own) & np.isfinite(exact)
        if not finite.any():
            continue
        error = np.abs(y - exact)[finite].max()
        largest = np.abs(exact[finite]).max()
        if error > max(_CONVERSION_ERROR * largest, _CONVERSION_FACTOR * np.abs(own - exact)[finite].max()):
            return True
    return False


#: Differences by steps of 8 bits that are put elsewhere, as the root of their mean square: beside the
#: deviation of the values, or beside the largest float where these hardly differ.
_COARSE_ERROR = 0.1
_COARSE_STEP = 0.03


def _is_far(
    theirs: tuple[np.ndarray, ...], float32: tuple[np.ndarray, ...], float64: tuple[np.ndarray, ...]
) -> bool:
    """Whether the outputs of a quantised file are others than those of our conversion of it.

    Every operator may end one step away; steps add up in some ten operators.
    """
    for y, exact in zip(theirs, float64, strict=True):
        if y.shape != exact.shape:
            return True
        if not y.size or exact.dtype == bool:
            continue
        finite = np.isfinite(exact)
        if not np.array_equal(finite, np.isfinite(y)):
            return True
        a, b = (x[finite].astype(np.float64) for x in (y, exact))
        step = _COARSE_STEP * np.abs(b).max(initial=0) if is_float(y.dtype) else 1.0
        if a.size and np.sqrt(np.mean((a - b) ** 2)) > max(_COARSE_ERROR * np.std(b), step):
            return True
    return False


def _run_float32(model: StoredModel, inputs: dict[str, np.ndarray]) -> tuple[tuple[np.ndarray, ...], str]:
    found = _onnxruntime(model, None, inputs)
    if found is not None:
        import onnxruntime

        return found, f"onnxruntime {onnxruntime.__version__}"
    # It lacks a kernel or an opset: the evaluator may not.  If that fails too, its error names the operator.
    proto = model.proto
    light, arrays = without_weights(proto), {t.name: model.array(t) for t in proto.graph.initializer}
    found = evaluate(light, inputs, arrays, [value.name for value in proto.graph.output])
    return tuple(found), f"onnx {onnx.__version__} reference evaluator"


def run_double(
    model: StoredModel, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]
) -> dict[str, np.ndarray]:
    """Compute the tensors ``outputs`` of a model, every float in float64."""
    weights = {tensor.name: model.array(tensor) for tensor in model.proto.graph.initializer}
    light = to_double(model.proto, outputs)
    fed = {name: widened(array) for name, array in inputs.items()}
    return dict(zip(outputs, evaluate(light, fed, weights, outputs, widened), strict=True))


def widened(array: np.ndarray) -> np.ndarray:
    """The array in float64, if it is one of floats."""
    return mapped.converted(array, np.float64) if is_float(array.dtype) else array


def evaluate(
    proto: onnx.ModelProto,
    inputs: Mapping[str, np.ndarray],
    weights: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    convert: Callable[[np.ndarray], np.ndarray] = lambda array: array,
    change: Callable[[np.ndarray], np.ndarray] = lambda array: array,
) -> list[np.ndarray]:
    """Run onnx's evaluator with our operators, one node at a time; each result goes through ``change``.

    Weights go through ``convert`` where a node reads them, and what nobody reads any more is dropped: a model
    in float64 would need more memory than anything else in a build.
    """
    from onnx.reference import ReferenceEvaluator  # slow to import

    where = ""
    try:
        evaluator = ReferenceEvaluator(proto, new_ops=list(REFERENCE_OPS))
        reads = [node_inputs(node) for node in proto.graph.node]
        last = {name: index for index, names in enumerate(reads) for name in names}
        values: dict[str, np.ndarray | None] = {"": None, **inputs}

        def value(name: str) -> np.ndarray | None:
            if name in values or name not in weights:
                return values[name]
            mapped.touched(weights[name].nbytes)
            return convert(weights[name])

        for index, (node, names) in enumerate(zip(evaluator.rt_nodes_, reads, strict=True)):
            where = f"node {proto.graph.node[index].name!r} ({proto.graph.node[index].op_type})"
            context = {"context": {name: value(name) for name in names}} if node.need_context() else {}
            with np.errstate(all="ignore"):
                results = node.run(*map(value, node.input), **context)
            values.update(zip(node.output, map(change, results), strict=False))
            for name in names:
                if last[name] == index and name not in outputs:
                    values.pop(name, None)
        return [value(name) for name in outputs]
    except HeteroTVMError:
        raise
    except IndexError as error:  # numbers that come at run time: a file's own have been looked at
        raise InputError(
            f"an input leads {where or 'the model'} to an index out of range: {error}"
        ) from error
    except Exception as error:
        raise ModelError(
            f"The reference evaluator cannot run {where or 'this model'}: {type(error).__name__}: {error}"
        ) from error


def is_float(dtype: np.dtype) -> bool:
    """Whether a dtype is a floating-point one, bfloat16 included."""
    return dtype.kind == "f" or dtype.name == "bfloat16"
