"""Values of index expressions at all iterations of a kernel's loops at once, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hetero_tvm.host.tvm import Buffer, Expr, Var, tirx, tvm


class Unprovable(Exception):
    """The reason for which an analysis of a kernel has no answer."""


@dataclass(frozen=True)
class Points:
    """Iterations that reach a statement, one array element each."""

    env: Mapping[Var, np.ndarray]
    """Integer variable -> its values, ``[points, 1]``."""
    time: np.ndarray
    """Position in program order."""
    worker: np.ndarray
    """Iteration of unordered loops (the time at which it began); -1 outside of them."""
    epoch: np.ndarray
    """Time at which the outermost unordered loop began; the point's own time outside of them."""

    def __len__(self) -> int:
        return len(self.time)

    def take(self, index: np.ndarray) -> Points:
        """The iterations at these indices."""
        env = {var: value[index] if len(value) > 1 else value for var, value in self.env.items()}
        return Points(env, self.time[index], self.worker[index], self.epoch[index])

    def at(self, delay: int) -> Points:
        """These iterations, ``delay`` later."""
        ordered = self.worker < 0
        return replace(self, time=self.time + delay, epoch=np.where(ordered, self.epoch + delay, self.epoch))


def element_count(buffer: Buffer) -> int:
    """Elements of a buffer of constant shape."""
    count = 1
    for extent in buffer.shape:
        if not isinstance(extent, (int, tirx.IntImm)):
            raise Unprovable("its shape is symbolic")
        count *= int(extent)
    return count


def op_name(expr: Expr) -> str:
    """Name of the operator that is called; empty for what is no call."""
    return expr.op.name if isinstance(expr, tvm.ir.Call) and isinstance(expr.op, tvm.ir.Op) else ""


def flat_elements(buffer: Buffer, indices: Sequence[Expr], points: Points) -> np.ndarray:
    """Elements from the start of the memory, ``[points, lanes]``."""
    flat: np.ndarray = evaluate(buffer.elem_offset, points)
    if len(buffer.strides):
        strides = [evaluate(stride, points) for stride in buffer.strides]
    else:
        strides, step = [], 1
        for extent in reversed(list(buffer.shape)):
            strides.insert(0, np.full((1, 1), step))
            if not isinstance(extent, (int, tirx.IntImm)):
                raise Unprovable("its shape is symbolic")
            step *= int(extent)
    for index, stride in zip(indices, strides, strict=True):
        flat = flat + evaluate(index, points) * stride
    return np.broadcast_to(flat, (len(points), flat.shape[1]))


def try_evaluate(expr: Expr, points: Points) -> np.ndarray | None:
    """Values of an expression; None where they cannot be told."""
    try:
        return evaluate(expr, points)
    except Unprovable:
        return None


def evaluate(expr: Expr | int, points: Points) -> np.ndarray:
    """Values of an integer expression, ``[points or 1, lanes or 1]``."""
    if isinstance(expr, (int, tirx.IntImm)):
        return np.full((1, 1), int(expr), np.int64)
    if isinstance(expr, tvm.ir.Var) and expr in points.env:
        return points.env[expr]
    if isinstance(expr, tirx.Ramp):
        lanes = np.arange(int(expr.lanes))[None, :]
        return evaluate(expr.base, points) + evaluate(expr.stride, points) * lanes
    if isinstance(expr, (tirx.Broadcast, tirx.Cast)):
        return evaluate(expr.value, points)
    if isinstance(expr, tirx.Not):
        return 1 - (evaluate(expr.a, points) != 0)
    if isinstance(expr, tirx.Select):
        parts = (expr.condition, expr.true_value, expr.false_value)
        condition, yes, no = (evaluate(part, points) for part in parts)
        return np.where(condition != 0, yes, no)
    combine = _BINARY.get(type(expr).__name__)
    if combine is not None:
        return combine(evaluate(expr.a, points), evaluate(expr.b, points))
    combine = _CALLS.get(op_name(expr))
    if combine is not None:
        return combine(*(evaluate(arg, points) for arg in expr.args))
    raise Unprovable(f"an index or a loop depends on {type(expr).__name__}, not on loops alone")


# fmt: off
_BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Min": np.minimum, "Max": np.maximum,
    "FloorDiv": np.floor_divide, "FloorMod": np.mod,
    "Div": lambda a, b: np.where((a < 0) != (b < 0), -(np.abs(a) // np.abs(b)), np.abs(a) // np.abs(b)),
    "Mod": np.fmod,
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal,
    "GT": np.greater, "GE": np.greater_equal,
    "And": np.logical_and, "Or": np.logical_or,
    "LShift": np.left_shift, "RShift": np.right_shift, "BitwiseAnd": np.bitwise_and,
}
_CALLS: dict[str, Callable[..., np.ndarray]] = {
    "prim.if_then_else": lambda c, a, b: np.where(c != 0, a, b), "prim.likely": lambda a: a,
}
# fmt: on
