"""Operators for which 8 bits pay: those between layers.  What leads to no layer is computed in float32."""

from __future__ import annotations

from collections.abc import Collection

import onnx


def readers_of(graph: onnx.GraphProto) -> dict[str, list[onnx.NodeProto]]:
    """Nodes by what they read, in order."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in dict.fromkeys(node.input):
            readers.setdefault(name, []).append(node)
    return readers


def of_computed_operands(model: onnx.ModelProto, layers: Collection[str]) -> list[str]:
    """Names of layers whose weights are no constants, as the products of attention: they compute in float32,
    and are fused there."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return [
        node.name
        for node in model.graph.node
        if node.op_type in layers and not stored.intersection(node.input[:2])
    ]


def leading_nowhere(
    model: onnx.ModelProto, layers: Collection[str], between: Collection[str], kept: Collection[str] = ()
) -> list[str]:
    """Names of nodes of the kinds ``between`` whose results reach no node of the kinds ``layers`` through
    others like them: quantisers around them would round, and nobody would read the bytes.

    Of a layer only the first operand counts, which is what meets its weights; those named ``kept`` stay in
    float32.
    """
    readers = readers_of(model.graph)
    leads: set[str] = set()
    idle = []
    for node in reversed(model.graph.node):  # in order of computation: readers come first
        if node.op_type not in between:
            continue
        if any(
            leads.intersection(user.output)
            or (user.op_type in layers and user.input[0] == output and user.name not in kept)
            for output in node.output
            for user in readers.get(output, ())
        ):
            leads.update(node.output)
        else:
            idle.append(node.name)
    return idle


def without_idle_quantizers(
    model: onnx.ModelProto, layers: Collection[str], kept: Collection[str]
) -> onnx.ModelProto:
    """The model without the quantisers whose values only the caller reads, or nodes that compute in float32
    and whose results are not quantised (functions of one byte are tables).

    Parameters
    ----------
    layers : kinds of nodes that compute on bytes, but for the nodes named ``kept``.
    """
    graph = model.graph
    readers = readers_of(graph)
    ends = {value.name for value in graph.output}
    made = {output: node for node in graph.node for output in node.output}
    renamed: dict[str, str] = {}
    gone: set[str] = set()

    def reads_bytes(node: onnx.NodeProto) -> bool:
        if node.op_type in layers and node.name not in kept:
            return True
        uses = (use for output in node.output for use in readers.get(output, ()))
        return any(use.op_type == "QuantizeLinear" and not gone.intersection(use.output) for use in uses)

    for node in reversed(graph.node):  # what reads them comes first
        quantizer = made.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if quantizer is None or quantizer.op_type != "QuantizeLinear":
            continue
        source, plain = quantizer.input[0], node.output[0]
        if any(reads_bytes(reader) for reader in readers.get(plain, ())):
            continue
        if plain in ends and (source not in made or source in ends):
            continue  # an input of the model cannot bear the name of an output
        gone.update(node.output)
        if readers[quantizer.output[0]] == [node]:
            gone.update(quantizer.output)
        if plain in ends:
            renamed[source] = plain
        else:
            renamed[plain] = source
    left = [node for node in graph.node if not gone.intersection(node.output)]
    for node in left:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                while name in renamed:
                    name = renamed[name]
                names[place] = name
    del graph.node[:]
    graph.node.extend(left)
    return model
