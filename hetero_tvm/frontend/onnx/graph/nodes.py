"""Nodes of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx
from onnx import helper

from hetero_tvm.errors import HeteroTVMError, ModelError, UnsupportedOperatorError
from hetero_tvm.frontend.onnx.graph.constants import ONNX_DOMAINS, rename_inputs, subgraphs


def set_nodes(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    """Give a graph other nodes; some of them may be its own."""
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def drop_attributes(node: onnx.NodeProto, *names: str) -> None:
    """Take attributes from a node."""
    kept = [a for a in node.attribute if a.name not in names]
    if len(kept) < len(node.attribute):
        copies = [onnx.AttributeProto.FromString(a.SerializeToString()) for a in kept]
        del node.attribute[:]
        node.attribute.extend(copies)


def give_attributes(node: onnx.NodeProto, **attributes: object) -> None:
    """Give a node attributes, in the place of what it has of these names."""
    drop_attributes(node, *attributes)
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())


def all_nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> list[onnx.NodeProto]:
    """Nodes of a graph and of all its subgraphs."""
    return [*graph.node, *inner_nodes(graph.node)]


def nodes_of_model(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Nodes of a model and of its functions, with those of all their subgraphs."""
    return [node for part in (proto.graph, *proto.functions) for node in all_nodes(part)]


def with_results(proto: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """A copy of a model that gives the tensors of these names too."""
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    known = {value.name for value in proto.graph.output}
    result.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    return result


def inner_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes of all subgraphs of nodes."""
    for node in nodes:
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                yield from inner.node
                yield from inner_nodes(inner.node)


@contextmanager
def named(node: onnx.NodeProto) -> Iterator[None]:
    """Name the node whose operands and attributes do not fit its operator, where an error says no more."""
    try:
        yield
    except (HeteroTVMError, MemoryError, RecursionError):
        raise
    except Exception as error:
        raise ModelError(
            f"Node {node.name or node.output[0]!r} ({node.op_type}) cannot be written out: its operands or "
            f"attributes do not fit. {type(error).__name__}: {error}",
            hint="See whether onnx.checker.check_model and ONNX Runtime take the file.",
        ) from error


def refusal(node: onnx.NodeProto, what: str, hint: str = "") -> UnsupportedOperatorError:
    """Error for a form of an operator that nothing translates."""
    return UnsupportedOperatorError(
        f"Node {node.name or node.output[0]!r} ({node.op_type}) has {what}, which is not supported.",
        hint=hint or "Export the model without this form of the operator.",
    )


def in_its_place(node: onnx.NodeProto, branch: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Nodes of the branch that an If takes, under its name, and copies that give its results.

    What the branch defines, its initializers too, gets names of its own: branches beside each other, and
    one in each round of a loop that is written out, may have the same.
    """
    nodes, alias = list(branch.node), {}
    for tensor in branch.initializer:
        tensor.name = alias.setdefault(tensor.name, f"{node.output[0]}/{tensor.name}")
    for place, inner in enumerate(nodes):
        rename_inputs(inner, alias)
        inner.name = f"{node.name}/{inner.name or f'{inner.op_type}_{place}'}"
        for index, name in enumerate(inner.output):
            if name:
                inner.output[index] = alias[name] = f"{node.output[0]}/{name}"
    for value in branch.output:
        value.name = alias.get(value.name, value.name)
    for value, outer in zip(branch.output, node.output, strict=False):
        nodes.append(onnx.helper.make_node("Identity", [value.name], [outer], name=node.name))
    return nodes


def give_results(graph: onnx.GraphProto, results: Iterable[str], prefix: str) -> None:
    """Let a graph give these tensors, each under a name of its own, also where it is one of its inputs."""
    for place, result in enumerate(results):
        output = f"{prefix}/result_{place}"
        graph.node.append(helper.make_node("Identity", [result], [output], name=f"{output}/Identity"))
        graph.output.append(onnx.ValueInfoProto(name=output))


def copy_nodes(source: onnx.GraphProto, target: onnx.GraphProto, alias: dict[str, str], prefix: str) -> None:
    """Append the nodes of a graph, its outputs, and what is known of its tensors, to another one.

    Tensors are called as ``alias`` says, and what nodes give, which is added to it, by ``prefix``.
    """
    alias |= {name: f"{prefix}/{name}" for node in source.node for name in node.output if name}
    for node in source.node:
        copy = target.node.add()
        copy.CopyFrom(node)
        rename_inputs(copy, alias)
        copy.output[:] = [alias.get(name, name) for name in node.output]
        copy.name = f"{prefix}/{node.name}"
    copy_values(source.output, target.output, alias)
    copy_values(source.value_info, target.value_info, alias)


def copy_values(values: Iterable[onnx.ValueInfoProto], target: Any, alias: Mapping[str, str]) -> None:
    """Append values to a field of a graph, under the names that ``alias`` has for them."""
    for value in values:
        copy = target.add()
        copy.CopyFrom(value)
        copy.name = alias.get(value.name, value.name)


def merge_identities(graph: onnx.GraphProto) -> None:
    """Remove Identity nodes before graph outputs by renaming what they copy."""
    returned = {value.name for value in graph.output}
    made = {name for node in graph.node for name in node.output}
    for node in list(graph.node):
        if node.op_type != "Identity" or node.domain not in ONNX_DOMAINS:
            continue
        source, result = node.input[0], node.output[0]
        if source not in made or source in returned:
            continue  # an input, a constant, or an output of its own name
        graph.node.remove(node)
        for other in graph.node:
            other.output[:] = [result if name == source else name for name in other.output]
            rename_inputs(other, {source: result})
