"""Number of rounds of a Loop whose condition follows from constants: a counter against its limit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
import onnx
from onnx import helper

from hetero_tvm.frontend.onnx.graph.constants import ONNX_DOMAINS, ConstantPool, node_inputs

OPEN = "its rounds may follow from a size"
"""Note at a loop, scan or recurrent layer of a model that is imported at several sizes: written out it would
be another model at each."""
WRITTEN_OUT = "no form as a loop"
"""Note at a loop that had the note before, and is written out all the same."""
_ROUNDS = frozenset({"CumProd", "Scan", "RNN", "GRU", "LSTM"})
_MOST_LIMIT = 1 << 31
"""Rounds beyond which a limit is none: exporters of ``while`` loops write the largest number."""
_LARGEST = 16
"""Elements of a state that may be a counter."""


def note_rounds(graph: onnx.GraphProto, sized: Collection[str], pool: ConstantPool) -> None:
    """Note at nodes that their rounds may follow from sizes; ``sized`` : constants that do."""
    for node in graph.node:
        if node.domain not in ONNX_DOMAINS or node.doc_string:
            continue
        if node.op_type == "Loop":
            limit = node.input[0]
            is_limit = limit in pool and pool.array(limit).max(initial=0) < _MOST_LIMIT
            if not sized.isdisjoint({limit} if is_limit else node_inputs(node)):
                node.doc_string = OPEN
        elif node.op_type in _ROUNDS:
            node.doc_string = OPEN


def counted_rounds(
    body: onnx.GraphProto, opset: int, known: Callable[[str], np.ndarray | None], most: int
) -> int | None:
    """Number of rounds that a body runs until its condition fails, at least one.

    Exporters of ``while`` loops (tf2onnx, Paddle2ONNX) give no trip count: the body counts, and compares.

    Parameters
    ----------
    known : gives the constants that the body sees, None for what is none: of the graph around it by their
        names, and its states before the first round by the body's own.
    most : rounds after which the count ends.

    Returns
    -------
    None where the condition depends on anything else, or holds after ``most`` rounds.
    """
    number = body.input[0].name
    after = {
        value.name: result.name for value, result in zip(body.input[1:], body.output, strict=False)
    }  # the condition and the states, before and after a round
    nodes, states, free = _needed(body, body.output[0].name, after)
    if any(attribute.HasField("g") for node in nodes for attribute in node.attribute):
        return None
    condition = body.input[1].name
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in body.initializer}
    constants |= {name: array for name in free - constants.keys() if (array := known(name)) is not None}
    current = {name: array for name in states if (array := known(name)) is not None}
    current.setdefault(condition, np.array(True))
    missing = (free - constants.keys() - {number}) | (states - current.keys())
    if missing or any(array.size > _LARGEST for array in current.values()):
        return None
    # Imported late: slow, and few models need it.
    from onnx.reference import ReferenceEvaluator

    given = [number, *sorted(states | {condition})]
    results = [body.output[0].name, *(after[name] for name in given[1:] if name != condition)]
    graph = helper.make_graph(
        nodes,
        "condition",
        [onnx.ValueInfoProto(name=name) for name in given],
        [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(results)],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    evaluator = ReferenceEvaluator(graph, opsets={"": opset})
    for count in range(1, most + 1):
        current[number] = np.array(count - 1, np.int64)
        try:
            found = evaluator.run(list(dict.fromkeys(results)), current)
        except Exception:  # what the evaluator cannot do is not counted
            return None
        values = dict(zip(dict.fromkeys(results), found, strict=True))
        if not np.all(values[results[0]]):
            return count
        current = {name: values[after[name]] for name in given[1:]}
    return None


def _needed(
    body: onnx.GraphProto, condition: str, after: Mapping[str, str]
) -> tuple[list[onnx.NodeProto], set[str], set[str]]:
    """Nodes that the condition follows from, the states that they read, and what else they read."""
    makers = {name: index for index, node in enumerate(body.node) for name in node.output}
    wanted, seen, kept = [condition], {""}, set()
    states: set[str] = set()
    free: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in makers:
            kept.add(makers[name])
            wanted += body.node[makers[name]].input
        elif name in after:
            states.add(name)
            wanted.append(after[name])
        else:
            free.add(name)
    return [body.node[index] for index in sorted(kept)], states, free
