"""One TensorFlow Lite operator while it is translated: operands, results, layouts and quantisers.

Images lie channels last in the file, and channels first in ONNX.  Each image is kept in the layouts that were
asked for, and operators that take either go on in the one that their operands have: transposes are written
only where the model enters and leaves its convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import helper

from hetero_tvm.frontend.nodes import Nodes, Untranslatable, onnx_type
from hetero_tvm.frontend.tflite.load import Graph, Operator, Tensor

Values = dict[int, dict[bool, str]]
"""ONNX names by number of a tensor and by whether channels come first."""

Step = Callable[..., Sequence[str]]
"""Takes a row and states; gives the next states, and what is kept of the row."""

_STEPS = ("int8", "uint8")
"""Types that ONNX's quantisers have in every opset."""


def channels_first(rank: int) -> list[int]:
    """Order of axes that brings the last one to second place."""
    return [0, rank - 1, *range(1, rank - 1)]


def channels_last(rank: int) -> list[int]:
    """Order of axes that undoes :func:`channels_first`."""
    return [0, *range(2, rank), 1]


class Op:
    """One operator while it is translated.

    Parameters
    ----------
    operator, graph : the operator, and the graph that its tensors belong to.
    values : names of what was translated before; results are entered here.
    known : constants by number of a tensor, those computed on the way too.
    nodes : where its nodes go.
    """

    def __init__(
        self, operator: Operator, graph: Graph, values: Values, known: dict[int, np.ndarray], nodes: Nodes
    ):
        self._operator, self._graph = operator, graph
        self._values, self._known, self._nodes = values, known, nodes
        self.kind = operator.kind

    # --- what is asked of the file ---------------------------------------------------------------

    @property
    def count(self) -> int:
        """Number of operands."""
        return len(self._operator.inputs)

    @property
    def results(self) -> int:
        """Number of results."""
        return len(self._operator.outputs)

    def has(self, index: int) -> bool:
        """Whether an operand is given."""
        return index < self.count and self._operator.inputs[index] >= 0

    def tensor(self, index: int = 0) -> Tensor:
        """An operand as the file declares it."""
        if not self.has(index):
            raise Untranslatable(f"operand {index} is missing")
        return self._graph.tensors[self._operator.inputs[index]]

    def shape(self, index: int = 0) -> tuple[int, ...]:
        return self.tensor(index).shape

    def result(self, index: int = 0) -> Tensor:
        """A result as the file declares it."""
        return self._graph.tensors[self._operator.outputs[index]]

    def option(self, name: str, default: Any = None) -> Any:
        """One of the operator's options; the file's default where it has none."""
        options = self._operator.options
        if isinstance(options, dict):
            found = options.get(name, default)
        else:
            read = getattr(options, name, None)
            found = default if read is None else read()
        if found is None:
            raise Untranslatable(f"without the option {name}")
        return found

    @property
    def options(self) -> Any:
        """The table of its options as the schema reads it; a mapping for a custom operator."""
        return self._operator.options

    def has_value(self, index: int) -> bool:
        """Whether something gives an operand; a variable of the file has no value before it is run."""
        return self.has(index) and (
            self._operator.inputs[index] in self._known or self._operator.inputs[index] in self._values
        )

    def is_constant(self, index: int) -> bool:
        return self.has(index) and self._operator.inputs[index] in self._known

    def constant(self, index: int) -> np.ndarray:
        """A constant operand as it is stored; :class:`Untranslatable` where it comes at run time."""
        if not self.is_constant(index):
            raise Untranslatable(f"operand {index} ({self.tensor(index).name!r}) comes at run time")
        return self._known[self._operator.inputs[index]]

    def ints(self, index: int) -> list[int]:
        """A constant operand as a flat list of whole numbers."""
        return [int(x) for x in self.constant(index).reshape(-1)]

    def axes(self, index: int, rank: int) -> list[int]:
        """Axes in a constant operand, counted from the front."""
        return [axis % rank for axis in self.ints(index)]

    # --- operands ---------------------------------------------------------------------------------

    @property
    def first(self) -> bool:
        """Whether the operands are images, one of them channels first already, and the others can be."""
        images = [i for i in range(self.count) if self.has(i) and not self.is_constant(i)]
        constants = [i for i in range(self.count) if self.is_constant(i)]
        return (
            any(True in self._values.get(self._operator.inputs[i], {}) for i in images)
            and all(len(self.shape(i)) == 4 for i in images)
            and all(len(self.shape(i)) in (0, 1, 4) for i in constants)
            and all(len(self.result(i).shape) == 4 for i in range(self.results))
        )

    def first_operand(self, index: int) -> bool:
        """Whether one operand is an image that is kept channels first."""
        known = True in self._values.get(self._operator.inputs[index], {})
        return known and len(self.shape(index)) == 4

    def raw(self, index: int = 0, first: bool = False) -> str:
        """An operand as it is stored, channels first if asked."""
        self.tensor(index)
        number = self._operator.inputs[index]
        names = self._values.setdefault(number, {})
        if first in names:
            return names[first]
        if number in self._known:
            array = self._known[number]
            if first and array.ndim == 4:
                array = array.transpose(channels_first(4))
            elif first and array.ndim == 1 and array.size > 1:
                array = array.reshape(-1, 1, 1)
            names[first] = self._nodes.constant(array, array.dtype)
        elif names:
            order = channels_first if first else channels_last
            names[first] = self.emit("Transpose", names[not first], perm=order(len(self.shape(index))))
        else:
            raise Untranslatable(f"operand {self.tensor(index).name!r} has no value")
        return names[first]

    def value(self, index: int = 0, first: bool = False) -> str:
        """An operand as a number: a quantised one as float32."""
        tensor = self.tensor(index)
        if tensor.scale is None:
            return self.raw(index, first)
        if self.is_constant(index) and tensor.scale.size > 1:
            return self.weights(index, channels_first(4) if first and len(tensor.shape) == 4 else None)
        return self.dequantized(self.raw(index, first), tensor)

    def weights(
        self, index: int, order: Sequence[int] | None = None, shape: Sequence[int] | None = None
    ) -> str:
        """A constant as a number, with its axes in another order, then in another shape (scales: axis 0)."""
        tensor = self.tensor(index)
        if not self.is_constant(index):
            name = self.value(index)
            name = name if order is None else self.emit("Transpose", name, perm=list(order))
            return name if shape is None else self.reshaped(name, shape)
        array = self.constant(index)
        axes = list(range(array.ndim)) if order is None else list(order)
        array = np.ascontiguousarray(array.transpose(axes))
        axis = axes.index(tensor.axis) if tensor.scale is not None and array.ndim else 0
        if shape is not None:
            array = array.reshape(tuple(shape))
        return self.dequantized(self._nodes.constant(array, array.dtype), tensor, axis)

    def bias(self, index: int, scale: np.ndarray | None = None) -> str:
        """A vector that is added to a product; ``scale``: of one step of the product, for a quantised one."""
        array = self.constant(index) if self.is_constant(index) else None
        if array is None or array.dtype.kind == "f":
            return self.value(index)
        step = self.tensor(index).scale if scale is None else scale
        if step is None:
            raise Untranslatable("a bias of whole numbers without a scale")
        return self.const(array.astype(np.float64) * step.astype(np.float64), "float32")

    def dequantized(self, name: str, tensor: Tensor, axis: int = 0) -> str:
        """The float32 numbers of a stored tensor; the name itself where it is not quantised."""
        if tensor.scale is None or tensor.zero is None:
            return name
        scale, zero = tensor.scale, tensor.zero
        if tensor.dtype in (*_STEPS, "int4"):
            dtype = "uint8" if tensor.dtype == "uint8" else "int8"
            shape = () if scale.size == 1 else scale.shape
            ends = self.const(scale.reshape(shape), "float32"), self.const(zero.reshape(shape), dtype)
            return self.emit("DequantizeLinear", name, *ends, **({"axis": axis} if shape else {}))
        if scale.size > 1 or zero.any():
            raise Untranslatable(f"{tensor.dtype} with scales per channel, or zero points")
        return self.emit("Mul", self.cast(name, "float32"), self.const(scale.reshape(()), "float32"))

    def quantized(self, name: str, tensor: Tensor) -> str:
        """Float32 numbers as a tensor of the file stores them; the name itself where it is not quantised."""
        if tensor.scale is None or tensor.zero is None:
            return name
        if tensor.scale.size > 1:
            raise Untranslatable("a result with scales per channel")
        scale, zero = tensor.scale.reshape(()), tensor.zero.reshape(())
        if tensor.dtype in _STEPS:
            ends = self.const(scale, "float32"), self.const(zero, tensor.dtype)
            return self.emit("QuantizeLinear", name, *ends)
        if tensor.dtype != "int16" or zero.any():
            raise Untranslatable(f"a result quantised to {tensor.dtype}")
        steps = self.emit("Round", self.emit("Div", name, self.const(scale, "float32")))
        low, high = np.iinfo(np.int16).min, np.iinfo(np.int16).max
        return self.cast(self.clipped(steps, low, high), "int16")

    # --- results ----------------------------------------------------------------------------------

    def give(self, name: str, index: int = 0, first: bool = False) -> None:
        """Enter a result that is a number; it is quantised if the file keeps it so."""
        self.give_raw(self.quantized(name, self.result(index)), index, first)

    def give_raw(self, name: str, index: int = 0, first: bool = False) -> None:
        """Enter a result as it is stored."""
        self._values[self._operator.outputs[index]] = {first: name}

    def give_constant(self, array: np.ndarray, index: int = 0) -> None:
        """Enter a result that is known now."""
        self._known[self._operator.outputs[index]] = array

    def moved(self, operands: Sequence[int], move: Callable[..., Sequence[str]], first: bool = False) -> None:
        """Enter results that hold values of operands: as stored where all have the same quantisers."""
        tensors = [self.tensor(i) for i in operands] + [self.result(i) for i in range(self.results)]
        alike = len({tensor.quantization for tensor in tensors}) == 1
        read, give = (self.raw, self.give_raw) if alike else (self.value, self.give)
        for index, name in enumerate(move(*(read(i, first) for i in operands))):
            give(name, index, first)

    def activated(self, name: str) -> str:
        """A number behind the operator's fused activation."""
        kind = self.option("FusedActivationFunction", 0)
        if kind == 4:
            return self.emit("Tanh", name)
        if kind not in _BOUNDS:
            raise Untranslatable(f"with the activation {kind}")
        return self.bounded(name, *_BOUNDS[kind])

    def bounded(self, name: str, low: float, high: float) -> str:
        """A number within bounds, but for those that the result's 8 bits keep anyway."""
        tensor = self.result()
        if tensor.scale is not None and tensor.zero is not None and tensor.dtype in _STEPS:
            limits, step = np.iinfo(tensor.dtype), float(tensor.scale[0])
            ends = [step * (end - float(tensor.zero[0])) for end in (limits.min, limits.max)]
            low = -np.inf if ends[0] >= low - step / 4 else low
            high = np.inf if ends[1] <= high + step / 4 else high
        if low == 0 and high == np.inf:
            return self.emit("Relu", name)
        return name if (low, high) == (-np.inf, np.inf) else self.clipped(name, low, high)

    # --- nodes ------------------------------------------------------------------------------------

    def emit(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """The name of a new node's result."""
        return self._nodes.emit(kind, *inputs, **attributes)

    def maker(self, name: str, kind: str) -> list[str] | None:
        """Operands of the node of a kind that makes a tensor; None where another one does."""
        node = self._nodes.maker(name)
        return list(node.input) if node is not None and node.op_type == kind else None

    def several(self, kind: str, *inputs: str, count: int, **attributes: Any) -> list[str]:
        """Names of the results of a new node that has several."""
        return self._nodes.several(kind, *inputs, count=count, **attributes)

    def scanned(
        self, rows: str, row: Sequence[int], states: Sequence[tuple[str, Sequence[int]]], step: Step
    ) -> str:
        """Rows that ``step`` makes of the rows of a tensor, along its first axis; float32 all.

        ``states`` : first values of what goes from one row to the next, with their shapes.
        """
        given = [self._nodes.fresh() for _ in (*states, row)]
        with self._nodes.inside() as nodes:
            *after, made = step(given[-1], *given[:-1])
            ends = [self.several("Identity", name, count=1)[0] for name in (*after, made)]
        shapes = [shape for _, shape in states]
        infos = [
            [
                helper.make_tensor_value_info(n, onnx_type("float32"), s)
                for n, s in zip(names, kinds, strict=True)
            ]
            for names, kinds in ((given, [*shapes, row]), (ends, [*shapes, None]))
        ]
        body = helper.make_graph(nodes, "step", *infos)
        count = len(states) + 1
        first = [name for name, _ in states]
        return self.several("Scan", *first, rows, count=count, body=body, num_scan_inputs=1)[-1]

    def const(self, value: Any, dtype: str = "int64") -> str:
        return self._nodes.constant(value, dtype)

    def cast(self, name: str, dtype: str) -> str:
        return self.emit("Cast", name, to=onnx_type(dtype))

    def clipped(self, name: str, low: float, high: float) -> str:
        low_name = self.const(low, "float32") if low > -np.inf else ""
        return self.emit("Clip", name, low_name, *([self.const(high, "float32")] if high < np.inf else []))

    def reshaped(self, name: str, shape: Sequence[int]) -> str:
        return self.emit("Reshape", name, self.const(list(shape)))


_BOUNDS = {0: (-np.inf, np.inf), 1: (0.0, np.inf), 2: (-1.0, 1.0), 3: (0.0, 6.0)}
"""Least and largest value behind each fused activation that only bounds."""
