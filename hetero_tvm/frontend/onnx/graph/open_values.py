"""Constants that have other values at other sizes of a model's inputs, written out again for run time.

Folding computes what follows from sizes.  Most of it can be told for all sizes: places, masks and tables of
positions are what they are by index.  A position divided by the number of positions is not, nor are windows
that are marked by writing stretches of an image.  Nodes that compute such values are kept here while they are
folded, as other sizes may need their numbers as extents; a node that reads one as a *value* gets them back::

    positions = Div(places, count)      folded, and kept
    shape = Concat(...)                 folded
    y = Add(x, positions)               y = Add(x, Div(Identity(places), count))

The Identity is marked :data:`HELD`: it says that a constant stands for what no pass may compute with.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import numpy as np
import onnx
from onnx import TensorProto, helper

from hetero_tvm.frontend.onnx.graph.constants import ConstantPool, Type, Types, rename_inputs

HELD = "held"
"""Documentation of an Identity of a constant that other sizes have other values of."""

# fmt: off
_SCALED = frozenset({"Mul", "Pow", "Mod", "Div"})
_WRITTEN = frozenset({"ScatterND", "ScatterElements", "Scatter"})
_PICKING = _WRITTEN | {"Gather", "GatherElements", "GatherND"}
_EXTENTS: dict[str, tuple[int, ...]] = {
    "Slice": (1, 2, 3, 4), "Pad": (1, 3), "Resize": (1, 2, 3), "ConstantOfShape": (0,), "Range": (0, 1, 2),
    "DFT": (1, 2), "STFT": (1, 3), "Loop": (0, 1), "If": (0,),
    **dict.fromkeys((
        "Reshape", "Expand", "Tile", "Upsample", "TopK", "Split", "OneHot", "Squeeze", "Unsqueeze",
        "CenterCropPad", "AffineGrid", "Trilu", "CumSum", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin",
        "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare",
    ), (1,)),
}
# fmt: on
"""Operands that say extents, axes and places, which are known when a model is compiled."""
_PAIR = 2
_PAIRING = frozenset({"Concat", "Expand", "Tile"})
_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)


class OpenValues:
    """Folded nodes whose values follow no rule of their places.

    Parameters
    ----------
    sized : names of constants that follow from sizes.
    stays : takes the name of a result that is not to be folded again.
    """

    def __init__(self, pool: ConstantPool, sized: Container[str], stays: Callable[[str], None]):
        self._pool, self._sized, self._stays = pool, sized, stays
        self._nodes: dict[str, onnx.NodeProto] = {}
        self._open_names: set[str] = set()
        self._grids: set[str] = set()
        self._opened: dict[str, str] = {}
        self._written: list[onnx.NodeProto] = []

    def note(self, node: onnx.NodeProto) -> None:
        """Keep a node that is being folded, if its results follow from sizes."""
        if node.output[0] not in self._sized:
            return
        values = [name for n, name in enumerate(node.input) if name and not _is_extent(node, n)]
        read = list(node.input) if node.op_type == "Range" else values
        results = [name for name in node.output if name]
        copy = onnx.NodeProto.FromString(node.SerializeToString())
        self._nodes.update((name, copy) for name in results)
        if self._joins(node) or any(name in self._grids for name in values):
            self._grids.update(results)
        if any(name in self._open_names for name in read) or self._begins(node):
            self._open_names.update(results)

    def _begins(self, node: onnx.NodeProto) -> bool:
        """Whether results follow no rule of their places although all operands do."""
        if node.op_type in _WRITTEN:
            return node.input[0] in self._sized
        if node.op_type in _SCALED and self._is_float(node.input[0]) and self._scales(node):
            return True
        return any(name in self._grids and not self._is_plain(name) for name in node.output if name)

    def _joins(self, node: onnx.NodeProto) -> bool:
        """Whether axes become one, as those of a grid whose points are listed; of pairs side by side not."""
        if node.op_type not in ("Reshape", "Flatten") or not self._is_array(node.input[0]):
            return False
        source = node.input[0]
        before, after = (
            [n for n in self._pool.type_of(name)[1] if n > 1] for name in (source, node.output[0])
        )
        if len(after) >= len(before):
            return False
        while after and before[-1] == after[-1]:
            before, after = before[:-1], after[:-1]
        maker = self._nodes.get(source)
        return before[-1] > _PAIR or maker is None or maker.op_type not in _PAIRING

    def _scales(self, node: onnx.NodeProto) -> bool:
        """Whether one operand is a quantity that follows from sizes: a divisor, or a factor that is one
        number."""
        one, other = node.input
        if node.op_type == "Div":
            return other in self._sized
        return any(
            name in self._sized and not self._is_array(name) and self._is_array(beside)
            for name, beside in ((one, other), (other, one))
        )

    def before(self, kept: list[onnx.NodeProto], types: Types) -> list[onnx.NodeProto]:
        """The nodes that stay, which read values that are computed at run time, behind those that compute
        them of constants alone; ``types`` get theirs."""
        for node in kept:
            changed = {
                name: self._open(name, types)
                for n, name in enumerate(node.input)
                if name in self._open_names and not _is_extent(node, n) and self._is_array(name)
            }
            if changed:
                rename_inputs(node, changed)
        written, self._written = self._written, []
        return [*written, *kept]

    def _open(self, name: str, types: Types) -> str:
        """Name of a value as it is computed at run time."""
        if name in self._opened:
            return self._opened[name]
        node = self._nodes[name]
        copy = onnx.NodeProto.FromString(node.SerializeToString())
        if node.op_type == "Range":
            return self._range(copy, types)
        for n, source in enumerate(node.input):
            if source not in self._sized or _is_extent(node, n):
                continue
            if source in self._open_names or source in self._grids or not self._is_plain(source):
                copy.input[n] = self._open(source, types)
            elif n == 0 or node.op_type not in _PICKING:
                copy.input[n] = self._hold(source, types)
        for n, result in enumerate(node.output):
            if result:
                copy.output[n] = self._result(result, types)
        self._written.append(copy)
        return self._opened[name]

    def _is_plain(self, name: str) -> bool:
        """Whether its numbers are whole or halves, which are told by their places; of floats alone."""
        if not self._is_float(name):
            return True
        twice = 2 * self._pool.array(name)
        return bool(np.array_equal(twice, np.rint(twice)))

    def _range(self, node: onnx.NodeProto, types: Types) -> str:
        """A range by steps known at run time: of as many as there are."""
        result = node.output[0]
        values = self._pool.array(result)
        start, _, step = (
            self._open(source, types) if source in self._open_names else source for source in node.input
        )
        places = f"{result}/places"
        self._pool.add_array(places, np.arange(len(values)).astype(values.dtype))
        steps = f"{result}/steps"
        types[steps] = self._pool.type_of(result)
        self._stays(steps)
        product = helper.make_node("Mul", [self._hold(places, types), step], [steps], name=f"{node.name}/Mul")
        opened = self._result(result, types)
        self._written += [product, helper.make_node("Add", [steps, start], [opened], name=node.name)]
        return opened

    def _hold(self, name: str, types: Types) -> str:
        held = self._opened.get(name)
        if held is None:
            held = self._result(name, types)
            self._written.append(helper.make_node("Identity", [name], [held], name=held, doc_string=HELD))
        return held

    def _result(self, name: str, types: Types) -> str:
        opened = self._opened[name] = f"{name}/open"
        types[opened] = self._pool.type_of(name)
        self._stays(opened)
        return opened

    def _is_array(self, name: str) -> bool:
        return self._elements(self._pool.type_of(name)) > 1

    def _is_float(self, name: str) -> bool:
        return self._pool.type_of(name)[0] in _FLOATS

    @staticmethod
    def _elements(type_: Type) -> int:
        return int(np.prod(type_[1] or (), dtype=np.int64))


def _is_extent(node: onnx.NodeProto, n: int) -> bool:
    return n in _EXTENTS.get(node.op_type, ())


def is_held(node: onnx.NodeProto) -> bool:
    """Whether a node marks a constant that other sizes have other values of."""
    return node.op_type == "Identity" and node.doc_string == HELD
