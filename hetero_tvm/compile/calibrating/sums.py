"""Sums of quantised images that round once: a convolution's result meets the other image as it is."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from hetero_tvm.compile.calibrating.reach import readers_of

_BOUNDS = ("Relu", "Clip")


def rounding_sums_once(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without the quantisers between a convolution and a sum that is quantised itself.

    The other operand of the sum stays quantised.  Where both are convolutions, the later one is not rounded:
    its kernel runs when the other image is there.  A sum's result gains half a step of its operand, and the
    kernel has less to do.
    """
    graph = model.graph
    found = _Network(graph)
    gone: set[str] = set()
    for add in graph.node:
        if add.op_type != "Add" or len(set(add.input)) < 2 or not found.is_quantized(add.output[0]):
            continue
        if not all(name in found.dequantized for name in add.input) or not found.alike(add.input):
            continue
        branches = [found.branch(name) for name in add.input]
        later = max((b for b in branches if b is not None), key=lambda b: b.place, default=None)
        if later is None:
            continue
        add.input[branches.index(later)] = later.result
        gone.update(later.passed)
    left = [node for node in graph.node if not gone.intersection(node.output)]
    del graph.node[:]
    graph.node.extend(left)
    return model


@dataclass(frozen=True)
class _Branch:
    """A convolution on bytes whose rounded result a sum alone reads.

    Attributes
    ----------
    result : its result before rounding.
    passed : tensors that nobody reads when the sum takes this.
    place : its number in order of computation.
    """

    result: str
    passed: tuple[str, str]
    place: int


class _Network:
    """Readers, makers and shapes of a graph's tensors."""

    def __init__(self, graph: onnx.GraphProto):
        self._readers = readers_of(graph)
        self._made = {output: node for node in graph.node for output in node.output}
        self._places = {output: n for n, node in enumerate(graph.node) for output in node.output}
        self._ends = {value.name for value in graph.output}
        self._shapes = {
            value.name: [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]
            for value in (*graph.value_info, *graph.input, *graph.output)
            if value.type.tensor_type.HasField("shape")
        }
        self.dequantized = {
            node.output[0]: self._made[node.input[0]].input[0]
            for node in graph.node
            if node.op_type == "DequantizeLinear"
            and node.input[0] in self._made
            and self._made[node.input[0]].op_type == "QuantizeLinear"
        }
        """Tensors behind a quantiser and its inverse -> what that rounds."""

    def is_quantized(self, name: str) -> bool:
        """Whether a tensor, or what bounds leave of it, is read by one quantiser and by nobody else."""
        reader = self._only_reader(name)
        if reader is not None and reader.op_type in _BOUNDS:
            reader = self._only_reader(reader.output[0])
        return reader is not None and reader.op_type == "QuantizeLinear"

    def alike(self, names: list[str]) -> bool:
        """Whether what these dequantised tensors are made of has one known shape."""
        first, second = (self._shapes.get(self.dequantized[name]) for name in names)
        return first is not None and first == second and all(first)

    def branch(self, name: str) -> _Branch | None:
        """The convolution behind an operand of a sum; None when there is none, or others read it."""
        result = self.dequantized[name]
        conv = self._made.get(result)
        if conv is None or conv.op_type != "Conv" or not self._on_bytes(conv):
            return None
        rounded = self._made[name].input[0]
        if any(self._only_reader(step) is None for step in (result, rounded, name)):
            return None
        return _Branch(result, (rounded, name), self._places[result])

    def _on_bytes(self, conv: onnx.NodeProto) -> bool:
        ends = [self._made.get(operand) for operand in conv.input[:2]]
        return all(end is not None and end.op_type == "DequantizeLinear" for end in ends)

    def _only_reader(self, name: str) -> onnx.NodeProto | None:
        readers = self._readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self._ends else None
