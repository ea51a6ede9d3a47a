"""Terms of values of tensors that a contraction combines: differences, products, their absolute values."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from hetero_tvm.host.tvm import Expr, TensorLoad, tirx, tvm, tvm_ffi
from hetero_tvm.schedules.emit import Index, Kernel

_BINARY = {
    tirx.Add: operator.add,
    tirx.Sub: operator.sub,
    tirx.Mul: operator.mul,
    tirx.Div: operator.truediv,
}

COMBINED = {tirx.Add: operator.add, tirx.Max: tirx.max, tirx.Min: tirx.min}
"""Operations that combine terms, by the class of their expression."""
_LARGEST = {"float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308}


def start_of(init: float, dtype: str) -> float:
    """First value of accumulators where an expression begins with ``init``: infinity for the ends of a type,
    which are no bounds of its numbers."""
    return init if abs(init) < _LARGEST[dtype] else math.copysign(math.inf, init)


def loads_in(term: Expr) -> list[TensorLoad] | None:
    """The loads of a term, each once; None where other operations are in it."""
    if isinstance(term, TensorLoad):
        return [term]
    if type(term) in _BINARY:
        parts = [term.a, term.b]
    elif _is_abs(term):
        parts = list(term.args)
    else:
        return None
    found: list[TensorLoad] = []
    for part in parts:
        inner = loads_in(part)
        if inner is None:
            return None
        found += [load for load in inner if not any(_same(load, other) for other in found)]
    return found


def is_product(term: Expr) -> bool:
    """Whether a term is the product of two values."""
    return isinstance(term, tirx.Mul) and all(isinstance(side, TensorLoad) for side in (term.a, term.b))


def valued(term: Expr, values: Sequence[tuple[TensorLoad, Expr]]) -> Expr:
    """A term of other values, scalars or vectors, in place of its loads."""
    if isinstance(term, TensorLoad):
        return next(value for load, value in values if _same(term, load))
    if type(term) in _BINARY:
        return _BINARY[type(term)](valued(term.a, values), valued(term.b, values))
    return tirx.abs(valued(term.args[0], values))


def of_vectors(
    term: Expr,
    matrices: Sequence[tuple[TensorLoad, Expr]],
    others: Sequence[tuple[TensorLoad, Callable[[Index], Expr]]],
    at: Index,
) -> Expr:
    """A term of vectors of both matrices, and of scalars that ``others`` give at a place of the reduction."""
    lanes = tvm.DataType(str(matrices[0][1].ty.dtype)).lanes
    return valued(term, [*matrices, *((load, Kernel.splat(of(at), lanes)) for load, of in others)])


def _is_abs(node: Expr) -> bool:
    return isinstance(node, tvm.ir.Call) and getattr(node.op, "name", "") == "tirx.fabs"


def _same(load: TensorLoad, other: TensorLoad) -> bool:
    return load.source.same_as(other.source) and tvm_ffi.structural_equal(
        list(load.indices), list(other.indices)
    )
