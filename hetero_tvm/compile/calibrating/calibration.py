"""Static quantisation: ranges found on samples, quantisers written into the model (ONNX's QDQ form).

ONNX Runtime finds the ranges and writes the quantisers; the model is then imported as any quantised file.
Convolution networks are quantised from end to end, sums and pooling included.  In models that are mostly
matrix products only these are: the sums, norms and activations of a Transformer lose more by 8 bits than
they win.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import logging
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from hetero_tvm.compile.calibrating.least_error import Values, least_error_ranges
from hetero_tvm.compile.calibrating.reach import (
    leading_nowhere,
    of_computed_operands,
    without_idle_quantizers,
)
from hetero_tvm.compile.calibrating.sums import rounding_sums_once
from hetero_tvm.errors import UsageError, unknown_name
from hetero_tvm.frontend import ImportedModel, import_model
from hetero_tvm.host.install import pip_command
from hetero_tvm.ops.integers.dynamic_matmul import safe_range
from hetero_tvm.ops.integers.quantized import QuantConv2d

CALIBRATIONS = ("minmax", "percentile", "mse", "entropy")
"""Ways to find the range of a tensor: all that samples show; all but the outermost 0.001%; the range of least
squared error; the range that keeps most of the distribution."""

_LAYERS = ("Conv", "MatMul", "Gemm")
_BETWEEN = ("Add", "Mul", "Relu", "Clip", "MaxPool", "AveragePool", "GlobalAveragePool", "Concat", "Flatten",
            "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Resize")  # fmt: skip

Samples = Sequence[Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class QuantizableLayer:
    """A product or convolution: its node, and the relative error that rounding its operands brings."""

    node: str
    error: float


def check_way(way: str) -> None:
    """Refuse a way to find ranges that is none of :data:`CALIBRATIONS`."""
    if way not in CALIBRATIONS:
        message, hint = unknown_name("there is no calibration", way, CALIBRATIONS)
        raise UsageError(message, hint=hint)


def check_runtime() -> None:
    """Refuse to find ranges where ONNX Runtime, which runs the model for them, is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise UsageError(
            "static quantisation needs ONNX Runtime, which finds the ranges",
            hint=pip_command("onnxruntime"),
        )


class Calibration:
    """Samples' ranges of one model, and quantised models made from them.

    Parameters
    ----------
    model : the model in float32.
    samples : inputs whose values tell the ranges.
    way : one of :data:`CALIBRATIONS`.
    pairs_safe : pairs of weights that are scaled so that they cannot saturate 16 bits where they meet.
    sums_once : whether a sum takes the result of a convolution as it is, and rounds what comes out only.

    Raises
    ------
    UsageError : ONNX Runtime is not installed, or ``way`` is not known.
    """

    def __init__(
        self,
        model: ImportedModel,
        samples: Samples,
        way: str = "minmax",
        pairs_safe: int = 0,
        sums_once: bool = False,
    ):
        check_way(way)
        check_runtime()
        from onnxruntime.quantization.shape_inference import quant_pre_process

        self._name, self._samples, self._way = model.name, samples, way
        self._sums_once = sums_once
        self._folder = tempfile.TemporaryDirectory(prefix="hetero_tvm_calibration_")
        plain, ready = (Path(self._folder.name) / name for name in ("plain.onnx", "ready.onnx"))
        onnx.save(model.onnx_model, plain)
        with _QuietLogging():
            quant_pre_process(str(plain), str(ready), skip_symbolic_shape=True)  # norms into convolutions
        self._ready = ready
        self._weights = weight_ranges(onnx.load(ready), pairs_safe) if pairs_safe else {}

    def quantized(self, kept: Sequence[str] = ()) -> onnx.ModelProto:
        """The model with quantisers around everything but the nodes ``kept``."""
        return self._quantized(kept, self._least_error if self._way == "mse" else {})

    @functools.cached_property
    def _least_error(self) -> dict[str, list[dict[str, np.ndarray]]]:
        """Ranges of least squared error of all tensors between quantisers, as ONNX Runtime takes them."""
        nodes = self._quantized((), {}).graph.node
        tensors = {_plain_name(n.input[0]) for n in nodes if n.op_type == "QuantizeLinear"}
        ranges = least_error_ranges(self._samples, self._values_of(tensors))
        return {
            name: [{"rmin": np.float32(low), "rmax": np.float32(high)}]
            for name, (low, high) in ranges.items()
        }

    def _quantized(self, kept: Sequence[str], ranges: Mapping[str, Any]) -> onnx.ModelProto:
        """The model with quantisers; ``ranges`` go before those of ONNX Runtime's calibrators."""
        from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

        ready = onnx.load(self._ready, load_external_data=False)
        kinds = [node.op_type for node in ready.graph.node]
        images = kinds.count("Conv") > kinds.count("MatMul") + kinds.count("Gemm")
        between = _BETWEEN if images else ()
        floating = [*kept, *of_computed_operands(ready, _LAYERS)]
        floating += leading_nowhere(ready, _LAYERS, between, floating)
        method = {"percentile": "Percentile", "entropy": "Entropy"}.get(self._way, "MinMax")
        path = self._ready.with_name("quantized.onnx")
        with _QuietLogging():
            quantize_static(
                str(self._ready),
                str(path),
                _Reader(self._samples),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=[*_LAYERS, *between],
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                nodes_to_exclude=floating,
                calibrate_method=getattr(CalibrationMethod, method),
                extra_options={
                    "MatMulConstBOnly": True,
                    "CalibPercentile": 99.999,
                    "TensorQuantOverrides": {**self._weights, **ranges},
                },
            )
        written = without_idle_quantizers(onnx.load(path), (*_LAYERS, *between), floating)
        return rounding_sums_once(written) if self._sums_once else written

    def imported(self, quantized: onnx.ModelProto) -> ImportedModel:
        """The quantised model, under the name of the one it was made from."""
        return dataclasses.replace(import_model(quantized), name=self._name)

    def layers(self, quantized: onnx.ModelProto) -> tuple[QuantizableLayer, ...]:
        """Layers between quantisers, the most sensitive first, judged on the first sample."""
        found = _operands(quantized)
        weights = {tensor.name: tensor for tensor in onnx.load(self._ready).graph.initializer}
        values = dict(self._values_of({x for x, *_ in found.values()})(self._samples[0]))
        layers = []
        for node, (x, steps, rounded, name) in found.items():
            w = numpy_helper.to_array(weights[name]) if name in weights else rounded
            errors = _distance(_rounded(values[x], *steps), values[x]), _distance(rounded, w)
            layers.append(QuantizableLayer(node, float(np.hypot(*errors))))
        return tuple(sorted(layers, key=lambda layer: -layer.error))

    def _values_of(self, names: Iterable[str]) -> Values:
        """Function from a sample to the values of these tensors, by name."""
        import onnxruntime

        ready = onnx.load(self._ready)
        given = {value.name for value in ready.graph.input}
        wanted = sorted(set(names) - given)
        del ready.graph.output[:]
        ready.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in wanted)
        session = onnxruntime.InferenceSession(ready.SerializeToString()) if wanted else None

        def values(sample: Mapping[str, np.ndarray]) -> Iterable[tuple[str, np.ndarray]]:
            made = session.run(wanted, dict(sample)) if session is not None else []
            own = [(name, np.asarray(sample[name])) for name in sorted(set(names) & given)]
            return [*zip(wanted, made, strict=True), *own]

        return values


def weight_ranges(model: onnx.ModelProto, pairs_safe: int) -> dict[str, list[dict[str, Any]]]:
    """Ranges of the weights of products and convolutions by channel, as ONNX Runtime takes them, in which so
    many pairs are safe."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    found: dict[str, list[dict[str, Any]]] = {}
    for node in model.graph.node:
        if node.op_type not in _LAYERS or node.input[1] not in stored:
            continue
        w, axis = numpy_helper.to_array(stored[node.input[1]]), 1
        if node.op_type == "Conv":
            if w.ndim not in (3, 4):
                continue
            image = w if w.ndim == 4 else w[:, :, None]  # rows are images of one row
            ordered, axis = QuantConv2d.word_order(image), 0
        elif node.op_type == "Gemm" and any(a.name == "transB" and a.i for a in node.attribute):
            ordered, axis = w.T, 0
        else:
            ordered = w
        if ordered.ndim < 2 or (w.ndim != 2 and node.op_type != "Conv") or w.dtype != np.float32:
            continue
        most = np.maximum(safe_range(ordered, pairs_safe), np.finfo(np.float32).tiny * 127).astype(np.float32)
        found[node.input[1]] = [{"axis": axis, "rmin": -value, "rmax": value} for value in most]
    return found


def _operands(
    model: onnx.ModelProto,
) -> dict[str, tuple[str, tuple[np.ndarray, np.ndarray], np.ndarray, str]]:
    """Layers between quantisers by name: their input, the input's scale and zero point, the weights as
    8 bits make them, and their name in the model without quantisers."""
    made = {output: node for node in model.graph.node for output in node.output}
    stored = {tensor.name: tensor for tensor in model.graph.initializer}

    def array(name: str) -> np.ndarray:
        return numpy_helper.to_array(stored[name])

    found = {}
    for node in model.graph.node:
        if node.op_type not in _LAYERS:
            continue
        ends = [made.get(name) for name in node.input[:2]]
        if any(end is None or end.op_type != "DequantizeLinear" for end in ends):
            continue
        (source, weights) = (end for end in ends if end is not None)
        quantizer = made.get(source.input[0])
        if quantizer is None or weights.input[0] not in stored:
            continue
        axis = next((a.i for a in weights.attribute if a.name == "axis"), 1)
        w, scale, zero = (array(name) for name in weights.input[:3])
        shape = [-1 if n == axis % w.ndim and scale.size > 1 else 1 for n in range(w.ndim)]
        rounded = (w.astype(np.float32) - zero.reshape(shape)) * scale.reshape(shape)
        steps = array(source.input[1]), array(source.input[2])
        found[node.name] = (
            _plain_name(quantizer.input[0]),
            steps,
            rounded,
            weights.input[0].removesuffix("_quantized"),
        )
    return found


def _plain_name(tensor: str) -> str:
    """Name, in the model without quantisers, of what a quantiser reads: ONNX Runtime renames a result of the
    graph that it quantises (since 1.32)."""
    return tensor.removesuffix("_QuantizeLinear_Input")


def _rounded(x: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """``x`` as its 8 bits make it."""
    limits = np.iinfo(zero.dtype)
    steps = np.clip(np.rint(x / scale) + zero, limits.min, limits.max)
    return (steps - zero.astype(np.float32)) * scale


def _distance(y: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(y - exact)) / (float(np.linalg.norm(exact)) or 1.0)


class _Reader:
    """Samples as ONNX Runtime's calibrators read them."""

    def __init__(self, samples: Samples):
        self._left = iter(samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next sample; None behind the last."""
        sample = next(self._left, None)
        return None if sample is None else dict(sample)

    def set_range(self, start_index: int, end_index: int) -> None:
        """Part of the samples, which nobody asks for here."""
        raise NotImplementedError


class _QuietLogging:
    """No advice of the quantiser on the root logger."""

    def __enter__(self) -> None:
        self._disabled = logging.root.manager.disable
        logging.disable(logging.WARNING)

    def __exit__(self, *exc: Any) -> None:
        logging.disable(self._disabled)
