"""Quantise a model: 8-bit products where the accuracy holds, float32 for the layers that would break it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_tvm.compile.build import BuiltModel
from hetero_tvm.compile.calibration import Calibration
from hetero_tvm.compile.fault import every_result
from hetero_tvm.compile.optimize import OptimizedModel, optimize_model
from hetero_tvm.errors import AccuracyError, InputError, UsageError
from hetero_tvm.frontend import ImportedModel
from hetero_tvm.host.tvm import relax
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.ops.integers.dynamic_matmul import DynamicGatedMatmul, DynamicMatmul, quantized_weights
from hetero_tvm.ops.integers.quantized import QuantConv2d, QuantMatmul
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.reference import sample_inputs
from hetero_tvm.reference.accuracy import cosine
from hetero_tvm.reference.given import checked_inputs
from hetero_tvm.relax_passes.rewriting.graph import array_of
from hetero_tvm.targets.registry import parse_target

METHODS = ("dynamic", "static")
SAMPLES = 4
"""Samples that are drawn where no data are given."""

Samples = Sequence[Mapping[str, np.ndarray]]
Metric = Callable[[Mapping[str, np.ndarray]], float]
"""A figure of merit from the outputs by name, samples along the first axis."""
Build = Callable[[OptimizedModel], BuiltModel]


@dataclass(frozen=True)
class Layer:
    """One product: its source nodes, and the relative error that 8 bits bring to its result alone."""

    nodes: tuple[str, ...]
    error: float


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
    quantized : products and convolutions in 8 bits.
    kept : those in float32 because the accuracy would not hold, the most sensitive first.
    layers : all of them, the most sensitive first.
    metric : what the user's function gives for float32 and for 8 bits; None without one.
    """

    method: str
    samples: int
    outputs: tuple[OutputDistance, ...]
    quantized: int
    kept: tuple[str, ...]
    layers: tuple[Layer, ...]
    metric: tuple[float, float] | None = None

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
            lines.append("metric: {:.6g} in float32, {:.6g} in 8 bits".format(*self.metric))
        lines.append(f"{self.quantized} products in 8 bits, {len(self.kept)} kept in float32")
        lines += [f"kept in float32: {node}" for node in self.kept]
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
) -> tuple[BuiltModel, QuantizationReport]:
    """Build a model with 8-bit products, and measure what that costs.

    Parameters
    ----------
    build : what compiles an optimized model.
    method : ``dynamic``: weights are rounded now, what they are multiplied with when the model runs, row by
        row; data serve for the measurement only.  ``static``: every tensor around products and convolutions
        has one range, found on the data (``calibration.py``).
    data : arrays by input name, each with the shape of its input, or one axis of samples in front; None for
        sampled ones, which say little of the accuracy on real data.
    least_cosine : bar for the cosine between every output and float32's, on every sample.  While it does not
        hold, the most sensitive products stay in float32, twice as many each time.
    calibration : how ``static`` finds ranges (:data:`hetero_tvm.compile.calibration.CALIBRATIONS`).
    metric : judges the outputs of float32 and of 8 bits, for the report.

    Raises
    ------
    AccuracyError : the bar does not hold with any product in 8 bits.
    InputError, UsageError : the data do not fit, or ``static`` has none; the method is unknown; the target
        has no 8-bit products.
    """
    if method not in METHODS:
        raise UsageError(f"there is no method {method!r}", hint=f"known: {', '.join(METHODS)}")
    if method == "static" and data is None:
        raise UsageError("static quantisation finds ranges on samples", hint="--data FILE.npz gives them")
    if counted := model.signature.counted:
        raise UsageError(
            f"how many elements {', '.join(counted)} have depends on values, which 8 bits change: results of "
            "float32 and of 8 bits cannot be compared element by element",
            hint="quantize the part of the model before them",
        )
    lower = parse_target(target).with_precision("int8")
    samples = samples_of(model, data)
    plain = build(optimize_model(model, target))
    wanted = [plain.run(sample) for sample in samples]
    if method == "static":
        ranges = Calibration(model, samples, calibration)
        found = ranges.layers(ranges.quantized())
        layers = tuple(Layer((layer.node,), layer.error) for layer in found)
    else:
        layers = sensitivity(plain, samples[0])
    kept: tuple[str, ...] = ()
    while True:
        if method == "static":
            optimized = optimize_model(ranges.imported(ranges.quantized(kept)), target)
        else:
            optimized = optimize_model(model, lower.keeping(kept))
        built = build(optimized)
        count = sum(task.count for task in built.optimized.tasks if isinstance(task.op, _QUANTIZED))
        given = [built.run(sample) for sample in samples]
        outputs = _distances(built, given, wanted)
        figures = None if metric is None else (_judged(metric, model, wanted), _judged(metric, model, given))
        report = QuantizationReport(method, len(samples), outputs, count, kept, layers, figures)
        if report.least_cosine >= least_cosine:
            return built, report
        more = max(1, 2 * len(kept))
        if len(kept) >= len(layers):
            raise AccuracyError(
                f"{model.name}: the cosine stays below {least_cosine:g}",
                problems=str(report).splitlines(),
                hint="--least-cosine sets the bar; --data FILE.npz gives real samples to measure on",
            )
        kept = tuple(layer.nodes[-1] for layer in layers[:more])


def samples_of(model: ImportedModel, data: Mapping[str, np.ndarray] | None) -> Samples:
    """Inputs, one mapping per sample."""
    if data is None:
        return [sample_inputs(model, seed) for seed in range(SAMPLES)]
    specs = {spec.name: spec for spec in model.signature.inputs}
    counts = {}
    for name, array in data.items():
        spec = specs.get(name)
        if spec is not None and array.ndim == len(spec.shape) + 1 and array.shape[1:] == tuple(spec.shape):
            counts[name] = len(array)
    if len(set(counts.values())) > 1 or 0 in counts.values():
        raise InputError(
            "the numbers of samples differ or are zero", problems=[f"{n}: {c}" for n, c in counts.items()]
        )
    rows = range(next(iter(counts.values()), 1))
    return [
        checked_inputs(model.signature, {n: a[row] if n in counts else a for n, a in data.items()})
        for row in rows
    ]


def sensitivity(built: BuiltModel, inputs: Mapping[str, np.ndarray]) -> tuple[Layer, ...]:
    """Products of a float32 model with the error that 8 bits bring to each alone, the largest first."""
    layers = []
    for nodes, op, arrays in _products(built, inputs):
        lower: FusedOp = (
            DynamicGatedMatmul(op.lead, op.n, op.k, op.activation, op.biased)
            if isinstance(op, GatedMatmul)
            else DynamicMatmul(op.lead, op.n, op.k, op.epilogue)
        )
        x, w, *extra = (np.asarray(array, np.float32) for array in arrays)
        exact = op.reference(x, w, *extra)
        rounded = lower.reference(x, *quantized_weights(w, False), *extra)
        size = float(np.linalg.norm(exact)) or 1.0
        layers.append(Layer(nodes, float(np.linalg.norm(rounded - exact)) / size))
    return tuple(sorted(layers, key=lambda layer: -layer.error))


def _products(
    built: BuiltModel, inputs: Mapping[str, np.ndarray]
) -> Iterator[tuple[tuple[str, ...], Any, list[np.ndarray]]]:
    """Products with constant weights: source nodes, contract, operands."""
    optimized = built.optimized
    for binding, op, values in every_result(optimized, built.choices, inputs):
        if not isinstance(op, Matmul | GatedMatmul):
            continue
        fields = binding.value.args[1].fields
        if array_of(fields[1]) is not None:
            arrays = [values[arg] if isinstance(arg, relax.Var) else arg.value.numpy() for arg in fields]
            yield optimized.sources.get(binding.var.name, (binding.var.name,)), op, arrays


_QUANTIZED = (DynamicMatmul, DynamicGatedMatmul, QuantMatmul, QuantConv2d)


def _judged(metric: Metric, model: ImportedModel, results: Sequence[Sequence[np.ndarray]]) -> float:
    """The user's figure for the results of all samples."""
    names = [spec.name for spec in model.signature.outputs]
    outputs = {
        name: np.stack([np.asarray(one) for one in column])
        for name, column in zip(names, zip(*results, strict=True), strict=True)
    }
    return float(metric(outputs))


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
