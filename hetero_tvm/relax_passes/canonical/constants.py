"""Operators on constants are computed when the model is compiled; shapes are constants too.

What exporters leave as arithmetic (position indices, masks, Gemma's ``1 + weight``, tables of rotary
embeddings) becomes one constant.  An operator without an entry in ``constant_values`` is left alone,
and so is one whose result is much larger than its operands (to broadcast again costs less than to
store the result in the library).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Expr, Var, relax, tvm
from hetero_tvm.relax_passes.rewriting.constant_values import VALUES
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, is_tensor, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule

_MOST_GROWTH = 1 << 20
"""Elements that a folded constant may have more than its operands together: rows of embeddings for positions
and types of a sequence of a thousand."""

_MOST_REPEATED = 1 << 16
"""The same where elements are only repeated, which costs nothing at run time."""

_REPEATING = ("broadcast_to", "zeros", "ones", "zeros_like", "ones_like", "full")


class FoldConstants(Rule):
    """A call whose operands are all constant -> its value."""

    name = "fold_constants"
    counted = False
    anchors = tuple(f"relax.{name}" for name in VALUES)

    def match(self, graph: Graph, var: Var) -> np.ndarray | None:
        call = graph.value(var)
        operands = [_operand(graph, arg) for arg in call.args]
        if any(operand is None for operand in operands) or not is_tensor(var):
            return None
        shape, dtype = shape_of(var), dtype_of(var)
        name = call.op.name.removeprefix("relax.")
        growth = _MOST_REPEATED if name in _REPEATING else _MOST_GROWTH
        if dtype not in _DTYPES or np.prod(shape) > sum(_size(operand) for operand in operands) + growth:
            return None
        with np.errstate(all="ignore"):  # inf and NaN mean here what they mean at run time
            value = VALUES[name](call, shape, *operands)
        return None if value is None or value.shape != shape else value.astype(dtype, order="C")

    def rewrite(self, graph: Graph, var: Var, found: np.ndarray) -> None:
        graph.forward(var, constant(found, dtype_of(var)))


class ReleaseConstants(Rule):
    """A constant that no pass could compute with, as other sizes have another -> the constant."""

    name = "release_constants"
    counted = False
    anchors = ("relax.builtin.stop_lift_params",)

    def match(self, graph: Graph, var: Var) -> Expr:
        return graph.value(graph.value(var).args[0])

    def rewrite(self, graph: Graph, var: Var, found: Expr) -> None:
        graph.forward(var, found)


_DTYPES = ("float32", "float64", "int32", "int64", "bool")
_OPERANDS = (*_DTYPES, "int8", "uint8")


def _operand(graph: Graph, expr: Expr) -> Any | None:
    """The array of a constant, a list for a tuple, the extents of a shape; None when it is not known."""
    value = graph.value(expr)
    if isinstance(value, relax.Tuple):
        fields = [_operand(graph, field) for field in value.fields]
        return None if any(field is None for field in fields) else fields
    if isinstance(value, relax.ShapeExpr):
        return np.asarray([int(extent) for extent in value.values], np.int64)
    if isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.Op):
        if value.op.name == "relax.shape_of" and is_tensor(value.args[0]):  # every shape is static here
            return np.asarray(shape_of(value.args[0]), np.int64)
    if isinstance(value, tvm.tirx.IntImm):
        return int(value)
    if isinstance(value, tvm.tirx.FloatImm):
        return float(value)
    array = array_of(value)
    return array if array is not None and str(array.dtype) in _OPERANDS else None


def _size(operand: Any) -> int:
    return sum(map(_size, operand)) if isinstance(operand, list) else int(np.size(operand))
