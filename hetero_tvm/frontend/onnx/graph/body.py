"""Writer of the plain nodes that replace one fused operator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper, numpy_helper

FROM_0 = "_from_0"
"""End of the name of a node whose indices do not count from the end: one below 0 is an error."""
ArrayOf = Callable[[str], np.ndarray | None]
ShapeOf = Callable[[str], tuple[int | None, ...] | None]


def as_text(value: str | bytes) -> str:
    """Text of a string attribute, which ONNX stores as bytes."""
    return value.decode() if isinstance(value, bytes) else value


class Body:
    """Nodes that replace one.

    Parameters
    ----------
    node : the node to replace; new nodes bear its name, new tensors that of its first result, which
        no other node has.
    opset : version of the default domain, which decides what may be used.
    shape_of : gives the shape of a tensor as far as it is known (None for dimensions that are not).
    array_of : gives the values of a constant, and None for another tensor.
    """

    def __init__(
        self,
        node: onnx.NodeProto,
        opset: int,
        shape_of: ShapeOf = lambda name: None,
        array_of: ArrayOf = lambda name: None,
    ):
        self.node, self.opset, self._shape_of, self.array = node, opset, shape_of, array_of
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.declared: Callable[[str], tuple[int | str | None, ...] | None] = shape_of
        """Dimensions of a tensor as the file states them, also by symbol; None when it says nothing."""
        self.certain: ShapeOf = shape_of
        """Dimensions of the graph's inputs and constants: what a file says of inner tensors may be stale."""
        self._prefix = next(filter(None, node.output), node.name)
        self.attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}

    def input(self, index: int) -> str:
        """Name of an input; "" when it is left out."""
        return self.node.input[index] if index < len(self.node.input) else ""

    def wants(self, index: int) -> str:
        """Name of an output; "" when nobody asks for it."""
        return self.node.output[index] if index < len(self.node.output) else ""

    def op(self, kind: str, *inputs: str, output: str = "", **attributes: object) -> str:
        """Add a plain node; returns its (first) output, under a name of its own unless given."""
        number = f"{kind}_{len(self.nodes)}"
        output = output or f"{self._prefix}/{number}"
        name = f"{self.node.name}/{number}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=name, **attributes))
        return output

    def row(self, table: str, indices: str) -> str:
        """Add a lookup in rows whose ``indices`` do not count from the end: one below 0 is an error."""
        y = self.op("Gather", table, indices, axis=0)
        self.count_from_0()
        return y

    def count_from_0(self) -> None:
        """Let the last node's indices not count from the end."""
        # By this end of its name ``relax_passes/forms/run_time_checks.py`` knows it.
        self.nodes[-1].name += FROM_0

    def split(self, x: str, axis: int, extents: list[int]) -> list[str]:
        """Add a Split along an axis (from opset 13 on); returns its outputs."""
        first = self.op("Split", x, self.const(extents, "int64"), axis=axis)
        node = self.nodes[-1]
        node.output.extend(f"{first}_{n}" for n in range(1, len(extents)))
        return list(node.output)

    def const(self, value: object, dtype: str = "float32") -> str:
        """Add a Constant."""
        return self.op("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    def constant(self, array: np.ndarray) -> str:
        """Add a large constant, which is not to lie in the graph; returns its name."""
        name = f"{self._prefix}/constant_{len(self.nodes)}_{len(self.constants)}"
        self.constants[name] = array
        return name

    def within(self, node: onnx.NodeProto, write: Callable[[Body], None]) -> None:
        """Write another node out here, by the function that does it for a node of the file."""
        inner = Body(node, self.opset, self._shape_of, self.array)
        inner.nodes, inner.constants, inner.declared = self.nodes, self.constants, self.declared
        write(inner)

    def shape(self, name: str) -> tuple[int | None, ...] | None:
        """Dimensions of a tensor as far as they are known."""
        return self._shape_of(name)

    def rank(self, name: str, usual: int) -> int:
        """Number of dimensions of a tensor, ``usual`` where it is not known."""
        shape = self._shape_of(name)
        return usual if shape is None else len(shape)

    def is_empty(self, name: str) -> bool:
        """Whether a tensor is left out, or known to have no elements."""
        return not name or 0 in (self._shape_of(name) or ())

    def extent(self, x: str, axis: int) -> str:
        """Extent of a tensor along an axis, as int64 [1]."""
        return self.op("Gather", self.op("Shape", x), self.const([axis], "int64"), axis=0)

    def cut(self, x: str, axis: int, start: int, end: int) -> str:
        """Add a Slice along one axis."""
        return self.op("Slice", x, *(self.const([value], "int64") for value in (start, end, axis)))

    def reduce(self, kind: str, x: str, axes: list[int], keepdims: int, axes_as_input: int) -> str:
        """Add a reduction; from opset ``axes_as_input`` on the operator takes its axes as an input."""
        if self.opset >= axes_as_input:
            return self.op(kind, x, self.const(axes, "int64"), keepdims=keepdims)
        return self.op(kind, x, axes=axes, keepdims=keepdims)

    def mean(self, x: str, axes: tuple[int, ...] = (-1,)) -> str:
        """Mean over the last axes, which stay."""
        return self.reduce("ReduceMean", x, list(axes), 1, axes_as_input=18)

    def every(self, test: str) -> str:
        """Whether all elements of a boolean tensor hold, as an int32 scalar of 0 or 1."""
        number = self.op("Cast", test, to=onnx.TensorProto.INT32)
        return self.op("ReduceMin", number, keepdims=0)

    def checked(self, y: str, kept: str, dtype: str, text: str) -> str:
        """``y``, behind a check that the int32 scalar ``kept`` is 1: elsewhere a call ends in an error.

        The error says the node's name and ``text``; ``dtype`` is that of ``y``.
        """
        broken = self.op("Sub", self.const(1, "int32"), kept)
        place = self.op("Cast", self.op("Mul", broken, self.const(2, "int32")), to=onnx.TensorProto.INT64)
        # A lookup behind two rows is what fails, and what is looked up changes nothing.
        rows = self.const([dtype == "bool"] * 2, dtype)
        nothing = self.op("Gather", rows, place, axis=0)
        # By this name ``relax_passes/forms/run_time_checks.py`` knows it for a check.
        self.nodes[-1].name = f"{self.node.name}/check_{len(self.nodes)} ({text})"
        return self.op("And" if dtype == "bool" else "Sub", y, nothing)

    def end(self, index: int, value: str) -> None:
        """Give ``value`` the name of an output that is asked for."""
        if self.wants(index):
            self.op("Identity", value, output=self.wants(index))

    def norm(self, x: str, scale: str, shift: str, default_eps: float, *, centered: bool) -> None:
        """Write layer or RMS norm of ``x`` as output 0."""
        eps = float(self.attributes.get("epsilon", default_eps))
        y = self.op("Mul", self.rms_norm(self.op("Sub", x, self.mean(x)) if centered else x, eps), scale)
        self.end(0, self.op("Add", y, shift) if shift else y)

    def rms_norm(self, x: str, eps: float) -> str:
        """``x`` by the root of the mean of its squares along the last axis, plus ``eps``."""
        variance = self.mean(self.op("Mul", x, x))
        return self.op("Div", x, self.op("Sqrt", self.op("Add", variance, self.const(eps))))
