"""Nodes whose results have the shape that the file declares, whatever their operands' values say.

Where the shape of a result depends on values that come at run time (the ``shape`` of a Reshape, the ``axes``
of a reduction), the shape that the file declares for it is a promise.  The node is written out for that
shape, and a check is planted that the values keep the promise: others end in an error that names the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto

from hetero_tvm.frontend.onnx.graph.body import Body
from hetero_tvm.frontend.onnx.graph.constants import ConstantPool, Types

Promises = Mapping[str, tuple[int, ...]]
"""Declared shapes by the name of a result."""

# fmt: off
_SAME_SHAPE = frozenset({
    "Identity", "Cast", "CastLike", "Log", "Exp", "Sqrt", "Abs", "Neg", "Cos", "Sin", "Tanh", "Sigmoid",
    "Erf", "Relu", "Floor", "Ceil", "Round", "Not", "Reciprocal", "Sign",
})
_BROADCAST = frozenset({
    "Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Where", "And", "Or", "Equal", "Less",
})
# fmt: on


def spread(graph: onnx.GraphProto, types: Types, promises: Promises) -> dict[str, tuple[int, ...]]:
    """Promises of a graph's results, and of what they are computed from element by element."""
    wanted = dict(promises)
    for node in reversed(graph.node):
        shape = wanted.get(node.output[0])
        if shape is None or node.op_type not in _SAME_SHAPE | _BROADCAST:
            continue
        operands = node.input[:1] if node.op_type in _SAME_SHAPE else node.input
        for name in operands:
            if _may_be(types.get(name), shape):
                wanted.setdefault(name, shape)
    return wanted


def _may_be(known: tuple[int, tuple[int | None, ...] | None] | None, shape: tuple[int, ...]) -> bool:
    """Whether a tensor whose shape is not fully known may have ``shape``."""
    if known is None or known[1] is None:
        return True
    if None not in known[1] or len(known[1]) != len(shape):
        return False
    return all(dim in (None, size) for dim, size in zip(known[1], shape, strict=True))


class PromisedBody(Body):
    """Nodes that stand for one whose results have promised shapes."""

    def __init__(
        self, node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool, promises: Promises
    ):
        super().__init__(node, opset, lambda name: pool.shape(name, types))
        self._types, self._pool, self._promises = types, pool, promises
        # What is written here may be written out again, under the name of the same result.
        self._prefix = f"{self._prefix}/promised"

    def promised(self, index: int = 0) -> tuple[int, ...] | None:
        """Shape of a result: as inferred, else as promised; None when nothing says."""
        known = self.inferred(index)
        return known if known is not None else self._promises.get(self.wants(index))

    def inferred(self, index: int) -> tuple[int, ...] | None:
        """Shape of a result that does not depend on values."""
        name = self.wants(index)
        return self._pool.shape(name, self._types) if name else None

    def value(self, index: int) -> np.ndarray | None:
        """Values of an input that is a constant."""
        return self.constant_of(self.input(index))

    def constant_of(self, name: str) -> np.ndarray | None:
        """Values of a tensor of the model that is a constant."""
        return self._pool.array(name) if name and name in self._pool else None

    def known_true(self, name: str) -> bool:
        """Whether a tensor is a constant of which all elements hold."""
        return name in self._pool and bool(self._pool.array(name).all())

    def keep_constant(self, tensor: TensorProto) -> str:
        """Add an initializer of a subgraph to the model's constants; returns its new name."""
        copy = TensorProto.FromString(tensor.SerializeToString())
        copy.name = f"{self.node.name}/{tensor.name}"
        self._pool.add_tensor(copy)
        return copy.name

    def dtype(self, name: str) -> str:
        """Element type of a tensor whose type is known, as NumPy calls it."""
        return self._pool.dtype(name, self._types)

    def is_float(self, name: str) -> bool:
        """Whether a tensor holds floating-point numbers."""
        return "float" in self.dtype(name)

    def whole(self, name: str) -> str:
        """A tensor as int64."""
        return name if self.dtype(name) == "int64" else self.op("Cast", name, to=TensorProto.INT64)

    def ints(self, values: Sequence[int] | int | np.ndarray) -> str:
        """Constant of int64."""
        return self.const(values, "int64")

    def at(self, x: str, index: int, *, keep: bool = False) -> str:
        """Element of a vector, as a scalar or (``keep``) as a vector of one."""
        return self.op("Gather", x, self.ints([index] if keep else index), axis=0)

    def from_end(self, indices: str, extent: int | str) -> str:
        """Indices, those below zero counted from the end of an axis of ``extent`` elements."""
        size = extent if isinstance(extent, str) else self.ints(extent)
        negative = self.op("Less", indices, self.ints(0))
        return self.op("Where", negative, self.op("Add", indices, size), indices)

    def all_of(self, numbers: Iterator[str]) -> str:
        """The least of int32 scalars: 1 where all tests hold."""
        result = next(numbers)
        for other in numbers:
            result = self.op("Min", result, other)
        return result

    def guard(self, y: str, *tests: str, what: str = "", dtype: str = "") -> str:
        """``y``, behind a check that all elements of boolean ``tests`` hold when the model runs."""
        kept = self.all_of(self.every(test) for test in tests)
        return self.guarded(y, kept, what, dtype)

    def guarded(self, y: str, kept: str, what: str = "", dtype: str = "") -> str:
        """``y``, behind a check that the int32 scalar ``kept`` is 1.

        ``dtype`` is that of ``y``, by default that of the first result where ``y`` is written here.
        """
        known = y in self._pool or y in self._types
        dtype = dtype or self.dtype(y if known else self.node.output[0])
        asked = what or f"the values of {', '.join(filter(None, self.node.input[1:]))}"
        return self.checked(y, kept, dtype, f"{asked} must give the shapes that the model declares")

    def again(self, inputs: Mapping[int, str], **attributes: object) -> None:
        """Write the node itself with other inputs and attributes, and with its own results."""
        copy = onnx.NodeProto.FromString(self.node.SerializeToString())
        for index, name in inputs.items():
            copy.input[index] = name
        kept = [a for a in copy.attribute if a.name not in attributes]
        del copy.attribute[:]
        copy.attribute.extend(kept)
        copy.attribute.extend(onnx.helper.make_attribute(key, value) for key, value in attributes.items())
        copy.name = f"{self.node.name}/{copy.op_type}"
        self.nodes.append(copy)

    def same(self, value: str, wanted: Sequence[int] | int | np.ndarray) -> str:
        """Boolean tensor: whether whole numbers are those that the promise implies."""
        return self.op("Equal", self.whole(value), self.ints(wanted))
