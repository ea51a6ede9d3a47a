"""A TensorFlow Lite program as an ONNX model, operator by operator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

from hetero_tvm.errors import ModelError, UnsupportedOperatorError
from hetero_tvm.frontend.limits import current_limits
from hetero_tvm.frontend.nodes import Nodes, Untranslatable, onnx_type
from hetero_tvm.frontend.tflite.detection import DETECTION
from hetero_tvm.frontend.tflite.elementwise import ELEMENTWISE
from hetero_tvm.frontend.tflite.images import IMAGES
from hetero_tvm.frontend.tflite.load import Graph, Operator, Program
from hetero_tvm.frontend.tflite.moves import MOVES
from hetero_tvm.frontend.tflite.op import Op, Values
from hetero_tvm.frontend.tflite.recurrence import RECURRENCE
from hetero_tvm.frontend.tflite.rounds import folded, rounds
from hetero_tvm.frontend.tflite.segments import SEGMENTS
from hetero_tvm.frontend.tflite.signals import SIGNALS

_OPSET = 20
_DEEPEST = 16
"""Graphs inside graphs that are inlined."""
_MOST_ROUNDS = 1024
"""Largest number of rounds of a loop, since each is written out."""
_LISTED = 50
"""Faults that one message tells."""

_TRANSLATIONS = {
    **IMAGES, **ELEMENTWISE, **MOVES, **SEGMENTS, **RECURRENCE, **SIGNALS, **DETECTION
}  # fmt: skip

_State = dict[bool, str] | np.ndarray
"""A value that goes in or out of a graph: its ONNX names by layout, or a constant."""


def to_onnx(program: Program) -> onnx.ModelProto:
    """Translate a program.

    Raises
    ------
    ModelError : an end has a type that ONNX has not.
    UnsupportedOperatorError : operators without a translation (all are listed, with what they make).
    """
    return _Translation(program).model()


class _Translation:
    def __init__(self, program: Program):
        self._program, self._nodes = program, Nodes()
        self._faults: list[str] = []

    def model(self) -> onnx.ModelProto:
        main = self._program.graphs[0]
        ends = [main.tensors[number] for number in (*main.inputs, *main.outputs)]
        odd = [f"{end.name!r} is of type {end.dtype}" for end in ends if not _has_type(end.dtype)]
        if odd:
            raise ModelError("Inputs or outputs of this TensorFlow Lite file are no numbers.", problems=odd)
        inputs = self._program.inputs
        results = self._run(main, [{False: name} for name in inputs], 0)
        if self._faults:
            faults = list(dict.fromkeys(self._faults))
            more = [f"and {len(faults) - _LISTED} more"] if len(faults) > _LISTED else []
            raise UnsupportedOperatorError(
                "This TensorFlow Lite file has operators that cannot be translated.",
                problems=faults[:_LISTED] + more,
            )
        taken = set(inputs)
        outputs = [f"{name}_out" if name in taken else name for name in self._program.outputs]
        for number, name, value in zip(main.outputs, outputs, results, strict=True):
            stored = self._stored(main, number, value)
            self._nodes.nodes.append(helper.make_node("Identity", [stored], [name], name))
        infos = [
            helper.make_tensor_value_info(
                name, onnx_type(_number_type(main.tensors[number].dtype)), main.tensors[number].shape
            )
            for name, number in zip((*inputs, *outputs), (*main.inputs, *main.outputs), strict=True)
        ]
        graph = helper.make_graph(
            self._nodes.nodes, "tflite", infos[: len(inputs)], infos[len(inputs) :], self._nodes.constants
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)

    def _stored(self, graph: Graph, number: int, value: _State) -> str:
        """Name of a value in the layout of the file."""
        known = {number: value} if isinstance(value, np.ndarray) else {}
        values: Values = {} if isinstance(value, np.ndarray) else {number: value}
        return Op(Operator("RESULT", (number,), (), None), graph, values, known, self._nodes).raw()

    def _run(self, graph: Graph, given: Sequence[_State], depth: int) -> list[_State]:
        """Translate a graph for given inputs."""
        values: Values = {}
        known = {n: tensor.data for n, tensor in enumerate(graph.tensors) if tensor.data is not None}
        for number, state in zip(graph.inputs, given, strict=True):
            if isinstance(state, np.ndarray):
                known[number] = state
            else:
                values[number] = dict(state)
        for operator in graph.operators:
            if len(self._nodes.nodes) > current_limits().nodes:
                raise ModelError(f"The file asks for more than {current_limits().nodes} operators.")
            found = folded(operator, [known.get(number) for number in operator.inputs if number >= 0])
            if found is not None and len(operator.outputs) == 1:
                known[operator.outputs[0]] = found
                continue
            op = Op(operator, graph, values, known, self._nodes)
            place = graph.tensors[operator.outputs[0]].name.split(";")[0] if operator.outputs else "?"
            self._nodes.at = place
            try:
                if operator.kind in _CALLS:
                    self._called(operator, op, values, known, depth)
                elif operator.kind in _TRANSLATIONS:
                    _TRANSLATIONS[operator.kind](op)
                else:
                    raise Untranslatable(_REASONS.get(operator.kind, "no translation"))
            except (Untranslatable, KeyError, IndexError, TypeError, ValueError, ArithmeticError) as error:
                said = str(error) if isinstance(error, Untranslatable) else f"an unknown form ({error})"
                self._faults.append(f"{operator.kind} at {place!r}: {said}")
                values.update({number: {False: ""} for number in operator.outputs})
        for number in graph.outputs:
            if number not in values and number not in known:
                self._faults.append(f"nothing computes {graph.tensors[number].name!r}")
                values[number] = {False: ""}
        return [_state(number, values, known) for number in graph.outputs]

    def _called(
        self, operator: Operator, op: Op, values: Values, known: dict[int, np.ndarray], depth: int
    ) -> None:
        """Operators that run other graphs: their bodies are written where they are called."""
        if depth >= _DEEPEST:
            raise Untranslatable("graphs inside graphs without end")
        states = [_state(number, values, known) for number in operator.inputs]
        if operator.kind == "WHILE":
            results = self._loop(op, states, depth)
        elif operator.kind == "IF":
            results = self._branches(op, states, depth)
        else:
            option = {"CALL": "Subgraph"}.get(operator.kind, "DecompositionSubgraphIndex")
            results = self._run(self._graph(op, option), states, depth + 1)
        for number, state in zip(operator.outputs, results, strict=True):
            if isinstance(state, np.ndarray):
                known[number] = state
            else:
                values[number] = state

    def _graph(self, op: Op, option: str) -> Graph:
        return self._program.graphs[int(op.option(option))]

    def _loop(self, op: Op, states: list[_State], depth: int) -> list[_State]:
        """``WHILE``, one round after another."""
        condition, body = self._graph(op, "CondSubgraphIndex"), self._graph(op, "BodySubgraphIndex")
        given = [state if isinstance(state, np.ndarray) else None for state in states]
        count = rounds(condition, body, given, _MOST_ROUNDS)
        if count is None:
            raise Untranslatable(f"a loop whose end hangs on data, or of more than {_MOST_ROUNDS} rounds")
        for _ in range(count):
            states = self._run(body, states, depth + 1)
        return states

    def _branches(self, op: Op, states: list[_State], depth: int) -> list[_State]:
        """``IF``: the branch that is taken where that is known, else both and a choice."""
        branches = [self._graph(op, f"{side}SubgraphIndex") for side in ("Then", "Else")]
        if op.is_constant(0):
            taken = branches[0 if bool(op.constant(0).reshape(())) else 1]
            return self._run(taken, states[1:], depth + 1)
        condition = op.reshaped(op.raw(0), [])
        sides = []
        for graph in branches:
            found = self._run(graph, states[1:], depth + 1)
            sides.append([self._stored(graph, n, x) for n, x in zip(graph.outputs, found, strict=True)])
        shapes = [[graph.tensors[n].shape for n in graph.outputs] for graph in branches]
        if shapes[0] != shapes[1]:
            raise Untranslatable("branches whose results differ in shape")
        return [{False: op.emit("Where", condition, a, b)} for a, b in zip(*sides, strict=True)]


_OPEN = (
    "the size of its result is known only when it has run: convert the model up to it, or with a mask "
    "(tf.where with three operands)"
)
_STATE = "a state that lasts from run to run: convert the model with its states as inputs and outputs"
_DRAWS = "random numbers: convert the model with them as an input"
_TEXT = "strings and tables: convert the model behind them, with numbers as its inputs"
_REASONS = {
    **dict.fromkeys(("WHERE", "UNIQUE"), _OPEN),
    **dict.fromkeys(("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE", "SVDF", "RNN"), _STATE),
    **dict.fromkeys(("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL"), _DRAWS),
    **{
        name: _TEXT
        for name in ("HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_LOOKUP", "HASHTABLE_SIZE")
    },
}
"""Reasons why an operator has no translation, with what to do."""

_CALLS = ("WHILE", "IF", "CALL", "STABLEHLO_COMPOSITE")


def _state(number: int, values: Values, known: dict[int, np.ndarray]) -> _State:
    if number in known:
        return known[number]
    if number not in values:
        raise Untranslatable("a value that nothing computes")
    return values[number]


def _number_type(dtype: str) -> str:
    return "int8" if dtype == "int4" else dtype


def _has_type(dtype: str) -> bool:
    try:
        onnx_type(_number_type(dtype))
    except (TypeError, KeyError, ValueError):
        return False
    return True
