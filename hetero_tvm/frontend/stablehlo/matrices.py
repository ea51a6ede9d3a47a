"""Factors and triangular systems, which JAX writes for the CPU as calls of LAPACK, step by step.

Each row or column is a step of plain operators, so matrices are bounded in size.  ``info`` is LAPACK's: JAX
reads it, and makes NaN of factors that there are not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hetero_tvm.frontend.nodes import Untranslatable, onnx_type
from hetero_tvm.frontend.stablehlo.op import Op

_MOST_ROWS = 64
"""Rows or columns of a matrix, each of which is a step of its own."""
_END = 2**31 - 1


@dataclass(frozen=True)
class _Matrices:
    """Matrices along the last two axes, while an operator on them is written out."""

    op: Op
    dtype: str

    def const(self, value: object) -> str:
        return self.op.const(value, self.dtype)

    def emit(self, kind: str, *inputs: str, **attributes: object) -> str:
        return self.op.emit(kind, *inputs, **attributes)

    def part(self, name: str, axis: int, start: int, end: int = _END) -> str:
        """Rows (axis -2) or columns (-1) from ``start`` to below ``end``."""
        op = self.op
        return op.emit("Slice", name, op.const([start]), op.const([end]), op.const([axis]))

    def turned(self, name: str, rank: int) -> str:
        return self.op.emit("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])

    def sum(self, name: str, axis: int) -> str:
        return self.op.emit("ReduceSum", name, self.op.const([axis]), keepdims=1)

    def where(self, mask: np.ndarray, name: str, other: float = 0.0) -> str:
        return self.op.emit("Where", self.op.const(mask, "bool"), name, self.const(other))

    def first_bad(self, is_bad: str) -> str:
        """Number, from 1 on, of the first of the last axis' truths that holds; 0 where none does."""
        bad = self.op.emit("Cast", is_bad, to=onnx_type("int32"))
        found = self.op.emit("ReduceMax", bad, self.op.const([-1]), keepdims=0)
        place = self.op.emit("ArgMax", bad, axis=-1, keepdims=0)
        place = self.op.emit("Cast", place, to=onnx_type("int32"))
        return self.op.emit("Mul", found, self.op.emit("Add", place, self.op.const(1, "int32")))


def called(op: Op) -> Sequence[str]:
    """``custom_call``: a function of LAPACK; :class:`Untranslatable` names any other."""
    target = op.text("call_target_name").strip('"')
    if target == "Sharding":
        return op.inputs
    found = re.fullmatch(r"lapack_[sd](\w+?)(_ffi)?", target)
    if found is None or found[1] not in _CALLS or found[2] is None:
        raise Untranslatable(
            f"no translation of the call {target}{_NAMED.get(found[1] if found else target, '')}"
        )
    shape = op.shape()
    if max(shape[-2:]) > _MOST_ROWS:
        raise Untranslatable(f"the call {target} of a matrix of more than {_MOST_ROWS} rows or columns")
    if 0 in shape:
        raise Untranslatable(f"the call {target} of no matrices")
    return _CALLS[found[1]](op, _Matrices(op, op.dtype()))


def _option(op: Op, name: str) -> str:
    """A letter that LAPACK takes as an option."""
    found = re.search(rf"\b{name} = (\d+)", op.text("mhlo.backend_config"))
    if found is None:
        raise Untranslatable(f"the call {op.text('call_target_name')} without {name}")
    return chr(int(found[1]))


def _cholesky(op: Op, m: _Matrices) -> Sequence[str]:
    rank, rows = len(op.shape()), op.shape()[-1]
    upper = _option(op, "uplo") == "U"
    rest = m.turned(op.inputs[0], rank) if upper else op.inputs[0]
    columns, pivots = [], []
    for step in range(rows):
        column = m.part(rest, -1, step, step + 1)
        pivots.append(pivot := m.part(column, -2, step, step + 1))
        column = m.emit("Div", column, m.emit("Sqrt", pivot))
        columns.append(column := m.where(np.arange(rows)[:, None] >= step, column))
        if step < rows - 1:
            rest = m.emit("Sub", rest, m.emit("Mul", column, m.turned(column, rank)))
    factor = op.emit("Concat", *columns, axis=-1)
    ends = op.emit("Squeeze", op.emit("Concat", *pivots, axis=-1), op.const([-2]))
    bad = op.emit("Not", op.emit("Greater", ends, m.const(0.0)))
    return [m.turned(factor, rank) if upper else factor, m.first_bad(bad)]


def _triangular(op: Op, m: _Matrices) -> Sequence[str]:
    a, b = op.inputs
    rank, rows = len(op.shape()), op.shape()[-1]
    right, lower = _option(op, "side") == "R", _option(op, "uplo") == "L"
    if (_option(op, "trans_x") != "N") != right:  # X A = B by rows is A' X' = B'
        a, lower = m.turned(a, rank), not lower
    b = m.turned(b, rank) if right else b
    unit = _option(op, "diag") == "U"

    def solve(b: str, start: int, end: int) -> str:
        """Rows ``start`` to ``end`` of the solution, by halves: the later one after the earlier one."""
        if end - start == 1:
            end_of_row = m.part(m.part(a, -2, start, end), -1, start, end)
            return b if unit else m.emit("Div", b, end_of_row)
        half = (start + end) // 2
        order = [(start, half), (half, end)] if lower else [(half, end), (start, half)]
        (first, second) = order
        known = solve(m.part(b, -2, first[0] - start, first[1] - start), *first)
        beside = m.part(m.part(a, -2, *second), -1, *first)
        rest = m.emit(
            "Sub", m.part(b, -2, second[0] - start, second[1] - start), m.emit("MatMul", beside, known)
        )
        parts = [known, solve(rest, *second)]
        return op.emit("Concat", *(parts if lower else parts[::-1]), axis=-2)

    found = solve(b, 0, rows)
    return [m.turned(found, rank) if right else found]


def _lu(op: Op, m: _Matrices) -> Sequence[str]:
    """Both triangles in one matrix, the swaps of rows from 1 on, and the first pivot that is 0."""
    shape, a = op.shape(), op.inputs[0]
    rows, columns = shape[-2:]
    places = np.arange(rows)
    pivots, ends = [], []
    for step in range(min(rows, columns)):
        column = op.emit("Squeeze", m.part(a, -1, step, step + 1), op.const([-1]))
        sizes = m.where(places >= step, op.emit("Abs", column), -1.0)
        pivot = op.emit("ArgMax", sizes, axis=-1, keepdims=1)
        pivots.append(pivot)
        is_pivot = op.emit("Equal", op.const(places), pivot)
        swap = op.emit("Where", is_pivot, op.const([step]), op.const(places))
        swap = op.emit("Where", op.const(places == step, "bool"), pivot, swap)
        order = op.emit("Expand", op.emit("Unsqueeze", swap, op.const([-1])), op.const(shape))
        a = op.emit("GatherElements", a, order, axis=len(shape) - 2)
        end = m.part(m.part(a, -2, step, step + 1), -1, step, step + 1)
        ends.append(end)
        safe = op.emit("Where", op.emit("Equal", end, m.const(0.0)), m.const(1.0), end)
        below = places[:, None] > step
        factors = m.where(below, op.emit("Div", m.part(a, -1, step, step + 1), safe))
        row = m.where(np.arange(columns) > step, m.part(a, -2, step, step + 1))
        a = op.emit("Sub", a, op.emit("Mul", factors, row))
        a = op.emit("Where", op.const(below & (np.arange(columns) == step), "bool"), factors, a)
    swaps = op.emit("Add", op.emit("Concat", *pivots, axis=-1), op.const(1))
    zero = op.emit("Squeeze", op.emit("Concat", *ends, axis=-1), op.const([-2]))
    info = m.first_bad(op.emit("Equal", zero, m.const(0.0)))
    return [a, op.emit("Cast", swaps, to=onnx_type("int32")), info]


def _qr(op: Op, m: _Matrices) -> Sequence[str]:
    """Householder's vectors below a triangle, and their factors."""
    rank, (rows, columns) = len(op.shape()), op.shape()[-2:]
    a, packed, factors = op.inputs[0], [], []
    places, zero, one = np.arange(rows)[:, None], m.const(0.0), m.const(1.0)
    for step in range(columns):
        column = m.part(a, -1, step, step + 1)
        if step >= rows:
            packed.append(column)
            continue
        first = m.part(column, -2, step, step + 1)
        below = m.where(places > step, column)
        rest = m.sum(op.emit("Mul", below, below), -2)
        is_done = op.emit("Equal", rest, zero)
        length = op.emit("Sqrt", op.emit("Add", op.emit("Mul", first, first), rest))
        length = op.emit("Where", op.emit("Less", first, zero), length, op.emit("Neg", length))
        end = op.emit("Where", is_done, first, length)
        divisor = op.emit("Where", is_done, one, end)
        factor = op.emit("Where", is_done, zero, op.emit("Div", op.emit("Sub", end, first), divisor))
        scale = op.emit("Where", is_done, one, op.emit("Sub", first, end))
        below = op.emit("Div", below, scale)
        packed.append(
            op.emit(
                "Where",
                op.const(places < step, "bool"),
                column,
                op.emit("Where", op.const(places == step, "bool"), end, below),
            )
        )
        factors.append(factor)
        a = _reflected(op, m, a, _with_one(op, m, below, step), factor, rank)
    joined = op.emit("Concat", *factors, axis=-1)
    return [op.emit("Concat", *packed, axis=-1), op.emit("Squeeze", joined, op.const([-2]))]


def _with_one(op: Op, m: _Matrices, below: str, step: int) -> str:
    """The vector of a reflection, of what is stored below the triangle."""
    rows = op.shape()[-2]
    return op.emit("Where", op.const(np.arange(rows)[:, None] == step, "bool"), m.const(1.0), below)


def _reflected(op: Op, m: _Matrices, a: str, vector: str, factor: str, rank: int) -> str:
    along = op.emit("MatMul", m.turned(vector, rank), a)
    return op.emit("Sub", a, op.emit("Mul", op.emit("Mul", vector, factor), along))


def _orthogonal(op: Op, m: _Matrices) -> Sequence[str]:
    """The orthogonal matrix of Householder's vectors."""
    packed, factors = op.inputs
    shape, rank = op.shape(), len(op.shape())
    rows, columns = shape[-2:]
    found = op.emit("Expand", m.const(np.eye(rows, columns)), op.const(shape))
    for step in reversed(range(op.shape(1)[-1])):
        below = m.where(np.arange(rows)[:, None] > step, m.part(packed, -1, step, step + 1))
        factor = op.emit("Unsqueeze", m.part(factors, -1, step, step + 1), op.const([-1]))
        found = _reflected(op, m, found, _with_one(op, m, below, step), factor, rank)
    return [found]


_CALLS: Mapping[str, Callable[[Op, _Matrices], Sequence[str]]] = {
    "geqrf": _qr,
    "getrf": _lu,
    "orgqr": _orthogonal,
    "potrf": _cholesky,
    "trsm": _triangular,
}
_NAMED = {
    "ApproxTopK": " (jax.lax.approx_max_k and approx_min_k; jax.lax.top_k is taken)",
    "gebal": " (balancing of a matrix)",
    "geev": " (eigenvalues of any matrix)",
    "gees": " (Schur's form)",
    "gehrd": " (Hessenberg's form)",
    "gesdd": " (singular values, and what follows from them: least squares, pseudo-inverses, ranks)",
    "gesvd": " (singular values, and what follows from them: least squares, pseudo-inverses, ranks)",
    "syevd": " (eigenvalues of a symmetric matrix)",
    "sytrd": " (tridiagonal form)",
}
