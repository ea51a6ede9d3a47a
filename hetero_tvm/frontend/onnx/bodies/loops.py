"""Scan, and Loop of a known number of rounds, written out one round after another.

A Loop that may stop early keeps its state from the round on in which its condition fails: every round is
computed.  The number of rounds is a constant, or follows from the body's own counter (``graph/rounds.py``),
or is the promised extent of what the rounds give (``promised.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

from hetero_tvm.errors import UnsupportedOperatorError
from hetero_tvm.frontend.onnx.bodies.promised import PromisedBody
from hetero_tvm.frontend.onnx.graph.body import Body
from hetero_tvm.frontend.onnx.graph.constants import rename_inputs
from hetero_tvm.frontend.onnx.graph.nodes import set_nodes
from hetero_tvm.frontend.onnx.graph.rounds import OPEN, WRITTEN_OUT, counted_rounds
from hetero_tvm.frontend.onnx.graph.together import Together

_MOST_ROUNDS = 1024
"""Largest number of rounds, since each is written out."""
_MOST_NODES = 400
"""Largest number of nodes of all rounds: more of them stay a loop, which is compiled once."""
_FAN = 16
"""Largest number of operands of one Concat."""


def scan(b: PromisedBody) -> bool:
    """A Scan over axes of known length."""
    if b.opset < 9:
        return False
    inner: onnx.GraphProto = b.attributes["body"]
    count = int(b.attributes["num_scan_inputs"])
    states, sequences = list(b.node.input[:-count]), list(b.node.input[-count:])
    axes = list(b.attributes.get("scan_input_axes", [0] * count))
    back = list(b.attributes.get("scan_input_directions", [0] * count))
    shapes = [b.shape(name) for name in sequences]
    if any(shape is None for shape in shapes):
        return False
    length = (shapes[0] or ())[axes[0]] or 0
    if length > 0 and _together(b, states, sequences, axes, back):
        return True
    if length > _MOST_ROUNDS or (b.node.doc_string == OPEN and length > 0):
        _as_loop(b, states, sequences, length)
        return True
    _check(b, length)
    body = _Rounds(b, inner)
    collected: list[list[str]] = [[] for _ in inner.output[len(states) :]]
    for t in range(length):
        parts = []
        for name, axis, reverse in zip(sequences, axes, back, strict=True):
            parts.append(b.op("Gather", name, b.ints(length - 1 - t if reverse else t), axis=axis))
        results = body.write(t, [*states, *parts])
        states = results[: len(states)]
        for row, value in zip(collected, results[len(states) :], strict=True):
            row.append(value)
    for index, state in enumerate(states):
        b.end(index, state)
    results_axes = list(b.attributes.get("scan_output_axes", [0] * len(collected)))
    reversed_results = list(b.attributes.get("scan_output_directions", [0] * len(collected)))
    for index, row in enumerate(collected):
        if b.wants(len(states) + index):
            ordered = row[::-1] if reversed_results[index] else row
            b.end(len(states) + index, _stacked(b, ordered, int(results_axes[index])))
    return True


def _together(
    b: PromisedBody, states: Sequence[str], sequences: Sequence[str], axes: Sequence[int], back: Sequence[int]
) -> bool:
    """Write all rounds of a Scan at once, where they know nothing of each other."""
    inner: onnx.GraphProto = b.attributes["body"]
    kept, parts = len(b.nodes), []
    for name, axis, reverse in zip(sequences, axes, back, strict=True):
        rank = len(b.shape(name) or ())
        order = [axis % rank, *(n for n in range(rank) if n != axis % rank)]
        name = backwards(b, name, axis) if reverse else name
        parts.append(name if axis % rank == 0 else b.op("Transpose", name, perm=order))
    constants = {t.name: b.keep_constant(t) for t in inner.initializer}
    rows = Together(b, inner, constants, states, parts, b.constant_of).rows()
    if rows is None:
        del b.nodes[kept:]
        return False
    for index, state in enumerate(states):
        b.end(index, state)
    given = b.attributes
    for index, ((y, rank), axis, reverse) in enumerate(
        zip(
            rows,
            given.get("scan_output_axes", [0] * len(rows)),
            given.get("scan_output_directions", [0] * len(rows)),
            strict=True,
        )
    ):
        if b.wants(len(states) + index):
            y = backwards(b, y, 0) if reverse else y
            b.end(len(states) + index, _rounds_at(b, y, axis, rank))
    return True


def _as_loop(b: PromisedBody, states: Sequence[str], sequences: Sequence[str], length: int) -> None:
    """Write a Scan as a Loop over ``length`` rounds, each of which takes its parts by its number."""
    graph = onnx.GraphProto()
    graph.CopyFrom(b.attributes["body"])
    count, given = len(states), b.attributes
    axes = list(given.get("scan_input_axes", [0] * len(sequences)))
    back = list(given.get("scan_input_directions", [0] * len(sequences)))
    number, begins, goes_on = (f"{b.node.name}/{name}" for name in ("number", "begins", "goes_on"))
    taken = []
    for value, name, axis, reverse in zip(graph.input[count:], sequences, axes, back, strict=True):
        name = backwards(b, name, axis) if reverse else name
        taken.append(helper.make_node("Gather", [name, number], [value.name], name=value.name, axis=axis))
    same = helper.make_node("Identity", [begins], [goes_on], name=goes_on)
    own = {value.name for value in graph.input} | {t.name for t in graph.initializer}
    for value in graph.output:  # each result is made by a node
        if value.name in own:
            taken.append(helper.make_node("Identity", [value.name], [f"{value.name}/same"], name=value.name))
            value.name = f"{value.name}/same"
    set_nodes(graph, [*taken, same, *graph.node])
    values = [*graph.input[:count]], [*graph.output]
    del graph.input[:], graph.output[:]
    graph.input.append(helper.make_tensor_value_info(number, TensorProto.INT64, []))
    graph.input.append(helper.make_tensor_value_info(begins, TensorProto.BOOL, []))
    graph.output.append(helper.make_tensor_value_info(goes_on, TensorProto.BOOL, []))
    graph.input.extend(values[0])
    graph.output.extend(values[1])
    first = b.op("Loop", b.ints(length), b.const(True, "bool"), *states, body=graph)
    loop = b.nodes[-1]
    loop.doc_string = OPEN
    results = [first, *(f"{first}_{n}" for n in range(1, len(values[1])))]
    loop.output[:] = results
    axes = list(given.get("scan_output_axes", [0] * len(results)))
    back = list(given.get("scan_output_directions", [0] * len(results)))
    for index, y in enumerate(results):
        row = index - count
        if row >= 0 and b.wants(index):
            y = backwards(b, y, 0) if back[row] else y
            y = _rounds_at(b, y, axes[row], _rank_of(b, index, values[1][index])) if axes[row] else y
        b.end(index, y)


def _rank_of(b: PromisedBody, index: int, row: onnx.ValueInfoProto) -> int:
    """Rank of a Scan's result, whose body may declare a row's shape."""
    shape = b.promised(index)
    if shape is not None:
        return len(shape)
    if row.type.tensor_type.HasField("shape"):
        return len(row.type.tensor_type.shape.dim) + 1
    raise UnsupportedOperatorError(
        f"Node {b.node.name!r} (Scan) puts its rounds on another axis of {b.wants(index)}, whose rank is "
        "unknown.",
        hint=f"Declare the shape of the body's output {row.name} in the file.",
    )


def _rounds_at(b: Body, y: str, axis: int, rank: int) -> str:
    """Rows of ``rank`` axes with the rounds in front, with them at ``axis`` instead."""
    order = [*range(1, rank)]
    order.insert(axis % rank, 0)
    return b.op("Transpose", y, perm=order) if axis % rank else y


def backwards(b: Body, x: str, axis: int) -> str:
    """A tensor whose elements along an axis come in the other order."""
    ends = (-1, -(2**62), axis, -1)
    return b.op("Slice", x, *(b.const([value], "int64") for value in ends))


def rounds_of(b: PromisedBody) -> int | None:
    """Rounds that a Loop runs, whatever its condition's values; None where these decide."""
    inner: onnx.GraphProto = b.attributes["body"]
    given = b.value(0) if b.input(0) else None
    limit = None if given is None else int(given.reshape(-1)[0])
    begins = not b.input(1) or b.known_true(b.input(1))
    if begins and _goes_on(inner, b):
        return limit
    counted = _counted(b, inner, list(b.node.input[2:]))
    return counted if counted is None or limit is None else min(counted, limit)


def loop(b: PromisedBody) -> bool:
    """A Loop of few rounds, whose number, or its bound, is known."""
    if b.node.doc_string not in ("", WRITTEN_OUT):  # it stays a loop
        return False
    inner: onnx.GraphProto = b.attributes["body"]
    states = list(b.node.input[2:])
    rows = range(len(states), len(inner.output) - 1)
    lengths = {shape[0] for n in rows if (shape := b.promised(n))}
    given, begins = (b.value(n) if b.input(n) else None for n in (0, 1))
    none = given is not None and int(given.reshape(-1)[0]) < 1
    none = none or (begins is not None and not begins.all())
    if none:
        _end_at_once(b, inner, states, [index for index in rows if b.wants(index)])
        return True
    stops = not _goes_on(inner, b)
    counted = _counted(b, inner, states) if stops else None
    if counted is not None:
        count = counted if given is None else min(counted, int(given.reshape(-1)[0]))
        stops = False
    elif given is not None:
        count = int(given.reshape(-1)[0])
        if stops and lengths:
            count = min(count, min(lengths))
    elif lengths:
        count = min(lengths)
    else:
        return False
    if stops and rows and not lengths:
        return False  # how many rows there are depends on values
    if count * len(inner.node) > _MOST_NODES and (not rows or rounds_of(b) is not None):
        return False
    _check(b, max(count, 0))
    body = _Rounds(b, inner)
    running = b.input(1)
    if not running or (b.value(1) is not None and bool(b.value(1))):
        running = b.const(True, "bool")
    collected: list[list[str]] = [[] for _ in rows]
    alive = running
    is_known = given is not None or counted is not None
    tests = [] if is_known or stops else [b.op("Equal", b.whole(b.input(0)), b.ints(count))]
    if b.input(0) and given is None and stops:
        tests.append(b.op("GreaterOrEqual", b.whole(b.input(0)), b.ints(count)))
    for t in range(count):
        going, *results = body.write(t, [b.ints(t), running, *states])
        new = results[: len(states)]
        for row, value in zip(collected, results[len(states) :], strict=True):
            row.append(value)
        if stops and not rows:
            states = [b.op("Where", alive, after, state) for after, state in zip(new, states, strict=True)]
        else:
            tests.append(alive)
            states = new
        running = going
        alive = b.op("And", alive, going) if stops else alive
    tests = [test for test in dict.fromkeys(tests) if stops or test != running or b.value(1) is None]
    open_tests = [test for test in tests if not _is_true(b, test)]
    for index, value in enumerate([*states, *(_stacked(b, row, 0) for row in collected)]):
        if b.wants(index) and open_tests:
            value = b.guard(value, *open_tests, what="the number of rounds", dtype=b.dtype(b.wants(index)))
        b.end(index, value)
    return True


def _end_at_once(b: PromisedBody, inner: onnx.GraphProto, states: Sequence[str], rows: Sequence[int]) -> None:
    """Results of a Loop of no rounds: its states, and no rows, whose shape a round tells that is not kept."""
    results = []
    if rows:
        begins = b.input(1) or b.const(True, "bool")
        results = _Rounds(b, inner).write(0, [b.ints(0), begins, *states])[1:]
    for index, state in enumerate(states):
        b.end(index, state)
    for index in rows:
        row = b.op("Unsqueeze", results[index], b.ints([0]))
        b.end(index, b.op("Slice", row, b.ints([0]), b.ints([0]), b.ints([0])))


def _counted(b: PromisedBody, inner: onnx.GraphProto, states: Sequence[str]) -> int | None:
    """Rounds of a Loop that begins, and ends by its own counter; None where that is not known."""
    begins = not b.input(1) or b.known_true(b.input(1))
    if not begins or (b.input(0) and b.value(0) is None):
        return None
    first = {value.name: name for value, name in zip(inner.input[2:], states, strict=True)}
    return counted_rounds(inner, b.opset, lambda name: b.constant_of(first.get(name, name)), _MOST_ROUNDS)


def _is_true(b: PromisedBody, name: str) -> bool:
    """Whether a tensor is written here as the constant True."""
    for node in b.nodes:
        if name in node.output:
            return node.op_type == "Constant" and node.attribute[0].t.data_type == onnx.TensorProto.BOOL
    return False


def _goes_on(inner: onnx.GraphProto, b: PromisedBody) -> bool:
    """Whether a Loop's condition stays as it was before the first round, or is always true."""
    makers = {name: node for node in inner.node for name in node.output}
    name = inner.output[0].name
    while name in makers and makers[name].op_type in ("Identity", "Cast"):  # PyTorch's exporter casts
        name = makers[name].input[0]
    if name == inner.input[1].name:
        return True
    tensors = {t.name: t for t in inner.initializer}
    maker = makers.get(name)
    if maker is not None and maker.op_type == "Constant" and maker.attribute[0].name == "value":
        tensors[name] = maker.attribute[0].t
    if name in tensors:
        return bool(onnx.numpy_helper.to_array(tensors[name]).all())
    return b.known_true(name)


def _check(b: PromisedBody, rounds: int) -> None:
    if rounds > _MOST_ROUNDS or rounds < 1:
        raise UnsupportedOperatorError(
            f"Node {b.node.name!r} ({b.node.op_type}) runs {rounds} rounds; 1 to {_MOST_ROUNDS} are "
            "supported.",
            hint="Rounds are written out: feed long sequences in pieces, with the state as input and output.",
        )


class _Rounds:
    """The body of a loop, written as often as it runs."""

    def __init__(self, b: PromisedBody, graph: onnx.GraphProto):
        self.b, self.graph = b, graph
        self.constants = {t.name: b.keep_constant(t) for t in graph.initializer}

    def write(self, number: int, inputs: Sequence[str]) -> list[str]:
        """Write one round; returns its results."""
        b, prefix = self.b, f"{self.b.node.name}/{number}"
        alias = dict(self.constants)
        alias |= {value.name: name for value, name in zip(self.graph.input, inputs, strict=True)}
        for index, source in enumerate(self.graph.node):
            node = onnx.NodeProto.FromString(source.SerializeToString())
            rename_inputs(node, alias)
            node.name = f"{prefix}/{source.name or f'{source.op_type}_{index}'}"
            for n, name in enumerate(source.output):
                if name:
                    alias[name] = node.output[n] = f"{prefix}/{name}"
            b.nodes.append(node)
        return [alias.get(value.name, value.name) for value in self.graph.output]


def _stacked(b: PromisedBody, parts: Sequence[str], axis: int) -> str:
    """Join tensors along a new axis."""
    rows = [b.op("Unsqueeze", part, b.ints([axis])) for part in parts]
    while len(rows) > 1:
        groups = [rows[n : n + _FAN] for n in range(0, len(rows), _FAN)]
        rows = [group[0] if len(group) == 1 else b.op("Concat", *group, axis=axis) for group in groups]
    return rows[0]
