"""Bags of embeddings as PyTorch's exporter writes them: a loop over bags that puts rows into a sequence.

``torch.nn.EmbeddingBag`` is a loop whose rounds slice as many rows as a bag has, and, with a row that counts
as padding, a loop in the loop that gathers the others one by one.  The exporter that traces writes a loop
that slices indices, and gives rows without a sequence.  All bags at once are rows that are added, or
compared, at the place of their bag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from hetero_tvm.frontend.onnx.graph.body import Body
from hetero_tvm.frontend.onnx.graph.nodes import set_nodes

_Spelled: TypeAlias = tuple["str | tuple[str, tuple[_Spelled, ...]]", ...]
"""Operators of a graph in order; one with graphs has those of each."""

_ROUND = ("Reshape", "CastLike", "Add", "Slice", "CastLike", "Add", "CastLike", "Add", "Slice", "Equal")
_NEXT = ("SequenceInsert", "CastLike", "Add", "Less")
_LAST_MEAN = (
    "ReduceSum", "Shape", "Sub", "CastLike", "Greater",
    ("If", (("Cast", "Div"), ("Identity",))),
)  # fmt: skip
_ROWS: dict[_Spelled, str] = {
    ("Slice", "ReduceSum"): "sum",
    ("Slice", "Sub", "Equal", ("If", (_LAST_MEAN, ("ReduceMean",)))): "mean",
    ("Sub", "Equal", ("If", (("Slice",), ("Slice",))), "ReduceMax"): "max",
}
"""Reductions of a bag with rows, by the operators that say them."""
_KEPT = (
    "Gather", "CastLike", "Less", ("If", (("Add",), ("Identity",))), "Equal", "Not",
    ("If", (("Reshape", "Concat"), ("Identity",))), "CastLike", "Add", "Less",
)  # fmt: skip
_ROUND_PADDED = (
    "Gather",
    "CastLike",
    "Add",
    "Gather",
    "Less",
    ("Loop", (_KEPT,)),
    "Size",
    "CastLike",
    "Equal",
)
_ROWS_PADDED: dict[_Spelled, str] = {
    ("Gather", "ReduceSum"): "sum",
    ("Gather", "ReduceMean"): "mean",
    ("Gather", "ReduceMax"): "max",
}
_TRACED: dict[_Spelled, bool] = {
    ("Gather", "Gather", "Unsqueeze", "Unsqueeze", "Slice", "Gather"): False,
    ("Gather", "Gather", "Unsqueeze", "Unsqueeze", "Slice", "Gather", "Slice", "Unsqueeze", "Mul"): True,
}
"""Rounds of the exporter that traces, up to the rows of a bag; whether these have weights."""
_TRACED_ROWS = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max"}
_OPSET = 18
"""First opset of the exporter that writes such loops, and of maxima at places."""
_OPSET_TRACED = 16
"""First opset of sums at places."""


@dataclass(frozen=True)
class _Bags:
    """A loop over bags.

    Attributes
    ----------
    mode : ``sum``, ``mean`` or ``max``.
    place : which result of the loop the sequence is: the exporter lists them in any order.
    rows : the rows of all bags, one after another.
    offsets : the first row of each bag, and the end of the last.
    indices, padding, count : which row of the table each is, the one that counts for nothing, and how many
        there are; "" where all count.
    """

    mode: str
    place: int
    rows: str
    offsets: str
    indices: str = ""
    padding: str = ""
    count: str = ""


def bags_at_once(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with sums, means and maxima of all bags at once; itself where it has no loop over bags."""
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset < _OPSET_TRACED or not any(node.op_type == "Loop" for node in model.graph.node):
        return model
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    returned = {value.name for value in model.graph.output}
    makers = {name: node for node in model.graph.node for name in node.output}
    written: dict[str, list[onnx.NodeProto]] = {}
    for loop in model.graph.node:
        if loop.op_type == "Loop" and (nodes := _traced(loop, makers, opset)) is not None:
            written[loop.output[0]] = nodes
            continue
        if opset < _OPSET:
            continue
        bags = _bags(loop) if loop.op_type == "Loop" and len(loop.output) == 2 else None
        if bags is None or returned & set(loop.output):
            continue
        joins = [node for name in loop.output for node in readers.get(name, [])]
        kinds = [(node.op_type, node.input[0]) for node in joins]
        if kinds == [("ConcatFromSequence", loop.output[bags.place])]:
            written[joins[0].input[0]] = _write(Body(loop, opset), bags, joins[0].output[0])
    if not written:
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    nodes: list[onnx.NodeProto] = []
    for node in changed.graph.node:
        sequence = next((name for name in node.output if name in written), None)
        if sequence is not None:
            nodes += written[sequence]
        elif not (node.op_type == "ConcatFromSequence" and node.input[0] in written):
            nodes.append(node)
    set_nodes(changed.graph, nodes)
    return changed


def _bags(loop: onnx.NodeProto) -> _Bags | None:
    """The bags that a loop goes through, if that is what it does."""
    body = _graphs(loop)[0]
    spelled = _spelled(body)
    nodes = list(body.node)
    for beginning, kinds in ((_ROUND, _ROWS), (_ROUND_PADDED, _ROWS_PADDED)):
        size = len(beginning)
        if spelled[:size] != beginning or spelled[size + 1 :] != _NEXT or nodes[size].op_type != "If":
            continue
        filled = next(a.g for a in nodes[size].attribute if a.name == "else_branch")
        mode = kinds.get(_spelled(filled))
        insert = nodes[size + 1]
        if mode is None or insert.input[1] != nodes[size].output[0]:
            return None
        place = [value.name for value in body.output].index(insert.output[0]) - 1
        if kinds is _ROWS:
            ends = [node for node in nodes[:size] if node.op_type == "Slice"]
            slices = [node for node in _all(filled) if node.op_type == "Slice"]
            return _Bags(mode, place, slices[0].input[0], ends[0].input[0])
        inner = _graphs(nodes[5])[0].node
        negative = next(a.g for a in inner[3].attribute if a.name == "then_branch").node[0]
        count = next(name for name in negative.input if name != inner[0].output[0])
        padding = next(name for name in inner[4].input if name != inner[3].output[0])
        return _Bags(
            mode, place, filled.node[0].input[0], nodes[0].input[0], inner[0].input[0], padding, count
        )
    return None


def _traced(
    loop: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], opset: int
) -> list[onnx.NodeProto] | None:
    """Nodes that stand for a loop of the exporter that traces; None for another loop."""
    body = _graphs(loop)[0]
    nodes = [node for node in body.node if node.op_type not in ("Constant", "Identity")]
    kinds = tuple(node.op_type for node in nodes)
    mode, weighted = _TRACED_ROWS.get("".join(kinds[-2:-1])), _TRACED.get(kinds[:-2])
    if kinds[-1:] != ("Cast",) or mode is None or weighted is None or (mode == "max" and opset < _OPSET):
        return None
    starts, ends = (node.input[0] for node in nodes[:2])
    cut = makers.get(ends)
    if len(loop.output) != 1 or cut is None or cut.op_type != "Slice" or cut.input[0] != starts:
        return None
    last = [value.name for value in body.output]
    if last != [nodes[-1].output[0], nodes[-2].output[0]] or nodes[-2].input[0] != nodes[-3].output[0]:
        return None
    b = Body(loop, opset)
    rows = b.op("Gather", nodes[5].input[0], nodes[4].input[0])
    if weighted:
        rows = b.op("Mul", rows, b.op("Unsqueeze", nodes[6].input[0], b.const([1], "int64")))
    _write(b, _Bags(mode, 0, rows, starts), loop.output[0])
    return b.nodes


def _write(b: Body, bags: _Bags, result: str) -> list[onnx.NodeProto]:
    """Nodes that reduce the rows of all bags."""
    size, width = b.op("Shape", bags.rows, end=1), b.op("Shape", bags.rows, start=1, end=2)
    first, last, end = (b.const([n], "int64") for n in (0, 1, -1))
    zero, one = b.const(0, "int64"), b.const(1, "int64")
    place = b.op("Range", zero, b.op("Squeeze", size), one)
    begun = b.op("LessOrEqual", b.op("Unsqueeze", bags.offsets, last), b.op("Unsqueeze", place, first))
    begun = b.op("ReduceSum", b.op("Cast", begun, to=TensorProto.INT64), first, keepdims=0)
    # Rows before the first bag and behind the last one go to a place that is cut off.
    bag = b.op("Unsqueeze", b.op("Sub", begun, one), last)
    bags_and_rest = b.op("Shape", bags.offsets)
    rows, least = bags.rows, -np.inf if bags.mode == "max" else 0.0
    counts = b.op("Expand", b.const(1.0), size)
    if bags.padding:
        from_end = b.op("Less", bags.indices, zero)
        index = b.op("Where", from_end, b.op("Add", bags.indices, bags.count), bags.indices)
        kept = b.op("Not", b.op("Equal", index, bags.padding))
        counts = b.op("Cast", kept, to=TensorProto.FLOAT)
        rows = b.op("Where", b.op("Unsqueeze", kept, last), rows, b.const(least))
    none = _filled(b, b.op("Concat", bags_and_rest, width, axis=0), least)
    reduction = "max" if bags.mode == "max" else "add"
    found = b.op("ScatterND", none, bag, rows, reduction=reduction)
    if bags.mode != "sum":
        counts = b.op("ScatterND", _filled(b, bags_and_rest, 0.0), bag, counts, reduction="add")
        counts = b.op("Unsqueeze", counts, last)
        if bags.mode == "mean":
            found = b.op("Div", found, b.op("Max", counts, b.const(1.0)))
        else:
            found = b.op("Where", b.op("Greater", counts, b.const(0.0)), found, b.const(0.0))
    b.op("Slice", found, first, end, first, output=result)
    return b.nodes


def _filled(b: Body, shape: str, value: float) -> str:
    return b.op("ConstantOfShape", shape, value=numpy_helper.from_array(np.array([value], np.float32)))


def _graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Graphs inside a node: the branch that is taken first before the other."""
    held = {a.name: a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH}
    return [held[name] for name in ("then_branch", "else_branch", "body") if name in held]


def _spelled(graph: onnx.GraphProto) -> _Spelled:
    return tuple(
        (node.op_type, tuple(map(_spelled, graphs))) if (graphs := _graphs(node)) else node.op_type
        for node in graph.node
    )


def _all(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Nodes of a graph and of the graphs inside."""
    return [one for node in graph.node for one in (node, *(n for g in _graphs(node) for n in _all(g)))]
