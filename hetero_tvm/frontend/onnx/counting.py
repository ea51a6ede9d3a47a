"""Step of cleaning: shapes that depend on values become padded ones, with counts beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import NoReturn

import onnx
from onnx import TensorProto, helper

from hetero_tvm.errors import UnsupportedOperatorError, shortened
from hetero_tvm.frontend.onnx.bodies.suppression import PADDED
from hetero_tvm.frontend.onnx.check import remove_dead_nodes
from hetero_tvm.frontend.onnx.counted.masks import write_masked
from hetero_tvm.frontend.onnx.counted.rules import RULES
from hetero_tvm.frontend.onnx.counted.shapes import whole_numbers
from hetero_tvm.frontend.onnx.counted.sources import SOURCES
from hetero_tvm.frontend.onnx.counted.tensors import Count, Counted, Step, Unfit, Unknown
from hetero_tvm.frontend.onnx.graph.constants import ONNX_DOMAINS, ConstantPool, Types, node_inputs
from hetero_tvm.frontend.onnx.graph.guards import drop_guards
from hetero_tvm.frontend.onnx.graph.nodes import set_nodes

COUNTS = "hetero_tvm.counts"
"""Metadata of a cleaned model: which axes of its results are counted by which other result, as JSON."""


class Tracker:
    """Counted tensors of one graph, from their sources to its results.

    Every round writes what can be written before types must be inferred anew.
    """

    def __init__(self) -> None:
        self._counted = Counted()
        self._kept: set[str] = set()
        self._waiting: dict[str, str] = {}  # what nodes wait for whose operands have no shape yet, by result

    def begin(self, graph: onnx.GraphProto, types: Types, pool: ConstantPool, opset: int) -> bool:
        """Write the sources of fixed operands, whose results depend on values; whether anything was written.

        Raises
        ------
        UnsupportedOperatorError : a form of an operator that is not covered; lists all.
        """
        if drop_guards(graph, pool) or write_masked(graph, types, pool, opset):
            return True

        def wanted(node: onnx.NodeProto) -> bool:
            return (
                node.op_type in SOURCES
                and not (node.op_type == "Compress" and node.input[1] in pool)
                and node.doc_string != PADDED
                and any(name and pool.shape(name, types) is None for name in node.output)
                and all(pool.shape(name, types) is not None for name in node.input if name)
            )

        def write(step: Step) -> None:
            SOURCES[step.node.op_type](step)

        written = self._write(graph, types, pool, opset, wanted, write)
        if self._waiting:
            _refuse(list(self._waiting.values()))
        return written

    def settle(
        self,
        graph: onnx.GraphProto,
        infer: Callable[[], Types],
        fold: Callable[[onnx.GraphProto, Types, Collection[str]], int],
        pool: ConstantPool,
        opset: int,
    ) -> None:
        """Write the nodes that read counted tensors, as far as the sources that are written reach.

        ``infer`` gives the types of the graph as it is.  ``fold`` folds what does not depend on the tensors
        that it is given, and says whether there was anything: shapes may follow from extents without counts.

        Raises
        ------
        UnsupportedOperatorError : nodes that cannot take them; lists all.
        """
        while self._counted.axes or self._counted.values:
            types = infer()
            if self._follow(graph, types, pool, opset):
                continue
            if not self._waiting:
                return
            if not fold(graph, types, set(self._waiting)):
                _refuse(list(self._waiting.values()))

    def _follow(self, graph: onnx.GraphProto, types: Types, pool: ConstantPool, opset: int) -> bool:
        """Write the nodes that read counted tensors; whether types must be inferred anew."""

        def wanted(node: onnx.NodeProto) -> bool:
            known = self._counted
            if node.output[0] in known.seen:
                return False
            inner = node_inputs(node) - set(node.input)
            return known.concerns(node) or any(name in known.axes for name in inner)

        return self._write(graph, types, pool, opset, wanted, _apply)

    def finish(self, model: onnx.ModelProto) -> None:
        """Let the model give the counts of its results behind them, and say which are whose."""
        graph = model.graph
        own = [value for value in graph.output if value.name not in self._kept]
        own = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in own]
        del graph.output[:]
        graph.output.extend(own)
        places: dict[str, int] = {}
        told: dict[str, list[list[int]]] = {}
        taken = {value.name for value in graph.output}
        taken.update(name for node in graph.node for name in node.output)
        for value in list(graph.output):
            for axis, count in sorted(self._counted.axes.get(value.name, {}).items()):
                if count.name not in places:
                    name = f"{value.name}_count"
                    while name in taken:
                        name += "_"
                    taken.add(name)
                    places[count.name] = len(graph.output)
                    graph.node.append(helper.make_node("Identity", [count.name], [name], name=name))
                    graph.output.append(helper.make_tensor_value_info(name, TensorProto.INT64, []))
                told.setdefault(value.name, []).append([axis, places[count.name]])
        if told:
            helper.set_model_props(model, {COUNTS: json.dumps(told)})
        if self._kept:
            remove_dead_nodes(graph)

    def _keep(self, graph: onnx.GraphProto, pool: ConstantPool) -> None:
        """Let the graph give all counts for the time being: the end shows which its results need."""
        given = {value.name for value in graph.output}
        for axes in self._counted.axes.values():
            for count in axes.values():
                if count.name not in given and count.name not in pool:
                    graph.output.append(helper.make_tensor_value_info(count.name, TensorProto.INT64, []))
                    given.add(count.name)
                    self._kept.add(count.name)

    def _write(
        self,
        graph: onnx.GraphProto,
        types: Types,
        pool: ConstantPool,
        opset: int,
        wanted: Callable[[onnx.NodeProto], bool],
        write: Callable[[Step], None],
    ) -> bool:
        """Write the ``wanted`` nodes by ``write``; whether nodes have changed."""
        nodes: list[onnx.NodeProto] = []
        problems: list[str] = []
        stale: set[str] = set()  # tensors whose types are to be inferred anew
        changed = False
        self._waiting = {}
        for node in graph.node:
            if not wanted(node) or any(name in stale for name in node.input):
                if any(name in stale for name in node_inputs(node)):
                    stale.update(node.output)
                nodes.append(node)
                continue
            step = Step(node, opset, types, pool, self._counted)
            self._counted.seen.add(node.output[0])
            try:
                write(step)
            except Unknown as error:
                self._counted.seen.discard(node.output[0])
                self._waiting.update(dict.fromkeys(node.output, f"{node.name!r} ({node.op_type}): {error}"))
                stale.update(node.output)
                nodes.append(node)
                continue
            except Unfit as error:
                problems.append(f"{node.name!r} ({node.op_type}): {error}")
                stale.update(node.output)
            # What is written here reads counted tensors as it must.
            self._counted.seen.update(written.output[0] for written in step.nodes)
            nodes += step.nodes
            if step.stays or not step.nodes:
                nodes.append(node)
            else:
                stale.update(node.output)
            changed = changed or bool(step.nodes)
        if problems:
            _refuse([*problems, *self._waiting.values()])
        if changed:
            set_nodes(graph, nodes)
        self._keep(graph, pool)
        return changed


def _refuse(problems: list[str]) -> NoReturn:
    raise UnsupportedOperatorError(
        "How many elements some tensors have depends on values, and nodes that read them cannot do "
        "with as many as there could be.",
        problems=shortened(list(dict.fromkeys(problems))),
        hint="Export the model without these nodes and compute what comes from them outside of it, "
        "or declare the shapes of its outputs as numbers.",
    )


def _apply(step: Step) -> None:
    """Write one node, or mark its results."""
    node, known = step.node, step.counted
    if node.domain not in ONNX_DOMAINS:
        raise Unfit("the operator is not one of ONNX's own")
    counted = any(name in known.axes for name in node_inputs(node))
    decides = any(
        isinstance(value, Count)
        for index in _DECIDING.get(node.op_type, ())
        for value in known.values.get(step.input(index), ())
    )
    if not counted and not decides:
        whole_numbers(step)
        return
    rule = SOURCES.get(node.op_type) or RULES.get(node.op_type)
    if rule is None:
        raise Unfit("it takes no tensors of which not all elements count")
    rule(step)


_DECIDING = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Range": (1,),
    "Reshape": (1,),
    "Slice": (1, 2),
    "Tile": (1,),
    "TopK": (1,),
}
"""Inputs that decide shapes."""


def counts_of(model: onnx.ModelProto) -> Mapping[str, tuple[tuple[int, int], ...]]:
    """Counted axes by name of a result: (axis, position of the result that counts it) of each."""
    for entry in model.metadata_props:
        if entry.key == COUNTS:
            found = json.loads(entry.value)
            return {name: tuple((axis, place) for axis, place in pairs) for name, pairs in found.items()}
    return {}
