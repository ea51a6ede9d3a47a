"""Ends of models as tensors of numbers, each once: no maps, no text, no result under the name of another."""

from __future__ import annotations

from collections import Counter

import onnx
from onnx import TensorProto, helper

from hetero_tvm.frontend.onnx.graph.constants import ONNX_DOMAINS

_LEARNING = "ai.onnx.ml"
_OPSET = 20
_CLASSIFIERS = ("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier")


def plain_ends(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model itself, or a copy whose results are tensors of numbers, each with a name of its own.

    A list of maps from label to score (``ZipMap``) becomes the tensor of scores, [n, classes] in the order of
    the labels, under the name that the list had.  A classifier whose labels are text gives their index in the
    file's list of labels, int64.  A list that the last node makes of tensors is these tensors, ``y_0`` and
    ``y_1``.  A result that is listed again (PyTorch's exporter writes so what a module returns twice) has a
    number behind its name the second time: ``y``, ``y_2``.
    """
    return _listed_once(_apart(_numbers(model)))


def _apart(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model itself, or a copy that gives the tensors of a list apart (several classifiers' scores)."""
    makers = {name: node for node in model.graph.node for name in node.output}
    lists = {
        value.name: list(makers[value.name].input)
        for value in model.graph.output
        if value.type.HasField("sequence_type")
        and value.name in makers
        and makers[value.name].op_type == "SequenceConstruct"
    }
    if not lists:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    results = []
    for value in made.graph.output:
        if value.name not in lists:
            results.append(value)
            continue
        kind = value.type.sequence_type.elem_type.tensor_type.elem_type
        for place, element in enumerate(lists[value.name]):
            name = f"{value.name}_{place}"
            while name in taken:
                name += "_"
            results.append(onnx.ValueInfoProto(name=name, type=_tensor(kind)))
            graph.node.append(helper.make_node("Identity", [element], [name], name))
    kept = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in results]
    del graph.output[:]
    graph.output.extend(kept)
    return made


def _listed_once(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model itself, or a copy with a copy of each result that is listed again."""
    names = [value.name for value in model.graph.output]
    if len(set(names)) == len(names):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    taken = {*names, *(value.name for value in graph.input), *(value.name for value in graph.initializer)}
    taken |= {output for node in graph.node for output in node.output}
    seen: Counter[str] = Counter()
    for value in graph.output:
        name = value.name
        seen[name] += 1
        if seen[name] == 1:
            continue
        while f"{name}_{seen[name]}" in taken:
            seen[name] += 1
        value.name = f"{name}_{seen[name]}"
        taken.add(value.name)
        graph.node.append(helper.make_node("Identity", [name], [value.name], value.name))
    return made


def _numbers(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model itself, or a copy without maps and text as results."""
    nodes = [node for node in model.graph.node if node.domain == _LEARNING]
    zips = [node for node in nodes if node.op_type == "ZipMap"]
    texts = [
        node
        for node in nodes
        if node.op_type in _CLASSIFIERS and any(a.name == "classlabels_strings" for a in node.attribute)
    ]
    alone = bool(nodes) and not any(entry.domain in ONNX_DOMAINS for entry in model.opset_import)
    if not zips and not texts and not alone:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    if alone:  # nodes of ai.onnx.ml only: what they are written out with has an opset all the same
        made.opset_import.append(helper.make_opsetid("", _OPSET))
    outputs = {value.name: value for value in made.graph.output}
    for node in made.graph.node:
        if node.domain == _LEARNING and node.op_type == "ZipMap" and node.output[0] in outputs:
            outputs[node.output[0]].type.CopyFrom(_tensor(TensorProto.FLOAT))
            node.CopyFrom(helper.make_node("Identity", list(node.input), list(node.output), node.name))
        elif node.domain == _LEARNING and node.op_type in _CLASSIFIERS:
            _number_labels(node)
    _retype(made, {node.output[0] for node in texts})
    return made


def _tensor(dtype: int) -> onnx.TypeProto:
    """Type of a tensor of unknown shape."""
    kind = onnx.TypeProto()
    kind.tensor_type.elem_type = dtype
    return kind


def _number_labels(node: onnx.NodeProto) -> None:
    """Give a classifier whose labels are text the numbers from 0 on."""
    kept = []
    for attribute in node.attribute:
        if attribute.name == "classlabels_strings":
            name = "classlabels_ints" if node.op_type != "TreeEnsembleClassifier" else "classlabels_int64s"
            attribute = helper.make_attribute(name, list(range(len(attribute.strings))))
        kept.append(onnx.AttributeProto.FromString(attribute.SerializeToString()))
    del node.attribute[:]
    node.attribute.extend(kept)


def _retype(model: onnx.ModelProto, names: set[str]) -> None:
    """Declare results that were text as int64, also behind operators that only move them."""
    for node in model.graph.node:
        if node.op_type in ("Identity", "Reshape", "Cast") and node.input[0] in names:
            if node.op_type == "Cast":
                kinds = [a for a in node.attribute if a.name == "to" and a.i == TensorProto.STRING]
                if not kinds:
                    continue
                kinds[0].i = TensorProto.INT64
            names.add(node.output[0])
    for value in (*model.graph.output, *model.graph.value_info):
        if value.name in names and value.type.tensor_type.elem_type == TensorProto.STRING:
            value.type.tensor_type.elem_type = TensorProto.INT64
