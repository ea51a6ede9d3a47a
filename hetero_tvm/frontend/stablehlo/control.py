"""``while``, ``case`` and ``if`` as Loop and If, whose bodies see the graph around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from hetero_tvm.frontend.nodes import onnx_type
from hetero_tvm.frontend.onnx.graph.rounds import OPEN
from hetero_tvm.frontend.stablehlo.op import Op, dtype_of, shape_of, turned
from hetero_tvm.frontend.stablehlo.open.marks import SIZED_ROUNDS

Write = Callable[[], Sequence[str]]
"""Writes the nodes of a branch; returns the names of its results."""


def case(op: Op) -> list[str]:
    """``case``: a branch by its number, the last one for numbers that are none."""
    index, count = op.inputs[0], len(op.raw.regions)

    def branch(number: int) -> Sequence[str]:
        if number == count - 1:
            return op.region(number, [])
        chosen = op.emit("Equal", index, op.const(number, op.dtype()))
        return _if(op, chosen, lambda: op.region(number, []), lambda: branch(number + 1))

    return list(branch(0))


def if_(op: Op) -> list[str]:
    return _if(op, op.inputs[0], lambda: op.region(0, []), lambda: op.region(1, []))


def _if(op: Op, condition: str, then: Write, otherwise: Write) -> list[str]:
    kinds = [value.type for value in op.raw.results]
    graphs = {"then_branch": _graph(op, then, kinds), "else_branch": _graph(op, otherwise, kinds)}
    return op.nodes.several("If", condition, count=len(kinds), **graphs)


def _graph(op: Op, write: Write, kinds: Sequence[Any]) -> onnx.GraphProto:
    with op.nodes.inside() as nodes:
        results = [_own(op, name) for name in write()]
    return helper.make_graph(nodes, "branch", [], [_info(n, k) for n, k in zip(results, kinds, strict=True)])


def _own(op: Op, name: str) -> str:
    """A result of a subgraph: what is outside has to pass through a node."""
    return op.nodes.several("Identity", name, count=1)[0]


def _info(name: str, kind: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx_type(dtype_of(kind)), shape_of(kind))


def while_(op: Op) -> list[str]:
    """``while``: states that no round changes stay outside; a counter from zero gives how many there are."""
    return _While(op).write()


class _While:
    """One loop on its way to ONNX.

    What JAX's ``scan`` stacks, one row of a state in each round, is given as rows: a state would be copied
    in every round.
    """

    def __init__(self, op: Op):
        self.op, self.nodes = op, op.nodes
        body = op.raw.regions[1].blocks[0]
        returned = list(body.operations[len(body.operations) - 1].operands)
        arguments = list(body.arguments)
        self.kinds = [value.type for value in op.raw.results]
        count = range(len(arguments))
        self.states = [n for n in count if returned[n] != arguments[n]]

    def write(self) -> list[str]:
        op, nodes = self.op, self.nodes
        (first,) = op.region(0, op.inputs)
        with nodes.inside() as inside:
            number, going = nodes.fresh(), nodes.fresh()
            before = [nodes.fresh() if n in self.states else name for n, name in enumerate(op.inputs)]
            after = list(op.region(1, before))
            (condition,) = op.region(0, after)
            counter, rounds = self._counter(before, after, condition)
            rows: dict[int, _Row] = {}
            if counter is not None:
                rows = self._rows(inside, before, after, before[counter], rounds)
                condition = going
                count = nodes.several("Cast", number, count=1, to=onnx_type(dtype_of(self.kinds[counter])))
                inside.insert(0, inside.pop())
                _rename(inside, before[counter], count[0])
            kept = [n for n in self.states if n not in rows and n != counter]
            ends = [_own(op, name) for name in (condition, *(after[n] for n in kept))]
            stacked = [_own(op, rows[n].update) for n in rows]
        states = [_info(before[n], self.kinds[n]) for n in kept]
        results = [_info(name, self.kinds[n]) for name, n in zip(ends[1:], kept, strict=True)]
        given = [
            helper.make_tensor_value_info(number, onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info(going, onnx.TensorProto.BOOL, []),
        ]
        test = helper.make_tensor_value_info(ends[0], onnx.TensorProto.BOOL, [])
        lines = [
            helper.make_tensor_value_info(name, onnx_type(dtype_of(self.kinds[n])), shape_of(rows[n].kind))
            for name, n in zip(stacked, rows, strict=True)
        ]
        used = _used(inside, [*ends, *stacked])
        graph = helper.make_graph(used, "body", [*given, *states], [test, *results, *lines])
        limit, start = ("", first) if counter is None else (op.const(rounds), op.const(True, "bool"))
        if not kept and not rows:
            found: list[str] = []
        else:
            taken = [op.inputs[n] for n in kept]
            found = nodes.several("Loop", limit, start, *taken, count=len(kept) + len(rows), body=graph)
            if op.has(SIZED_ROUNDS):
                nodes.nodes[-1].doc_string = OPEN
        values = dict(zip([*kept, *rows], found, strict=True))
        return [self._after(n, values, rows, counter, rounds) for n in range(len(self.kinds))]

    def _after(
        self, n: int, values: dict[int, str], rows: dict[int, _Row], counter: int | None, rounds: int
    ) -> str:
        """Value of a state after the loop."""
        op = self.op
        if n == counter:
            return op.const(rounds, dtype_of(self.kinds[n]))
        if n not in rows:
            return values.get(n, op.inputs[n])
        row, value = rows[n], values[n]
        if row.is_reverse:
            ends = [-1], [np.iinfo(np.int64).min], [0], [-1]
            value = op.emit("Slice", value, *map(op.const, ends))
        rank = len(shape_of(self.kinds[n]))
        order = [*range(1, row.axis + 1), 0, *range(row.axis + 1, rank)]
        whole = op.emit("Reshape", value, op.const([rounds, *row.rest]))
        return turned(op, whole, order)

    def _counter(self, before: Sequence[str], after: Sequence[str], going: str) -> tuple[int | None, int]:
        """The state that counts rounds from zero, and their number; None where none does."""
        test = self.nodes.maker(going)
        for n in self.states:
            start, step = self.nodes.value(self.op.inputs[n]), self.nodes.maker(after[n])
            if shape_of(self.kinds[n]) or start is None or start != 0 or step is None or test is None:
                continue
            added = [self.nodes.value(name) for name in step.input if name != before[n]]
            if step.op_type != "Add" or len(added) != 1 or added[0] is None or added[0] != 1:
                continue
            limit = self.nodes.value(test.input[1]) if test.op_type == "Less" else None
            if limit is not None and test.input[0] == after[n] and limit > 0:
                return n, int(limit)
        return None, 0

    def _rows(
        self,
        inside: Sequence[onnx.NodeProto],
        before: Sequence[str],
        after: Sequence[str],
        counter: str,
        rounds: int,
    ) -> dict[int, _Row]:
        """States of which each round writes one row that it does not read, of as many as there are rounds."""
        rows: dict[int, _Row] = {}
        for n in self.states:
            written = self.op.written.get(after[n])
            if written is None or written.data != before[n]:
                continue
            if _uses(inside, written.data) != 1 or _uses(inside, written.view) != 1:
                continue  # it is read too
            shape = shape_of(self.kinds[n])
            axes = [axis for axis, extent in enumerate(shape) if written.sizes[axis] != extent]
            if len(axes) != 1 or written.sizes[axes[0]] != 1 or shape[axes[0]] != rounds:
                continue
            along = self._along(written.starts[axes[0]], counter)
            if along in ((1, 0), (-1, rounds - 1)):
                rest = [extent for axis, extent in enumerate(shape) if axis != axes[0]]
                rows[n] = _Row(written.update, written.kind, axes[0], along[0] < 0, rest)
        return rows

    def _along(self, name: str, counter: str) -> tuple[int, int] | None:
        """A place as ``a * counter + b``; None where it is none."""
        if name == counter:
            return 1, 0
        value = self.nodes.value(name)
        if value is not None:
            return (0, int(value)) if value.size == 1 else None
        node = self.nodes.maker(name)
        if node is None or node.op_type not in ("Add", "Sub", "Cast"):
            return None
        parts = [self._along(one, counter) for one in node.input]
        if None in parts:
            return None
        if node.op_type == "Cast":
            return parts[0]
        sign = 1 if node.op_type == "Add" else -1
        (a, b), (c, d) = parts  # type: ignore[misc]
        return a + sign * c, b + sign * d


@dataclass(frozen=True)
class _Row:
    """Row that a round gives to a stack.

    Parameters
    ----------
    update, kind : the written window, and its type.
    axis : along which rows lie.
    is_reverse : whether the first round gives the last row.
    rest : extents of the other axes.
    """

    update: str
    kind: Any
    axis: int
    is_reverse: bool
    rest: Sequence[int]


def _graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [attribute.g for attribute in node.attribute if attribute.HasField("g")]


def _uses(nodes: Sequence[onnx.NodeProto], name: str) -> int:
    """Number of reads of a tensor, in subgraphs too."""
    return sum(
        list(node.input).count(name) + sum(_uses(graph.node, name) for graph in _graphs(node))
        for node in nodes
    )


def _rename(nodes: Sequence[onnx.NodeProto], old: str, new: str) -> None:
    for node in nodes:
        for n, name in enumerate(node.input):
            if name == old:
                node.input[n] = new
        for graph in _graphs(node):
            _rename(graph.node, old, new)


def _used(nodes: Sequence[onnx.NodeProto], results: Sequence[str]) -> list[onnx.NodeProto]:
    """Nodes that results follow from."""
    wanted, kept = set(results), []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted |= _read(node)
    return kept[::-1]


def _read(node: onnx.NodeProto) -> set[str]:
    return set(node.input).union(*(_read(one) for graph in _graphs(node) for one in graph.node))


CONTROL: dict[str, Callable[[Op], list[str]]] = {
    "stablehlo.case": case,
    "stablehlo.if": if_,
    "stablehlo.while": while_,
}
"""Translations of operators whose regions are branches and bodies."""
