"""Matrix product with its epilogue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.ops.base import FusedOp, Operand, suffix

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc, TETensor

BIAS = "bias"
RESIDUAL = "residual"
GATE = "gate"
TENSORS = (RESIDUAL, GATE)
"""Steps whose operand has the shape of the result: a residual is added, a gate is multiplied by."""
OPERANDS = (BIAS, *TENSORS)
"""Steps that have an operand."""

_Value = TypeVar("_Value")


def joined(step: str, value: Any, other: Any) -> Any:
    """``value`` with another tensor of the result's shape, as a step of :data:`TENSORS` joins it: arrays,
    expressions or vectors."""
    return value * other if step == GATE else value + other


def tensors_of(steps: Sequence[str]) -> tuple[str, ...]:
    """The steps of an epilogue whose operand has the shape of the result."""
    return tuple(step for step in steps if step in TENSORS)


def steps_with_operands(steps: Sequence[str], operands: Sequence[_Value]) -> list[tuple[str, _Value | None]]:
    """Each step of an epilogue with its operand; None for an activation."""
    rest = iter(operands)
    return [(step, next(rest) if step in OPERANDS else None) for step in steps]


def finished(y: np.ndarray, steps: Sequence[str], operands: Sequence[np.ndarray]) -> np.ndarray:
    """``y`` after the steps of an epilogue."""
    for step, operand in steps_with_operands(steps, operands):
        y = ACTIVATIONS[step](y) if operand is None else joined(step, y, operand)
    return y


def finished_workload(y: TETensor, steps: Sequence[str], operands: Sequence[TETensor]) -> TETensor:
    """:func:`finished` as tensor expressions, one stage for each step."""
    from hetero_tvm.host.tvm import te
    from hetero_tvm.ops.te_workload import activation, wide

    def elementwise(step, y, operand):
        if step == BIAS:
            return te.compute(y.shape, lambda *i: y(*i) + operand[i[-1]], name=step)
        if step in TENSORS:
            return te.compute(y.shape, lambda *i: joined(step, y(*i), wide(operand(*i))), name=step)
        return te.compute(y.shape, lambda *i: activation(step, y(*i)), name=step)

    for step, operand in steps_with_operands(steps, operands):
        y = elementwise(step, y, operand)
    return y


@dataclass(frozen=True)
class ConstantProduct(FusedOp):
    """Base of products ``X[*lead, k] @ W`` with a constant W and a result [*lead, n]."""

    lead: tuple[int, ...]
    n: int
    k: int

    if TYPE_CHECKING:
        dtype: str

    @property
    def m(self) -> int:
        """Rows of the product."""
        return math.prod(self.lead)

    @property
    def output(self) -> Operand:
        return Operand("Y", (*self.lead, self.n), self.dtype)

    def _operands(self, columns: int) -> list[Operand]:
        """X, and W with ``columns``."""
        w = Operand("W", (self.k, columns), self.dtype, constant=True)
        return [Operand("X", (*self.lead, self.k), self.dtype), w]

    def _epilogue_operands(self, steps: Sequence[str]) -> list[Operand]:
        """Operands of the steps that have one, in order."""
        shapes = {BIAS: Operand("bias", (self.output.shape[-1],), constant=True)}
        shapes |= {step: Operand(step, self.output.shape, self.dtype) for step in TENSORS}
        return [shapes[step] for step in steps if step in shapes]

    def _product(self, x: TETensor, w: TETensor) -> TETensor:
        """``X @ W`` in float32 as a tensor expression."""
        from hetero_tvm.host.tvm import te
        from hetero_tvm.ops.te_workload import wide

        axis = te.reduce_axis((0, self.k), name="k")
        return te.compute(
            (*self.lead, w.shape[1]),
            lambda *i: te.sum(wide(x[(*i[:-1], axis)]) * wide(w[axis, i[-1]]), axis=axis),
            name="product",
        )


@dataclass(frozen=True)
class Matmul(ConstantProduct):
    """``Y[..., n] = epilogue(X[..., k] @ W[k, n])`` in float32, W constant.

    Parameters
    ----------
    lead : leading dimensions of X and Y; their product is m, the rows of the product.
    n, k : columns of the result; reduction length.
    epilogue : steps applied in order to each value of the product: ``bias`` adds a vector [n]
        (constant), ``residual`` adds a tensor of Y's shape and ``gate`` multiplies by one, any other name
        is an activation of :data:`hetero_tvm.ops.activations.ACTIVATIONS`.
    dtype : type of X, W, tensors of Y's shape and Y; the bias is float32, and so is all arithmetic.

    Operands: X [*lead, k], W [k, n] (constant), then one per ``bias`` / ``residual`` / ``gate`` in the order
    of the epilogue.
    """

    kind: ClassVar[str] = "matmul"

    epilogue: tuple[str, ...] = ()
    dtype: str = "float32"

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return (*self._operands(self.n), *self._epilogue_operands(self.epilogue))

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def label(self) -> str:
        return "_".join(["matmul", f"{self.m}x{self.k}x{self.n}", *self.epilogue, *suffix(self.dtype)])

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        x, w, *extra = arrays
        return finished(x @ w, self.epilogue, extra)

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te
        from hetero_tvm.ops.te_workload import prim_func

        def compute(x, w, *extra):
            y = finished_workload(self._product(x, w), self.epilogue, extra)
            return y if self.dtype == "float32" else te.compute(y.shape, lambda *i: y(*i).astype(self.dtype))

        return prim_func(self, compute)
