"""Quantise a model: 8-bit products where the accuracy holds, float32 for the layers that would break it."""

from __future__ import annotations

import math
import reprlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hetero_tvm.compile.build import BuiltModel
from hetero_tvm.compile.calibrating.calibration import Calibration, check_runtime, check_way
from hetero_tvm.compile.optimize import OptimizedModel, optimize_model
from hetero_tvm.compile.rounding import (
    Layer,
    Samples,
    dynamic_layers,
    products_of,
    smoothed_layers,
    stored_layers,
)
from hetero_tvm.errors import AccuracyError, InputError, UsageError, unknown_name
from hetero_tvm.frontend import ImportedModel
from hetero_tvm.host.tables import bytes_in_words
from hetero_tvm.host.tvm import Expr, relax
from hetero_tvm.ops.decoding.storage import Storage
from hetero_tvm.ops.integers.dynamic_matmul import DynamicGatedMatmul, DynamicMatmul
from hetero_tvm.ops.integers.quantized import QuantConv2d, QuantMatmul
from hetero_tvm.ops.integers.stored_matmul import StoredMatmul
from hetero_tvm.reference import sample_inputs
from hetero_tvm.reference.accuracy import cosine
from hetero_tvm.reference.given import checked_inputs
from hetero_tvm.relax_passes.rewriting.fused import contract, is_call_tir
from hetero_tvm.relax_passes.rewriting.graph import is_constant
from hetero_tvm.runtime.arrays import numpy_dtype
from hetero_tvm.targets.registry import parse_target

METHODS = ("dynamic", "static", "smooth", "weight-only")
SAMPLES = 4
"""Samples that are drawn where no data are given."""

_SHOWN = 4
"""Samples, evenly among all, that show the outliers of operands; each is compiled and run by itself."""

DEFAULT_STORAGE = Storage.named("int8")
"""Form of weights of ``weight-only`` where none is asked for."""

Metric = Callable[[Mapping[str, np.ndarray]], float]
"""A figure of merit from the outputs by name, samples along the first axis."""
Build = Callable[[OptimizedModel], BuiltModel]


@dataclass(frozen=True)
class OutputDistance:
    """Distance of one output from float32: cosine over the samples (mean and least), and largest error by
    largest value."""

    name: str
    mean_cosine: float
    least_cosine: float
    relative_error: float


@dataclass(frozen=True)
class QuantizationReport:
    """Accuracy of a quantised model beside the float32 one.

    Attributes
    ----------
    outputs : distance of every floating-point output.
    quantized : products and convolutions in few bits.
    kept : those in float32 because the accuracy would not hold, the most sensitive first.
    layers : all of them, the most sensitive first.
    metric : what the user's function gives for float32 and for few bits; None without one.
    left : what else stayed in float32: node -> reason.
    smoothed : products whose operands are smoothed.
    weight_bytes : bytes of constants in float32, and as they are exported.
    """

    method: str
    samples: int
    bits: int
    outputs: tuple[OutputDistance, ...]
    quantized: int
    kept: tuple[str, ...]
    layers: tuple[Layer, ...]
    metric: tuple[float, float] | None = None
    left: Mapping[str, str] = field(default_factory=dict)
    smoothed: int = 0
    weight_bytes: tuple[int, int] = (0, 0)

    @property
    def least_cosine(self) -> float:
        """Least cosine of all outputs and samples."""
        return min((output.least_cosine for output in self.outputs), default=1.0)

    def __str__(self) -> str:
        lines = [
            f"{output.name}: cosine {output.mean_cosine:.6f}, {output.least_cosine:.6f} at least; "
            f"largest error {output.relative_error:.3g} of the largest value"
            for output in self.outputs
        ]
        if self.metric is not None:
            lines.append("metric: {:.6g} in float32, {:.6g} quantised".format(*self.metric))
        lines.append(f"{self.quantized} products in {self.bits} bits, {len(self.kept)} kept in float32")
        if self.smoothed:
            lines.append(f"{self.smoothed} of them with smoothed operands")
        lines.append("weights: {} in float32, {} now".format(*map(bytes_in_words, self.weight_bytes)))
        lines += [f"kept in float32: {node}" for node in self.kept]
        lines += [f"left in float32: {node}: {reason}" for node, reason in self.left.items()]
        return "\n".join(lines)


def quantize_model(
    model: ImportedModel,
    build: Build,
    *,
    target: str = "cpu",
    method: str = "dynamic",
    data: Mapping[str, np.ndarray] | None = None,
    least_cosine: float = 0.99,
    calibration: str = "minmax",
    metric: Metric | None = None,
    storage: Storage | None = None,
) -> tuple[BuiltModel, QuantizationReport]:
    """Build a model with products of few bits, and measure what that costs.

    Parameters
    ----------
    build : what compiles an optimized model.
    method : ``dynamic``: weights are rounded now, what they are multiplied with when the model runs, row by
        row; data serve for the measurement only.  ``smooth``: as dynamic, after outliers in columns of what
        is multiplied were moved into the weights (SmoothQuant), where samples show that it helps.
        ``static``: every tensor around products and convolutions has one range, found on the data
        (``calibration.py``).  ``weight-only``: weights in ``storage``, float32 arithmetic.
    data : arrays by input name, each with the shape of its input, or one axis of samples in front; None for
        sampled ones, which say little of the accuracy on real data.
    least_cosine : bar for the cosine between every output and float32's, on every sample.  While it does not
        hold, the most sensitive products stay in float32, twice as many each time.
    calibration : how ``static`` finds ranges
        (:data:`hetero_tvm.compile.calibrating.calibration.CALIBRATIONS`).
    metric : judges the outputs of float32 and of the quantised model, for the report.
    storage : form of weights of ``weight-only``; None for 8 bits in groups of 128.

    Raises
    ------
    AccuracyError : the bar does not hold with any product in few bits.
    InputError, UsageError : the data do not fit, or ``static`` has none; the method is unknown; the target
        has no 8-bit products; ``storage`` is given to another method; the model has nothing to quantise;
        the metric fails, or gives no number.
    """
    check_settings(method, calibration, target, data is not None, storage)
    _refuse(model)
    samples = samples_of(model, data)
    plain = build(optimize_model(model, target))
    wanted = [plain.run(sample) for sample in samples]
    figure = None if metric is None else _judged(metric, model, wanted)  # it may fail: not after minutes
    rounding = _rounding(model, plain, samples, target, method, calibration, storage)
    if not rounding.layers:
        raise UsageError(
            f"{model.name} has no product with constant weights that --method {method} could quantise",
            hint="--method static takes convolutions, transposed ones aside" if method != "static" else None,
        )
    kept: tuple[str, ...] = ()
    failed: QuantizationReport | None = None
    while True:
        built = build(rounding.optimized(kept))
        given = [built.run(sample) for sample in samples]
        tasks = built.optimized.tasks
        report = QuantizationReport(
            method,
            len(samples),
            rounding.bits,
            _distances(built, given, wanted),
            sum(task.count for task in tasks if isinstance(task.op, _QUANTIZED)),
            kept,
            rounding.layers,
            None if metric is None or figure is None else (figure, _judged(metric, model, given)),
            _left(built.optimized, kept),
            sum(task.count for task in tasks if getattr(task.op, "smoothed", False)),
            (_weight_bytes(plain), _weight_bytes(built)),
        )
        if not report.quantized and not kept:
            raise UsageError(
                f"--method {method} quantises nothing of {model.name}",
                problems=[f"{node}: {reason}" for node, reason in report.left.items()],
                hint="--method static takes convolutions" if method != "static" else None,
            )
        if report.quantized and report.least_cosine >= least_cosine:
            return built, report
        failed = report if report.quantized or failed is None else failed
        more = max(1, 2 * len(kept))
        most = len(rounding.layers) - 1  # with all of them kept, nothing would be quantised
        if len(kept) >= most:
            raise AccuracyError(
                f"{model.name}: the cosine stays below {least_cosine:g} with any product in "
                f"{rounding.bits} bits",
                problems=str(failed).splitlines(),
                hint="--least-cosine sets the bar; --data FILE.npz gives real samples to measure on"
                + ("; --method static takes convolutions too" if method != "static" else ""),
            )
        kept = tuple(layer.nodes[-1] for layer in rounding.layers[: min(more, most)])


def check_settings(
    method: str, calibration: str, target: str, has_data: bool, storage: Storage | None
) -> None:
    """Refuse settings that no model can be quantised with, which takes no model.

    Raises
    ------
    UsageError : the method or the calibration is unknown, or has no data; ``static`` lacks ONNX Runtime;
        ``storage`` is given to another method; the target has no such products.
    """
    if method not in METHODS:
        message, hint = unknown_name("there is no method", method, METHODS)
        raise UsageError(message, hint=hint)
    check_way(calibration)
    if method in ("static", "smooth") and not has_data:
        what = "ranges" if method == "static" else "outliers"
        raise UsageError(f"{method} quantisation finds {what} on samples", hint="--data FILE.npz gives them")
    if method == "static":
        check_runtime()
    if storage is not None and method != "weight-only":
        raise UsageError(
            f"--method {method} has no weights of {storage.bits} bits in groups",
            hint="--method weight-only has",
        )
    if method == "smooth":
        parse_target(target).smoothing({})
    elif method == "weight-only":
        parse_target(target).storing(storage or DEFAULT_STORAGE)


def _refuse(model: ImportedModel) -> None:
    """Refuse a model whose outputs in few bits could not be compared with float32's."""
    if counted := model.signature.counted:
        raise UsageError(
            f"how many elements {', '.join(counted)} have depends on values, which 8 bits change: results of "
            "float32 and of 8 bits cannot be compared element by element",
            hint="quantize the part of the model before them",
        )


@dataclass(frozen=True)
class _Rounding:
    """A method at work on a model: its layers, the most sensitive first, and the model with some kept."""

    layers: tuple[Layer, ...]
    optimized: Callable[[Sequence[str]], OptimizedModel]
    bits: int = 8


def _rounding(
    model: ImportedModel,
    plain: BuiltModel,
    samples: Samples,
    target: str,
    method: str,
    calibration: str,
    storage: Storage | None,
) -> _Rounding:
    if method == "static":
        wanted = parse_target(target)
        ranges = Calibration(model, samples, calibration, wanted.pairs_safe, wanted.sums_once)
        found = ranges.layers(ranges.quantized())
        layers = tuple(Layer((layer.node,), layer.error) for layer in found)
        wanted = wanted.rounding_attention()
        return _Rounding(layers, lambda kept: optimize_model(ranges.imported(ranges.quantized(kept)), wanted))
    lower = parse_target(target)
    shown = samples[:: max(1, len(samples) // _SHOWN)][:_SHOWN]
    products = products_of(plain, shown if method == "smooth" else samples[:1])
    if method == "weight-only":
        storage = storage or DEFAULT_STORAGE
        lower, layers = lower.storing(storage), stored_layers(products, storage)
        return _Rounding(layers, lambda kept: optimize_model(model, lower.keeping(kept)), storage.bits)
    lower = lower.with_precision("int8")
    if method == "smooth":
        layers, factors = smoothed_layers(products, lower.pairs_safe)
        lower = lower.smoothing(factors)
    else:
        layers = dynamic_layers(products, lower.pairs_safe)
    return _Rounding(layers, lambda kept: optimize_model(model, lower.keeping(kept)))


def _left(optimized: OptimizedModel, kept: Sequence[str]) -> dict[str, str]:
    """Products and convolutions that no rule of low precision took: node -> reason."""
    rules = ("dynamic_quantization", "stored_weights", "quantized", "quantized_add")
    misses = [miss for miss in optimized.report.misses if miss["rule"] in rules]
    return {miss["node"]: miss["reason"] for miss in misses if miss["node"] not in kept}


def _weight_bytes(built: BuiltModel) -> int:
    """Bytes of the constants of an optimized model."""
    module = built.optimized.module
    found: dict[Expr, int] = {}

    def visit(expr: Expr) -> None:
        if is_constant(expr):
            count = int(np.prod(expr.value.shape, dtype=np.int64))
            found.setdefault(expr, count * numpy_dtype(str(expr.value.dtype)).itemsize)
        elif is_call_tir(expr):
            op = contract(module, expr)
            if isinstance(op, StoredMatmul) and op.storage.bits:  # packed when its kernel is made
                found[expr.args[1].fields[1]] = op.columns * op.k * op.storage.bits // 8

    relax.analysis.post_order_visit(module["main"], visit)
    return sum(found.values())


def samples_of(model: ImportedModel, data: Mapping[str, np.ndarray] | None) -> Samples:
    """Inputs, one mapping per sample: arrays have an axis of samples in front, or as many rows as several
    batches of the model have."""
    if data is None:
        return [sample_inputs(model, seed) for seed in range(SAMPLES)]
    shapes = {spec.name: tuple(spec.shape) for spec in model.signature.inputs}
    data = {name: _by_sample(np.asarray(array), shapes.get(name)) for name, array in data.items()}
    counts = {n: len(a) for n, a in data.items() if n in shapes and a.shape[1:] == shapes[n]}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        raise InputError(
            "the numbers of samples differ or are zero", problems=[f"{n}: {c}" for n, c in counts.items()]
        )
    if holes := [n for n, a in data.items() if n in shapes and a.dtype.kind == "f" and np.isnan(a).any()]:
        raise InputError(
            "the samples hold NaN: nothing can be measured on them",
            problems=[f"{n}: {int(np.isnan(data[n]).sum())} of {data[n].size} elements" for n in holes],
        )
    rows = range(next(iter(counts.values()), 1))
    return [
        checked_inputs(model.signature, {n: a[row] if n in counts else a for n, a in data.items()})
        for row in rows
    ]


def _by_sample(array: np.ndarray, shape: tuple[int | str, ...] | None) -> np.ndarray:
    """An array of several batches of ``shape``, one after the other, with an axis of batches in front;
    others as they are."""
    if not shape or array.ndim != len(shape) or array.shape[1:] != shape[1:]:
        return array
    batch = shape[0]
    several = isinstance(batch, int) and 0 < batch < len(array) and len(array) % batch == 0
    return array.reshape(-1, *shape) if several else array


_QUANTIZED = (DynamicMatmul, DynamicGatedMatmul, QuantMatmul, QuantConv2d, StoredMatmul)


def _judged(metric: Metric, model: ImportedModel, results: Sequence[Sequence[np.ndarray]]) -> float:
    """The user's figure for the results of all samples."""
    names = [spec.name for spec in model.signature.outputs]
    outputs = {
        name: np.stack([np.asarray(one) for one in column])
        for name, column in zip(names, zip(*results, strict=True), strict=True)
    }
    hint = f"it takes {{output name: array}} and gives a number; it got {_described(outputs)}"
    try:
        figure = metric(outputs)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}, line {frame.lineno}"
        raise UsageError(f"the metric fails ({place}): {type(error).__name__}: {error}", hint=hint) from error
    try:
        number = float(figure)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the metric gives {reprlib.repr(figure)}, not a number", hint=hint) from error
    if not math.isfinite(number):
        raise UsageError(f"the metric gives {number}", hint=hint)
    return number


def _described(arrays: Mapping[str, np.ndarray]) -> str:
    """Names, types and shapes of arrays in a line."""
    return ", ".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in arrays.items())


def _distances(
    built: BuiltModel, given: Sequence[Sequence[np.ndarray]], wanted: Sequence[Sequence[np.ndarray]]
) -> tuple[OutputDistance, ...]:
    distances = []
    for index, spec in enumerate(built.optimized.model.signature.outputs):
        pairs = [(np.asarray(y[index]), np.asarray(w[index])) for y, w in zip(given, wanted, strict=True)]
        if pairs[0][1].dtype.kind != "f":
            continue
        angles = [cosine(y.astype(np.float64), w.astype(np.float64)) for y, w in pairs]
        largest = max(float(np.abs(w).max(initial=0)) for _, w in pairs) or 1.0
        error = max(float(np.abs(y - w).max(initial=0)) for y, w in pairs)
        distances.append(OutputDistance(spec.name, float(np.mean(angles)), min(angles), error / largest))
    return tuple(distances)
