"""Scan whose rounds know nothing of each other, written once for all of them.

Its states come out as they went in, and what a round computes is elementwise or a reduction: with an axis for
the rounds in front, all of it is the same operators.  So do nearest neighbours, kernels and densities of
scikit-learn measure distances, a round for each row that they have learnt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from hetero_tvm.frontend.onnx.graph.body import ArrayOf, Body
from hetero_tvm.frontend.onnx.graph.constants import rename_inputs

_ELEMENTWISE = frozenset(
    "Abs Add And Cast Ceil Cos Div Equal Erf Exp Floor Greater GreaterOrEqual Identity Less LessOrEqual Log "
    "Max Min Mul Neg Not Or Pow Reciprocal Relu Round Sigmoid Sign Sin Sqrt Sub Tanh Where".split()
)

_REDUCTIONS = {"ReduceSum": 13} | dict.fromkeys(
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSumSquare".split(),
    18,
)
"""Reductions, and the version from which on their axes are an input."""

_MOST_KEPT = 1 << 26
"""Elements of all rounds of a tensor that several results are made from: more of them take memory that
rounds one after another do not."""

_Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class _Value:
    """A tensor of all rounds: its name, its shape in one of them, and whether it has an axis for them."""

    name: str
    shape: _Shape
    each: bool

    @property
    def rank(self) -> int:
        """Number of axes in one round."""
        return len(self.shape)


class _Unfit(Exception):
    """Rounds that have to be written out."""


class Together:
    """Writer of the nodes for one Scan.

    Parameters
    ----------
    graph : of one round, whose inputs are its states, then its parts.
    constants : names in the model of the graph's own constants.
    states, parts : what is given; parts have the rounds in front.
    array_of : gives the values of a constant of the model, and None for another tensor.
    """

    def __init__(
        self,
        b: Body,
        graph: onnx.GraphProto,
        constants: Mapping[str, str],
        states: Sequence[str],
        parts: Sequence[str],
        array_of: ArrayOf,
    ):
        self.b, self.graph, self.states, self.array_of = b, graph, states, array_of
        self.parts, self.constants = parts, constants
        self.values: dict[str, _Value] = {}
        self.arrays: dict[str, np.ndarray] = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        self.makers = {name: node for node in graph.node for name in node.output}

    def rows(self) -> list[tuple[str, int]] | None:
        """Write all rounds; gives the rows of each of their results, the rounds in front, and their rank.

        None where rounds depend on one another.
        """
        kept = len(self.b.nodes)
        try:
            return self._rows()
        except _Unfit:
            del self.b.nodes[kept:]
            return None

    def _rows(self) -> list[tuple[str, int]]:
        for name, array in self.arrays.items():
            self.values[name] = _Value(self.constants[name], array.shape, each=False)
        given = [*self.states, *self.parts]
        for n, (value, name) in enumerate(zip(self.graph.input, given, strict=True)):
            each = n >= len(self.states)
            self.values[value.name] = _Value(name, self._shape(name)[each:], each)
        for state, value in zip(self.graph.output, self.graph.input[: len(self.states)], strict=False):
            if self._source(state.name) != value.name:
                raise _Unfit
        for node in self.graph.node:
            self._write(node)
        if any(map(self._is_large, self._kept())):
            raise _Unfit
        rows = [self._of(value.name) for value in self.graph.output[len(self.states) :]]
        if not all(row.each for row in rows):
            raise _Unfit
        return [(row.name, row.rank + 1) for row in rows]

    def _shape(self, name: str) -> _Shape:
        shape = self.b.shape(name)
        if shape is None:
            raise _Unfit
        return shape

    def _kept(self) -> list[_Value]:
        """Tensors that lie in memory: more than one reduction or result is made from their elements."""
        ends: dict[str, set[str]] = {value.name: {value.name} for value in self.graph.output}
        for node in reversed(self.graph.node):
            (y,) = node.output
            reached = {y} if node.op_type in _REDUCTIONS else ends.get(y, set())
            for name in node.input:
                ends.setdefault(name, set()).update(reached)
        results = {value.name for value in self.graph.output}
        made = [name for name in self.makers if name not in results and len(ends.get(name, ())) > 1]
        return [self.values[name] for name in made if self.values[name].each]

    def _is_large(self, value: _Value) -> bool:
        """Whether a tensor has more elements than all rounds may keep, as far as its shape is known."""
        rounds = (self._shape(self.parts[0])[0] or 1) if self.parts else 1
        return rounds * math.prod(extent or 1 for extent in value.shape) > _MOST_KEPT

    def _source(self, name: str) -> str:
        while name in self.makers and self.makers[name].op_type == "Identity":
            name = self.makers[name].input[0]
        return name

    def _of(self, name: str) -> _Value:
        """The tensor that is called so in a round; from around the Scan, where no round makes it."""
        if name not in self.values:
            self.values[name] = _Value(name, self._shape(name), each=False)
        return self.values[name]

    def _write(self, node: onnx.NodeProto) -> None:
        b, kind = self.b, node.op_type
        if kind == "Constant" and node.attribute[0].name == "value":
            array = numpy_helper.to_array(node.attribute[0].t)
            self.arrays[node.output[0]] = array
            name = b.op("Constant", value=node.attribute[0].t)
            self.values[node.output[0]] = _Value(name, array.shape, each=False)
        elif kind in _ELEMENTWISE and not node.domain and len(node.output) == 1:
            operands = [self._of(name) for name in node.input]
            rank = max(operand.rank for operand in operands)
            aligned = {o: self._aligned(v, rank) for o, v in zip(node.input, operands, strict=True)}
            shape = _broadcast([operand.shape for operand in operands])
            self._same(node, aligned, _Value("", shape, any(operand.each for operand in operands)))
        elif kind in _REDUCTIONS and not node.domain:
            self._reduce(node)
        else:
            raise _Unfit

    def _aligned(self, value: _Value, rank: int) -> str:
        """Name of ``value`` with axes of one element behind that of the rounds, up to ``rank``."""
        if not value.each or value.rank == rank:
            return value.name
        axes = self.b.const([*range(1, 1 + rank - value.rank)], "int64")
        return self.b.op("Unsqueeze", value.name, axes)

    def _same(self, source: onnx.NodeProto, names: Mapping[str, str], result: _Value) -> None:
        """Write a node as it is, of other tensors."""
        node = onnx.NodeProto.FromString(source.SerializeToString())
        rename_inputs(node, dict(names))
        y = self.b.op(source.op_type, *node.input)
        self.b.nodes[-1].attribute.extend(node.attribute)
        self.values[source.output[0]] = _Value(y, result.shape, result.each)

    def _reduce(self, node: onnx.NodeProto) -> None:
        given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        value, axes = self._of(node.input[0]), given.get("axes")
        if len(node.input) > 1 and node.input[1]:
            name = node.input[1]
            array = self.arrays[name] if name in self.arrays else self.array_of(name)
            axes = None if array is None else array.reshape(-1).tolist()
        elif axes is None and not given.get("noop_with_empty_axes", 0):
            axes = [*range(value.rank)]
        if not axes or not value.rank:
            raise _Unfit
        keepdims, own = int(given.get("keepdims", 1)), {int(axis) % value.rank for axis in axes}
        moved = sorted(axis + value.each for axis in own)
        y = self.b.reduce(node.op_type, value.name, moved, keepdims, axes_as_input=_REDUCTIONS[node.op_type])
        left = [1 if n in own else e for n, e in enumerate(value.shape) if keepdims or n not in own]
        self.values[node.output[0]] = _Value(y, tuple(left), value.each)


def _broadcast(shapes: Sequence[_Shape]) -> _Shape:
    """Shape of what is elementwise of these; None where an extent is unknown."""
    rank = max(map(len, shapes))
    full = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(next((e for e in extents if e != 1), 1) for extents in zip(*full, strict=True))
