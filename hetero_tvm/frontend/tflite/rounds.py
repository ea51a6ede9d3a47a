"""Values that follow from the constants of a TensorFlow Lite program: computed indices, rounds of loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hetero_tvm.frontend.tflite.load import Graph, Operator

_STEPS: dict[str, Callable[..., np.ndarray]] = {
    "ADD": np.add, "SUB": np.subtract, "MUL": np.multiply, "MAXIMUM": np.maximum, "MINIMUM": np.minimum,
    "LESS": np.less, "LESS_EQUAL": np.less_equal, "GREATER": np.greater, "GREATER_EQUAL": np.greater_equal,
    "EQUAL": np.equal, "NOT_EQUAL": np.not_equal, "NEG": np.negative, "FLOOR_DIV": np.floor_divide,
    "LOGICAL_AND": np.logical_and, "LOGICAL_OR": np.logical_or, "LOGICAL_NOT": np.logical_not,
    "RESHAPE": lambda x, shape: x.reshape(shape.reshape(-1)),
    "FILL": lambda shape, x: np.full(shape.reshape(-1), x.reshape(())),
}  # fmt: skip

_SMALL = 64
"""Largest number of elements of what is computed here."""


def folded(operator: Operator, operands: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Result of an operator on a few whole numbers or booleans that are all known; None for any other."""
    known = [x for x in operands if x is not None and x.size <= _SMALL and x.dtype.kind in "iub"]
    if len(known) != len(operands) or not known:
        return None
    axis = getattr(operator.options, "Axis", lambda: 0)()
    try:
        if operator.kind in ("CONCATENATION", "PACK"):
            return (np.concatenate if operator.kind == "CONCATENATION" else np.stack)(known, axis)
        result = _STEPS[operator.kind](*known)
    except (KeyError, ValueError, TypeError, ZeroDivisionError):
        return None
    return np.asarray(result) if result.size <= _SMALL else None


def evaluated(graph: Graph, given: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """Outputs of a graph as far as they follow from the inputs that are known; None for the others."""
    values: dict[int, np.ndarray | None] = {
        number: tensor.data for number, tensor in enumerate(graph.tensors) if tensor.data is not None
    }
    values.update(zip(graph.inputs, given, strict=True))
    for operator in graph.operators:
        found = folded(operator, [values.get(number) for number in operator.inputs if number >= 0])
        if found is not None and len(operator.outputs) == 1:
            values[operator.outputs[0]] = found
    return [values.get(number) for number in graph.outputs]


def rounds(condition: Graph, body: Graph, given: Sequence[np.ndarray | None], most: int) -> int | None:
    """Number of rounds of ``while condition(state): state = body(state)``.

    Parameters
    ----------
    given : the state before the first round; None for what is not known.
    most : rounds after which nobody waits for the end.

    Returns
    -------
    The number, or None where it hangs on values that are not known, or is above ``most``.
    """
    state = list(given)
    for count in range(most + 1):
        going = evaluated(condition, state)[0]
        if going is None or going.size != 1:
            return None
        if not bool(going.reshape(())):
            return count
        state = evaluated(body, state)
    return None
