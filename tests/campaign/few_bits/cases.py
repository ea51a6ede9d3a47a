"""A product of few bits: its model, its inputs, and what is to come out by the definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Arrays = dict[str, np.ndarray]
Exact = Callable[[Arrays], tuple[np.ndarray, np.ndarray]]
"""Results of inputs in float64, and how far off each may be."""

STEP = 0.5 + 1 / 256
"""Steps of 8 bits between a result and what it rounds; biases may be rounded to 1/512 of one."""
FLOAT32 = 4e-6
"""Error of sums in float32 beside the sum of magnitudes."""


class Product(NamedTuple):
    """A product of matrices, or a convolution where there are ``attributes``."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    attributes: dict[str, Any] | None

    @property
    def op(self) -> str:
        return "MatMul" if self.attributes is None else "Conv"

    @property
    def channel_axis(self) -> int:
        """Axis of the weights that the channels of the result lie along."""
        return 1 if self.attributes is None else 0

    def along_channels(self, values: np.ndarray) -> np.ndarray:
        """``values`` per channel of the result, to be broadcast over it."""
        return values if self.attributes is None else values.reshape(-1, 1, 1)

    def of(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Sums of products in the dtype of the operands, without rounding; padding counts for nothing."""
        if self.attributes is None:
            return x @ w
        a = self.attributes
        (top, left, bottom, right), (down, across) = a["pads"], a["strides"]
        x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
        tall, wide = ((n - 1) * d + 1 for n, d in zip(w.shape[2:], a["dilations"], strict=True))
        windows = np.lib.stride_tricks.sliding_window_view(x, (tall, wide), (2, 3))
        windows = windows[:, :, ::down, ::across, :: a["dilations"][0], :: a["dilations"][1]]
        parts = zip(np.split(windows, a["group"], 1), np.split(w, a["group"], 0), strict=True)
        return np.concatenate([np.einsum("nchwij,ocij->nohw", p, q) for p, q in parts], 1)


@dataclass
class Case:
    """A model, inputs, and what is to come out."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: Arrays = field(default_factory=dict)
    draws: list[Arrays] = field(default_factory=list)
    exact: Exact | None = None
    result: int = TensorProto.FLOAT
    precision: str | None = None

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], output, **attributes))
        return output

    def const(self, name: str, value: Any) -> str:
        self.weights[name] = np.asarray(value)
        return name

    def model(self) -> onnx.ModelProto:
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in self.draws[0].items()
        ]
        rank = np.ndim(self.exact(self.draws[0])[0])
        output = helper.make_tensor_value_info("y", self.result, [None] * rank)
        weights = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        graph = helper.make_graph(self.nodes, "few_bits", inputs, [output], weights)
        opsets = [helper.make_opsetid("", 19), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


class Steps(NamedTuple):
    """How numbers are counted in whole numbers of 8 bits."""

    scale: np.ndarray
    zero: np.ndarray
    dtype: np.dtype

    @property
    def ends(self) -> tuple[int, int]:
        return int(np.iinfo(self.dtype).min), int(np.iinfo(self.dtype).max)
