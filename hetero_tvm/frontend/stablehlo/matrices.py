"""Factors and triangular systems, which JAX writes for the CPU as calls of LAPACK, step by step.

Each row or column is a step of plain operators, so matrices are bounded in size.  ``info`` is LAPACK's: JAX
reads it, and makes NaN of factors that there are not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetero_tvm.frontend.nodes import Untranslatable, onnx_type
from hetero_tvm.frontend.stablehlo.op import Op

_END = 2**31 - 1


@dataclass(frozen=True)
class Matrices:
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

    def option(self, name: str) -> str:
        """A letter that LAPACK takes as an option."""
        found = re.search(rf"\b{name} = (\d+)", self.op.text("mhlo.backend_config"))
        if found is None:
            raise Untranslatable(f"the call {self.op.text('call_target_name')} without {name}")
        return chr(int(found[1]))

    def first_bad(self, is_bad: str) -> str:
        """Number, from 1 on, of the first of the last axis' truths that holds; 0 where none does."""
        bad = self.op.emit("Cast", is_bad, to=onnx_type("int32"))
        found = self.op.emit("ReduceMax", bad, self.op.const([-1]), keepdims=0)
        place = self.op.emit("ArgMax", bad, axis=-1, keepdims=0)
        place = self.op.emit("Cast", place, to=onnx_type("int32"))
        return self.op.emit("Mul", found, self.op.emit("Add", place, self.op.const(1, "int32")))


def cholesky(op: Op) -> Sequence[str]:
    m = Matrices(op, op.dtype())
    rank, rows = len(op.shape()), op.shape()[-1]
    upper = m.option("uplo") == "U"
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


def triangular(op: Op) -> Sequence[str]:
    m, (a, b) = Matrices(op, op.dtype()), op.inputs
    rank, rows = len(op.shape()), op.shape()[-1]
    right, lower = m.option("side") == "R", m.option("uplo") == "L"
    if (m.option("trans_x") != "N") != right:  # X A = B by rows is A' X' = B'
        a, lower = m.turned(a, rank), not lower
    b = m.turned(b, rank) if right else b
    unit = m.option("diag") == "U"

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


def lu(op: Op) -> Sequence[str]:
    """Both triangles in one matrix, the swaps of rows from 1 on, and the first pivot that is 0."""
    m = Matrices(op, op.dtype())
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


def householder(op: Op) -> Sequence[str]:
    """``geqrf``: see :func:`qr`."""
    return qr(Matrices(op, op.dtype()), op.inputs[0], op.shape())


def qr(m: Matrices, a: str, shape: Sequence[int]) -> tuple[str, str]:
    """Householder's vectors below a triangle, and their factors, of matrices of a shape."""
    op, rank, (rows, columns) = m.op, len(shape), shape[-2:]
    packed, factors = [], []
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
        a = _reflected(m, a, _with_one(m, below, step, rows), factor, rank)
    joined = op.emit("Concat", *factors, axis=-1)
    return op.emit("Concat", *packed, axis=-1), op.emit("Squeeze", joined, op.const([-2]))


def _with_one(m: Matrices, below: str, step: int, rows: int) -> str:
    """The vector of a reflection, of what is stored below the triangle."""
    is_step = m.op.const(np.arange(rows)[:, None] == step, "bool")
    return m.emit("Where", is_step, m.const(1.0), below)


def _reflected(m: Matrices, a: str, vector: str, factor: str, rank: int) -> str:
    along = m.emit("MatMul", m.turned(vector, rank), a)
    return m.emit("Sub", a, m.emit("Mul", m.emit("Mul", vector, factor), along))


def reflections(op: Op) -> Sequence[str]:
    """``orgqr``: see :func:`orthogonal`."""
    return [orthogonal(Matrices(op, op.dtype()), *op.inputs, op.shape(1)[-1], op.shape())]


def orthogonal(m: Matrices, packed: str, factors: str, count: int, shape: Sequence[int]) -> str:
    """The orthogonal matrix, of a shape, of ``count`` of Householder's vectors."""
    op, rank, (rows, columns) = m.op, len(shape), shape[-2:]
    found = op.emit("Expand", m.const(np.eye(rows, columns)), op.const(shape))
    for step in reversed(range(count)):
        below = m.where(np.arange(rows)[:, None] > step, m.part(packed, -1, step, step + 1))
        factor = op.emit("Unsqueeze", m.part(factors, -1, step, step + 1), op.const([-1]))
        found = _reflected(m, found, _with_one(m, below, step, rows), factor, rank)
    return found
